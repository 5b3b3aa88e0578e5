"""Which points around an input count: the whole ball, or only its part in the box of valid inputs.

In the box (low to high for every coordinate), a line x0 + t u, t >= 0, cannot decrease a coordinate that is at its
lower bound, nor increase one at its upper bound. Along it, coordinate i decreases the margin only if u_i and the
component g_i of the margin's gradient have opposite signs. So g_i counts if g_i < 0 and x0_i < high, or if g_i > 0 and
x0_i > low. Let `masked g` be the gradient with all other components set to 0. Then, with the maximum over the part of
the ball in the box,
    margin(x0 + r u) >= margin(x0) - r max ||masked g||_q
for every u with ||u||_p = 1 and every r such that x0 + r u lies in the ball and in the box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cleverscore.errors import SettingError

REGIONS = ("ball", "box")

Box = tuple[float, float]


def check_region(region: str) -> None:
    """Raise a SettingError for an unknown region."""
    if region not in REGIONS:
        raise SettingError(f"region={region!r}: choose one of {', '.join(map(repr, REGIONS))}")


def box_of(region: str, bounds: Box | None) -> Box | None:
    """The box that points must lie in: `bounds` for region="box", None for region="ball".

    A SettingError if the region is "box" and there are no bounds.

    >>> box_of("ball", (0.0, 1.0)), box_of("box", (0.0, 1.0))
    (None, (0.0, 1.0))
    """
    check_region(region)
    if region == "ball":
        return None
    if bounds is None:
        raise SettingError(
            "region='box' needs the bounds of valid inputs: cs.Classifier(model, bounds=(0.0, 1.0)), or --bounds 0,1; "
            "or use region='ball'"
        )
    return bounds


@dataclass(frozen=True)
class Moves:
    """Which components of a margin's gradient count for an input in its box: those along which it can lower the margin.

    A component counts if it lies between `least` and `most`, both (*input_shape).

    least       0 where the input is at its upper bound, else -inf.
    most        0 where the input is at its lower bound, else inf.
    """

    least: torch.Tensor
    most: torch.Tensor

    @classmethod
    def of(cls, x: torch.Tensor, box: Box | None) -> Moves | None:
        """The moves of one input; None if every component counts: without a box, or with no coordinate at a bound.

        >>> Moves.of(torch.tensor([0.0, 0.5, 1.0]), (0.0, 1.0)).masked(torch.tensor([[3.0, 3.0, 3.0]]))
        tensor([[0., 3., 3.]])
        """
        if box is None:
            return None
        low, high = box
        at_low, at_high = x <= low, x >= high
        if not bool((at_low | at_high).any()):
            return None
        free = torch.full_like(x, math.inf)
        return cls(torch.where(at_high, 0.0, -free), torch.where(at_low, 0.0, free))

    def masked(self, gradients: torch.Tensor) -> torch.Tensor:
        """Gradients (n, *input_shape) with 0 for components that do not count; NaN stays NaN."""
        return gradients.clamp(self.least, self.most)
