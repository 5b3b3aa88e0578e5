"""The largest radius at which a bound still holds, for many inputs at once.

A bound m(r) starts at the margin, falls with r, and bends down: m(r) is close to margin - slope * r - bend * r^2 near its
root. Each look at m gives a better parabola; the last looks are just left and just right of its root, so that five or
six are enough for a precision of 1e-3 where bisection takes twelve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cleverscore.bounds.questions import Floats

MOST_LOOKS = 60
GROWTH = 4.0  # a radius that held is raised at most so much at once


@dataclass
class Track:
    """One search: several bounds (targets) that share a radius; they hold together or not.

    margins   (T,): m(0).
    slopes    (T,): -m'(0), a first guess; any positive number is sound.
    """

    margins: Floats
    slopes: Floats
    limit: float
    precision: float
    low: float = 0.0
    high: float = math.inf
    at_low: Floats = field(init=False)
    at_high: Floats | None = None
    best: Floats = field(init=False)  # (T,): the largest radius at which each bound was seen to hold

    def __post_init__(self) -> None:
        self.at_low = self.margins
        self.best = np.zeros_like(self.margins)
        self.looks = 0
        if not np.all(self.margins > 0):
            self.high = 0.0

    @property
    def done(self) -> bool:
        """Whether the radius is known to the wanted precision, or cannot be found any better."""
        return (
            self.low >= self.limit
            or self.high <= self.low * (1.0 + self.precision)
            or self.high <= np.finfo(np.float64).tiny
            or self.looks >= MOST_LOOKS
        )

    def next(self) -> float:
        """The radius to look at next."""
        if math.isinf(self.high):
            guess = float(np.min(_root(self.margins, self.slopes, self.low, self.at_low)))
            if self.looks == 0:
                guess *= 0.6  # bounds are looser than the gradient at the input says
            least = self.low * (1.0 + 0.5 * self.precision)
            most = GROWTH * self.low if self.low > 0 else math.inf
            return float(min(max(guess, least), most, self.limit))
        if self.at_high is None or self.looks % 8 == 7:  # no number to go by, or a model that does not help: halve
            return 0.5 * (self.low + self.high)
        if self.low == 0.0:
            guess = float(np.min(_root(self.margins, self.slopes, self.high, self.at_high)))
            return float(np.clip(guess * (1.0 - 0.4 * self.precision), 0.02 * self.high, 0.98 * self.high))
        guess = float(np.min(_between(self.margins, self.low, self.at_low, self.high, self.at_high)))
        half = 0.4 * self.precision * guess
        if guess - half > self.low * (1.0 + 0.2 * self.precision):
            guess -= half
        else:
            guess = max(guess, self.low) + half
        inside = 0.02 * (self.high - self.low)
        return float(np.clip(guess, self.low + inside, self.high - inside))

    def note(self, radius: float, bounds: Floats) -> None:
        """What the bounds (T,) are at a radius."""
        self.looks += 1
        holds = bounds > 0
        self.best = np.where(holds, np.maximum(self.best, radius), self.best)
        if bool(holds.all()):
            if radius > self.low:
                self.low, self.at_low = radius, bounds
        elif radius < self.high:
            self.high = radius
            self.at_high = bounds if bool(np.isfinite(bounds).all()) else None


def _root(margins: Floats, slopes: Floats, radius: float, values: Floats) -> Floats:
    """Roots of margin - slope r - bend r^2 through m(radius) = values; a straight line where that does not bend down."""
    if radius == 0.0:
        return margins / slopes
    bends = (margins - slopes * radius - values) / radius**2
    straight = (margins - values) / radius
    curved = 2.0 * margins / (slopes + np.sqrt(np.maximum(slopes**2 + 4.0 * bends * margins, 0.0)))
    with np.errstate(divide="ignore", invalid="ignore"):
        line = np.where(straight > 0, margins / straight, np.inf)
    return np.where((bends >= 0) & np.isfinite(curved), curved, line)


def _between(margins: Floats, low: float, at_low: Floats, high: float, at_high: Floats) -> Floats:
    """Roots between two looks, of the parabola through them and m(0); bounds that hold at both have none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        chord = low + (high - low) * at_low / (at_low - at_high)
        # Newton's form through 0, low, high; one correction of the chord by the third point.
        first = (at_low - margins) / low
        second = ((at_high - at_low) / (high - low) - first) / high
        value = margins + first * chord + second * chord * (chord - low)
        slope = first + second * (2.0 * chord - low)
        curved = chord - value / slope
    curved = np.where((curved > low) & (curved < high), curved, chord)
    return np.where(at_high < 0, curved, high)


def largest_radii(
    tracks: list[Track], look: Callable[[list[int], Floats], list[Floats]], *, together: int
) -> None:
    """Run searches to their end; `look` gives the bounds of some tracks (numbers) at a radius each."""
    while waiting := [i for i, track in enumerate(tracks) if not track.done]:
        for start in range(0, len(waiting), together):
            some = waiting[start : start + together]
            radii = np.array([tracks[i].next() for i in some])
            for i, radius, bounds in zip(some, radii, look(some, radii), strict=True):
                tracks[i].note(float(radius), bounds)
