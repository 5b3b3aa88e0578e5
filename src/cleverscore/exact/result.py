"""Exact: a value with a proved lower and upper bound."""

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
    """The result of an exhaustive search: a value with proved bounds.

    value       the value at `point`, checked in float64: `high` of a minimum, `low` of a maximum.
    low, high   proved bounds: the true value lies between them, up to the solver's tolerance.
    target      the class for which the value is attained.
    point       where the value is attained, in the image's shape: the nearest adversarial input, or the centre of the
                steepest cell.
    """

    value: float
    low: float
    high: float
    seconds: float
    target: int
    point: torch.Tensor = field(repr=False, compare=False)

    @property
    def closed(self) -> bool:
        """Whether the bounds agree; False if the time limit ended the search."""
        return math.isfinite(self.high) and self.high - self.low <= 3.0 * TOLERANCE * abs(self.high)


def checked_search(search: str, p: float) -> str:
    """The search, checked: "branching" for any norm, or "program" (mixed-integer) for p = 1 and inf."""
    if search not in (BRANCHING, PROGRAM):
        raise SettingError(f"search={search!r}: choose '{BRANCHING}' or '{PROGRAM}'")
    if search == PROGRAM and p == 2.0:
        raise SettingError(f"search='{PROGRAM}': the l2 ball is not linear; use search='{BRANCHING}'")
    return search
