"""The radius "auto": a useful default for every norm, proportional to the width of the input box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cleverscore.errors import SettingError
from cleverscore.norms import parse_norm

AUTO = "auto"
L2_RADIUS = 5.0  # the paper's (section 5.1)
LINF_RADIUS = 0.3  # the largest radius of usual attacks on images; with 5, the ball would hold every valid image
BYTE_RANGE = 255.0
LARGEST_USUAL_INPUT = 20.0  # normalised inputs seldom have larger values; pixels from 0 to 255 nearly always do


def auto_radius(p: float | str, width: float = 1.0) -> float:
    """The radius 0.3 (5 / 0.3)^(2/p) times `width`, the width of the input box.

    For a box from 0 to 1 this is 83.3 in l1, 5 in l2 and 0.3 in linf. With these radii and pictures of 28 x 28 pixels,
    random points of the three balls have about the same l2 distance from the centre, 4 to 5.

    >>> [round(auto_radius(p), 3) for p in (1, 2, 4, "inf")]
    [83.333, 5.0, 1.225, 0.3]
    >>> auto_radius(2, width=255.0)
    1275.0
    """
    return float(LINF_RADIUS * (L2_RADIUS / LINF_RADIUS) ** (2.0 / parse_norm(p)) * width)


def box_width(bounds: Sequence[float] | None, low: float, high: float) -> float:
    """The width of the input box; without a box, 255 for inputs that look like pixels from 0 to 255, else 1.

    low, high   the smallest and the largest value of the inputs.

    >>> box_width((-1.0, 1.0), -0.7, 0.9), box_width(None, 0.0, 251.0), box_width(None, -2.1, 2.6)
    (2.0, 255.0, 1.0)
    """
    if bounds is not None:
        return float(bounds[1] - bounds[0])
    return BYTE_RANGE if looks_like_bytes(low, high) else 1.0


def looks_like_bytes(low: float, high: float) -> bool:
    """Whether inputs whose smallest value is `low` and whose largest is `high` are probably pixels from 0 to 255."""
    return low >= 0.0 and LARGEST_USUAL_INPUT < high <= BYTE_RANGE


def resolved_radius(radius: Any, p: float | str, width: float) -> float | None:
    """The radius as a number: "auto" becomes `auto_radius(p, width)`; None stays None, for the method's default."""
    if radius is None:
        return None
    if isinstance(radius, str):
        if radius != AUTO:
            raise SettingError(
                f"radius={radius!r}: give a number, or 'auto', which is {auto_radius(p, width):g} in this norm"
            )
        return auto_radius(p, width)
    return float(radius)
