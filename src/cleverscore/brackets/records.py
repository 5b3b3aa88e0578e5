"""Records of one attack or certificate of one input, as runs store them."""

from __future__ import annotations

import math
from dataclasses import dataclass

NORMS = {1.0: "l1", 2.0: "l2", math.inf: "linf"}

Key = tuple[int, int | None, str, float]


@dataclass(frozen=True)
class AttackRecord:
    """The result of one attack on one input: an upper bound of the distance.

    target          the class that the attack had to reach, None for any other class.
    name            the attack, with a preset as in "ddn:quick".
    p, distortion   the norm of the attack, and its distance in this norm; infinite if it failed.
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
        """The key of a record: records with equal keys are the same."""
        return self.input, self.target, self.name, self.p

    def length(self, p: float) -> float:
        """The distance of the adversarial input in norm p, infinite if unknown."""
        if p in NORMS:
            return float(getattr(self, NORMS[p]))
        return self.distortion if p == self.p else math.inf


@dataclass(frozen=True)
class CertificateRecord:
    """A certificate for one input by the method `name`: the distance is proved to be at least `radius`."""

    input: int
    target: int | None
    name: str
    p: float
    radius: float
    seconds: float

    @property
    def key(self) -> Key:
        """The key of a record: records with equal keys are the same."""
        return self.input, self.target, self.name, self.p
