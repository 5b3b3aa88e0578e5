"""Exact: a number with the two ends of its proof."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from cleverscore.errors import SettingError

# HiGHS works to 1e-6 in margins that are scaled to 1 at the input and in gradients that are scaled to their bound.
TOLERANCE = 1e-5
BRANCHING, PROGRAM = "branching", "program"


@dataclass(frozen=True)
class Exact:
    """The answer of a search that covers everything.

    value       what was found and checked at `point` in float64: `high` of a minimum, `low` of a maximum.
    low, high   the proof: the true value lies between, up to the solver's tolerance.
    target      the class that attains it.
    point       where it is attained, of the image's shape: the nearest adversarial input, or the centre of the steepest
                cell.
    """

    value: float
    low: float
    high: float
    seconds: float
    target: int
    point: torch.Tensor = field(repr=False, compare=False)

    @property
    def closed(self) -> bool:
        """Whether both ends meet; False where the time ran out first."""
        return math.isfinite(self.high) and self.high - self.low <= 3.0 * TOLERANCE * abs(self.high)


def checked_search(search: str, p: float) -> str:
    """How to search: branch and bound for any norm, or a mixed-integer program for the linear ones."""
    if search not in (BRANCHING, PROGRAM):
        raise SettingError(f"search={search!r}: choose '{BRANCHING}' or '{PROGRAM}'")
    if search == PROGRAM and p == 2.0:
        raise SettingError(f"search='{PROGRAM}': the l2 ball is not linear; use search='{BRANCHING}'")
    return search
