"""The radial profile: how much the margin can decrease between neighbouring spheres around an input. NumPy only.

Let x0 be the input and g = f_c - f_j the margin. Shares 0 = e_0 < e_1 < ... < e_K = 1 divide the ball of radius r into
K shells. The largest fall across shell k is
    M_k(r) = max over ||v||_p <= r of g(x0 + e_(k-1) v) - g(x0 + e_k v).
Along a straight line that leaves the class at distance r, g falls by all of g(x0), so M_1(r) + ... + M_K(r) >= g(x0).
Each M_k grows with r, hence the smallest r at which the sum is g(x0) is a lower bound of the distance to class j, for
every choice of shells. For K = 1 it is the distance itself; for ever thinner shells the sum becomes the integral of the
steepest radial slope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RadialProfile:
    """The result of a sharp search for one input and one target class.

    distance    the score: the r at which the falls add up to the margin, reduced for crossings that were probably
                missed, at least 89% of `upper` and at most the radius. Where a gradient is not finite (see `outcome`),
                the score is NaN instead.
    low         a cautious guess of the score that a longer search would give.
    upper       distance of the nearest point of the target's class that the search found, infinite if it found none.
    falls       (K,), the largest fall of the margin found across each shell, the innermost first; their sum is the
                margin, or less where `distance` is the radius.
    edges       (K,), the outer ends of the shells, as shares of `distance`.
    gradients   the number of gradients.
    outcome     how the search ended: the value of a `FitOutcome`.

    >>> profile = RadialProfile(2.0, 1.9, 2.2, np.array([1.0, 3.0]), (0.5, 1.0), 100, "ascended")
    >>> profile.radii, profile.slopes
    (array([0., 1., 2.]), array([1., 3.]))
    """

    distance: float
    low: float
    upper: float
    falls: Array
    edges: tuple[float, ...]
    gradients: int
    outcome: str

    @property
    def radii(self) -> Array:
        """The radii at which shells begin and end: (K + 1,), from 0 to `distance`."""
        return self.distance * np.array([0.0, *self.edges])

    @property
    def slopes(self) -> Array:
        """The fall per unit of length in each shell, (K,); NaN if `distance` is 0.

        Where `distance` is not reduced for missed crossings, no slope exceeds the local Lipschitz constant.
        """
        if not self.distance > 0.0 or not len(self.falls):
            return np.full(len(self.falls), math.nan)
        return self.falls / np.diff(self.radii)

    @property
    def mean_slope(self) -> float:
        """The mean fall per unit of length from the input to `distance`; NaN if this is 0 or there are no falls."""
        return float(self.falls.sum() / self.distance) if self.distance > 0.0 and len(self.falls) else math.nan
