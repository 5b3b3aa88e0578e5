"""Which points around an input count: the whole ball, or only its part in the box of valid inputs.

In the box an input moves along x0 + t u, which never lowers a coordinate that is at its lower bound and never raises
one that is at its upper bound. A component of the margin's gradient g lowers the margin only if u_i has the other sign
than g_i, so g_i counts if g_i < 0 and x0_i < high, or g_i > 0 and x0_i > low. With all others set to 0,
    margin(x0 + r u) >= margin(x0) - r max ||masked g||_q   for every unit vector u that stays in the box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cleverscore.errors import SettingError

REGIONS = ("ball", "box")

Box = tuple[float, float]


def check_region(region: str) -> None:
    """Refuse a region that does not exist."""
    if region not in REGIONS:
        raise SettingError(f"region={region!r}: choose one of {', '.join(map(repr, REGIONS))}")


def box_of(region: str, bounds: Box | None) -> Box | None:
    """The box that points must lie in, None for the whole ball.

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
    """Which components of a gradient at any point count for an input that must stay in its box.

    least, most     (*input_shape): 0 where the input is at its upper, its lower bound; else -inf and inf.
    """

    least: torch.Tensor
    most: torch.Tensor

    @classmethod
    def of(cls, x: torch.Tensor, box: Box | None) -> Moves | None:
        """The moves of one input; None where all are valid.

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
        """Gradients (n, *input_shape) with 0 for components that no valid move descends along; NaN stays NaN."""
        return gradients.clamp(self.least, self.most)
