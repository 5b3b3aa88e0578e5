"""Records of one attack or certificate of one input, as runs store them."""

from __future__ import annotations

import math
from dataclasses import dataclass

NORMS = {1.0: "l1", 2.0: "l2", math.inf: "linf"}

Key = tuple[int, int | None, str, float]


@dataclass(frozen=True)
class AttackRecord:
    """The result of one attack on one input: an upper bound of the distance.

    input           the id of the input.
    target          the class that the attack had to reach, None for any class but the predicted one.
    name            the attack, with a preset as in "ddn:quick".
    p, distortion   the norm of the attack, and its distance in this norm; infinite if it failed.
    found           the class of the adversarial input.
    l1, l2, linf    its distance in three norms; infinite if the attack failed.
    """

    input: int
    target: int | None
    name: str
    p: float
    found: int
    distortion: float
    l1: float
    l2: float
    linf: float
    seconds: float

    @property
    def key(self) -> Key:
        """(input, target, attack with preset, norm): an attack whose key is already stored is not run again."""
        return self.input, self.target, self.name, self.p

    def length(self, p: float) -> float:
        """The distance of the adversarial input in norm p; infinite if the attack failed or did not measure it in p."""
        if p in NORMS:
            return float(getattr(self, NORMS[p]))
        return self.distortion if p == self.p else math.inf


@dataclass(frozen=True)
class CertificateRecord:
    """A certificate for one input by the method `name`: the distance in norm p is proved to be at least `radius`.

    It is the distance to class `target`, or to any class but the predicted one if this is None.
    """

    input: int
    target: int | None
    name: str
    p: float
    radius: float
    seconds: float

    @property
    def key(self) -> Key:
        """(input, target, method, norm): a certificate whose key is already stored is not computed again."""
        return self.input, self.target, self.name, self.p
