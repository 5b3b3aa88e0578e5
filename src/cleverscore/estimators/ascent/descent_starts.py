"""Where descents to the boundary begin, and when there were enough.

The region of a class is bounded by many pieces of surface, and a descent ends on one of them. A round therefore begins
at many distances from the input, evenly in the logarithm: networks that are flat at their data hide near crossings from
all starts that are near. On ReLU 256 x 6 (linf) starts at up to 8 times the distance of the crossings known missed ones
that are 3 to 16 times nearer for three of 16 inputs; starts at 16 and 32 times led to them. From the second round on,
every other start lies around one of the nearest crossings (iterated local search).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Distances from the input, and from a crossing, in units of the nearest crossing's distance.
START_LENGTHS, JUMP_LENGTHS = (0.5, 32.0), (0.1, 3.0)
NEAREST = 3  # crossings around which starts lie: one alone is a trap
GOLDEN = 0.618  # lengths are shifted from round to round by this share of their spacing
# Rounds end when so many descents, as a share of one round's starts, met the nearest crossing, within 2%: where it is
# met again and again, a nearer one that is as easy to meet would have been met, too.
ENOUGH, SAME = 1.25, 0.02


@dataclass(frozen=True)
class Start:
    """One start of a round.

    length  of its random offset, in units of the nearest crossing's distance.
    around  from which of the nearest crossings the offset is taken, 0 being the nearest; None for the input.
    """

    length: float
    around: int | None


def starts(number: int, count: int) -> list[Start]:
    """The starts of round `number`, 1 being the first.

    >>> [start.length for start in starts(1, 2)] == [start.length for start in starts(1, 2)]
    True
    >>> [start.around for start in starts(2, 6)]
    [None, 0, None, 1, None, 2]
    """
    found = []
    for place in range(count):
        share = (place + (number * GOLDEN) % 1.0) / count
        around = place // 2 % NEAREST if number > 1 and place % 2 else None
        shortest, longest = START_LENGTHS if around is None else JUMP_LENGTHS
        found.append(Start(shortest * math.exp(share * math.log(longest / shortest)), around))
    return found


def settled(distances: Sequence[float], nearest: float, count: int) -> bool:
    """Whether enough of all descents so far met the nearest crossing, with `count` starts in a round.

    >>> settled([1.0, 1.01, 2.0, 1.01, 1.0, 1.0], 1.0, count=4), settled([math.inf] * 9, math.inf, count=4)
    (True, False)
    """
    met = sum(distance <= (1.0 + SAME) * nearest for distance in distances)
    return math.isfinite(nearest) and met >= ENOUGH * count
