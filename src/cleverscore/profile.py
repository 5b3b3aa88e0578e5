"""The radial profile L(s) = max ||grad g||_q over B_p(x0, s), and the distances that follow from it.

Along a straight way out of x0 the margin falls by at most L(s) ds at distance s, so no point nearer than the r with
    margin = integral from 0 to r of L(s) ds
can change the decision. Dividing the margin by L(R) is the special case of one radius; its self-consistent variant is
the largest r with r L(r) <= margin. NumPy only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Profile:
    """Gradient norms found in balls of growing radius around one input, for one target.

    radii       (m,), ascending; the first is 0.
    norms       (m,), the largest norm found within each radius, never falling: what lies in a ball lies in larger ones.
    gradients   what it cost, in gradients.
    outcome     how the search ended: the value of a `FitOutcome`.
    met         distance of the nearest point of the target's class that the search came across, infinite if of none.
    """

    radii: Array
    norms: Array
    gradients: int
    outcome: str
    met: float = math.inf

    @classmethod
    def of(cls, radii: Array, norms: Array, *, gradients: int, outcome: str, met: float = math.inf) -> Profile:
        """Sort by radius and let larger radii inherit what smaller ones found; NaN is inherited too."""
        order = np.argsort(radii, kind="stable")
        return cls(radii[order], np.maximum.accumulate(norms[order]), gradients, outcome, met)

    def at(self, radius: float) -> float:
        """An upper value of L at a radius: that of the next radius that was looked at."""
        place = int(np.searchsorted(self.radii, radius * (1.0 - 1e-12)))
        return float(self.norms[min(place, len(self.norms) - 1)])

    def distance(self, margin: float, limit: float) -> float:
        """The r <= limit with margin = integral of L, from upper sums: between two radii L is taken at the larger one.

        Where the search met the other class nearer than that, L was missed on the way, and that distance counts.

        >>> Profile(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 4.0]), 0, "").distance(4.0, 5.0)
        1.5
        """
        # NaN first: a broken gradient stays broken.
        return min(_crossing(self.radii, self.norms[1:], self.norms[-1], margin, limit), self.met)

    def mean_norm(self, radius: float) -> float:
        """The mean of L over radii from 0 to `radius`, by the same upper sums."""
        edges = np.append(self.radii[self.radii < radius], radius)
        heights = np.array([self.at(float(edge)) for edge in edges[1:]])
        return float(np.sum(np.diff(edges) * heights) / radius)

    def expected_distance(self, margin: float, limit: float) -> float:
        """The same with L linear between radii: where the crossing will be once radii are dense."""
        return _crossing(self.radii, 0.5 * (self.norms[1:] + self.norms[:-1]), self.norms[-1], margin, limit)

    def self_consistent_radius(self, margin: float, limit: float) -> float:
        """The largest r <= limit with r L(r) <= margin, L taken at the next larger radius.

        >>> Profile(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 4.0]), 0, "").self_consistent_radius(4.0, 5.0)
        1.0
        """
        if margin <= 0.0:
            return 0.0
        ends = np.append(self.radii[1:], np.inf)
        with np.errstate(divide="ignore"):
            reach = margin / np.append(self.norms[1:], self.norms[-1])
        # Within (radius i, radius i + 1] the product is r times the norm at the upper end.
        fitting = np.where(reach > self.radii, np.minimum(reach, ends), 0.0)
        return float(min(fitting.max(), limit))


def _crossing(radii: Array, heights: Array, beyond: float, margin: float, limit: float) -> float:
    if margin <= 0.0:
        return 0.0
    areas = np.cumsum(np.diff(radii) * heights)
    if np.isnan(areas).any() or np.isnan(beyond):
        return float("nan")
    place = int(np.searchsorted(areas, margin))
    done = areas[place - 1] if place else 0.0
    height = heights[place] if place < len(heights) else beyond
    # Past the last radius the norm is at least the last one.
    reached = radii[place] + ((margin - done) / height if height > 0.0 else np.inf)
    return float(min(reached, limit))
