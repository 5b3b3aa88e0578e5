"""Exact: a value with a proved lower and upper bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from cleverscore.errors import SettingError

# Relative. HiGHS, scipy's solver, works to 1e-6; margins are scaled to 1 at the input, gradients so that 1 bounds them.
TOLERANCE = 1e-5
BRANCHING, PROGRAM = "branching", "program"


@dataclass(frozen=True)
class Exact:
    """A minimum distortion or a local Lipschitz constant, with bounds.

    value       the value at `point`, in float64: equal to `high` for a distortion, to `low` for a Lipschitz constant.
    low, high   proved bounds: the true value lies between them, up to the solver's tolerance. A search without a proof
                has the trivial bound 0 or infinity.
    target      the target class for which the value is attained.
    point       where the value is attained, in the image's shape: the nearest adversarial input found, or a point where
                the gradient is largest.
    """

    value: float
    low: float
    high: float
    seconds: float
    target: int
    point: torch.Tensor = field(repr=False, compare=False)

    @property
    def closed(self) -> bool:
        """Whether the bounds agree up to the tolerance; False if time ran out, or if the search proves nothing."""
        return math.isfinite(self.high) and self.high - self.low <= 3.0 * TOLERANCE * abs(self.high)


def checked_search(search: str, p: float) -> str:
    """The name of a search, checked: "branching" for p = 1, 2 and inf, "program" (mixed-integer) for p = 1 and inf."""
    if search not in (BRANCHING, PROGRAM):
        raise SettingError(f"search={search!r}: choose '{BRANCHING}' or '{PROGRAM}'")
    if search == PROGRAM and p == 2.0:
        raise SettingError(f"search='{PROGRAM}': the l2 ball is not linear; use search='{BRANCHING}'")
    return search
