"""Searches for the largest radius at which lower bounds of margins are positive, for many inputs at once.

The lower bound m(r) of a margin over the ball of radius r equals the margin at r = 0 and decreases with r. The loss,
margin - m(r), is approximately a power of r. So log r is interpolated as a function of log(loss), and m is evaluated
where the loss should equal the margin, which is the root of m. The search ends when the largest radius with m > 0 and
the smallest one with m <= 0 differ by the precision. A precision of 1e-3 usually takes six evaluations, each of them a
pass through the network, where bisection takes twelve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cleverscore.certificates.request import Floats
from cleverscore.threads import pool

MOST_EVALUATIONS = 60
# The first guess is margin / slope times this for every activation. On the shipped networks the radius is 0.5 of
# margin / slope with one activation and 0.09 of it with eight.
LOOSER = 0.7
GROWTH = 4.0  # while no radius has failed, a radius that held is multiplied by at most this
STRIDE = 3.0  # the factor by which steps away from an end of the bracket grow while they do not end the search


@dataclass
class RadiusSearch:
    """The search for one radius at which the bounds of several targets are all positive.

    margins         (T,): the margins at the input, m(0).
    slopes          (T,): how fast each bound decreases at r = 0, -m'(0). For guesses only: any positive numbers give a
                    valid result.
    limit           the largest radius that is tried.
    precision       the relative precision of the radius.
    depth           number of activations between input and output, for the first guess.
    low, high       the bracket: the largest radius at which all bounds were positive, the smallest at which one was
                    not.
    best            (T,): for each target, the largest evaluated radius at which its bound was positive.
    evaluations     the radii evaluated so far, each with its bounds (T,).
    """

    margins: Floats
    slopes: Floats
    limit: float
    precision: float
    depth: int = 1
    low: float = 0.0
    high: float = math.inf
    best: Floats = field(init=False)
    evaluations: list[tuple[float, Floats]] = field(default_factory=list)
    feasible: bool = True  # whether all bounds were positive at the last evaluation
    streak: int = 0  # the number of last evaluations in a row with this result

    def __post_init__(self) -> None:
        self.best = np.zeros_like(self.margins)
        if not bool((self.margins > 0).all()):
            self.high = 0.0

    @property
    def done(self) -> bool:
        """Whether the radius has the requested precision or cannot be improved, or MOST_EVALUATIONS were made."""
        return (
            self.low >= self.limit
            or self.high <= self.low * (1.0 + self.precision)
            or self.high <= np.finfo(np.float64).tiny
            or len(self.evaluations) >= MOST_EVALUATIONS
        )

    def next(self) -> float:
        """The radius to evaluate next."""
        guess = min(self._root(target) for target in range(len(self.margins)))
        # A guess near an end of the bracket is moved to about one precision away from that end: if the root lies
        # between them, the search is over. If not, that end moves, and the next step is larger.
        step = min(0.95 * self.precision * STRIDE ** max(0, self.streak - 1), GROWTH - 1.0)
        nearest, guess = self.low * (1.0 + step), guess * (1.0 - 0.4 * self.precision)
        if math.isinf(self.high):
            most = GROWTH * self.low if self.low > 0 else math.inf
            return min(max(guess, nearest), most, self.limit)
        farthest, middle = self.high / (1.0 + step), 0.5 * (self.low + self.high)
        if self.feasible and guess < nearest:
            return min(nearest, middle) if self.streak > 1 else nearest
        if not self.feasible and guess > farthest:
            return max(farthest, middle) if self.streak > 1 else farthest
        return float(np.clip(guess, self.low + 0.02 * (middle - self.low), self.high - 0.02 * (self.high - middle)))

    def note(self, radius: float, bounds: Floats) -> None:
        """Record the bounds at a radius, one per target (T,)."""
        self.evaluations.append((radius, bounds))
        holds = bounds > 0
        self.streak = self.streak + 1 if self.feasible == bool(holds.all()) else 1
        self.feasible = bool(holds.all())
        self.best = np.where(holds, np.maximum(self.best, radius), self.best)
        if bool(holds.all()):
            self.low = max(self.low, radius)
        else:
            self.high = min(self.high, radius)

    def _root(self, target: int) -> float:
        """The radius at which the bound of one target is expected to reach 0."""
        margin, slope = float(self.margins[target]), float(self.slopes[target])
        points = [
            (math.log((margin - float(bounds[target])) / margin), math.log(radius))
            for radius, bounds in self.evaluations
            if math.isfinite(bounds[target]) and bounds[target] < margin
        ]
        points = sorted(dict(points).items(), key=lambda point: abs(point[0]))[:3]
        if not points:
            return margin / slope * LOOSER**self.depth
        if len(points) == 1:
            loss, place = points[0]
            # The exponent of the power grows with log(loss / (slope * radius)).
            steeper = loss + math.log(margin / slope) - place
            return math.exp(place - loss / (1.0 + 1.5 * max(steeper, 0.0)))
        straight = _interpolated(points[:2])
        root = _interpolated(points)
        # The parabola through three points is not used where it is far from the straight line through two.
        return math.exp(root if abs(root - straight) < 0.1 else straight)


def _interpolated(points: list[tuple[float, float]]) -> float:
    """The value at t = 0 of the polynomial through points (t, y)."""
    return sum(y * math.prod(-other / (t - other) for other, _ in points if other != t) for t, y in points)


def largest_radii(
    searches: list[RadiusSearch],
    evaluate: Callable[[list[int], Floats], list[Floats]],
    *,
    together: int,
    workers: int = 1,
) -> None:
    """Run all searches to their end on several threads, `together` searches at a time on each.

    `evaluate` gets the positions of some searches and a radius for each, and returns the bounds (T,) of each.
    """

    def run(some: list[int]) -> None:
        while waiting := [i for i in some if not searches[i].done]:
            radii = np.array([searches[i].next() for i in waiting])
            for i, radius, bounds in zip(waiting, radii, evaluate(waiting, radii), strict=True):
                searches[i].note(float(radius), bounds)

    size = max(1, min(together, -(-len(searches) // workers)))
    groups = [list(range(start, min(start + size, len(searches)))) for start in range(0, len(searches), size)]
    if workers == 1:
        for group in groups:
            run(group)
        return
    with pool(workers) as executor:
        for _ in executor.map(run, groups):
            pass
