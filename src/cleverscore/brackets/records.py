"""What an attack or a proof found for one input, as it is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

NORMS = {1.0: "l1", 2.0: "l2", math.inf: "linf"}

Key = tuple[int, int | None, str, float]


@dataclass(frozen=True)
class AttackRecord:
    """What one attack found for one input: the distance is at most this.

    target          the class it had to reach, None for any other.
    name            of the attack, with a preset as in "ddn:quick".
    p, distortion   the norm it was run for and the length of its step in it; infinite where it failed.
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
        """What tells records apart."""
        return self.input, self.target, self.name, self.p

    def length(self, p: float) -> float:
        """The step's length in norm p, infinite where it is not known."""
        if p in NORMS:
            return float(getattr(self, NORMS[p]))
        return self.distortion if p == self.p else math.inf


@dataclass(frozen=True)
class CertificateRecord:
    """A proof for one input by the method `name`: the distance is at least `radius`."""

    input: int
    target: int | None
    name: str
    p: float
    radius: float
    seconds: float

    @property
    def key(self) -> Key:
        """What tells records apart."""
        return self.input, self.target, self.name, self.p
