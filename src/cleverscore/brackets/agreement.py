"""Do proof, score and attack agree? The only place that decides whether a score is above an attack or below a proof."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Marks = npt.NDArray[np.bool_]

CROSSED = 1e-3  # relative: larger than the rounding errors of a proof and an attack in float32 together
SLACK = 1e-4  # relative: an attack ends just beyond the boundary, and a score may be exact


def above_attack(scores: Array, attacked: Array) -> Marks:
    """Whether each score lies above the best attack; False where either is NaN.

    >>> above_attack(np.array([1.1, 1.00001, 5.0]), np.array([1.0, 1.0, np.inf]))
    array([ True, False, False])
    """
    return np.asarray(scores > attacked * (1.0 + SLACK))


def below_certificate(scores: Array, certified: Array, capped: Marks) -> Marks:
    """Whether each score lies below its certified radius; False for capped scores, and where either is NaN."""
    return np.asarray((scores < certified * (1.0 - SLACK)) & ~capped)


def share_above_attack(scores: Array, attacked: Array) -> float:
    """Share of scores above the attack, among those where an attack succeeded; NaN if none did."""
    known = np.isfinite(attacked) & ~np.isnan(scores)
    return float(above_attack(scores, attacked)[known].mean()) if known.any() else math.nan


def share_certified(certified: Array) -> float:
    """Share of certified radii above 0; NaN if none was computed."""
    known = ~np.isnan(certified)
    return float((certified[known] > 0.0).mean()) if known.any() else math.nan


def crossed_words(certified: Array, attacked: Array) -> list[str]:
    """A list with one sentence if attacks succeeded inside certified radii, which must not happen; else empty."""
    count = int((certified > attacked * (1.0 + CROSSED)).sum())
    if not count:
        return []
    return [
        f"! crossed ({count}): an attack lies inside a certified radius, so one of them is wrong; check that the model "
        "computes the same in every call, and report it"
    ]
