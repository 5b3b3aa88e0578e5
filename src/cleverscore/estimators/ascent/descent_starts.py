"""The starts of descents to the boundary, and when there were enough of them.

The region of a class is bounded by many pieces of surface, and a descent ends at a crossing on one of them. Descents
are organised in groups.

The descents of a *far* group start at many distances from the input, spaced evenly in the logarithm: in networks that
are flat around their data, descents from nearby starts miss near crossings. (ReLU 256 x 6, linf: for three of 16
inputs, starts at up to 8 times the distance of the nearest known crossing missed crossings that are 3 to 16 times
nearer, and starts at 16 and 32 times this distance led to them.) The descents of a *jump* group start around the
nearest known crossings (iterated local search).

Within a group most descents are given up early (`CUTS`): 48 starts cost as much as 21 complete descents and find the
nearest crossing as often as 48 complete ones (six networks, 43 inputs, 240 descents each).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from cleverscore.estimators.ascent.boundary_descent import Cut

# The smallest and the largest distance of starts: of those of far groups from the input, and of those of jump groups
# from a crossing. The unit is the nearest crossing's distance.
START_LENGTHS, JUMP_LENGTHS = (0.5, 32.0), (0.1, 3.0)
NEAREST = 3  # crossings around which the starts of jump groups lie: around one alone, descents may keep leading to it
# Up to so many dimensions there are more starts, because gradients are cheap, and the smallest distance of starts is
# this one: a small region of another class can lie between the input and the crossing that descents found.
FEW_DIMENSIONS, FEW_SHORTEST = 32, 0.02
GOLDEN = 0.618  # lengths are shifted from group to group by this share of their spacing
CUTS = (Cut(0.3, 1 / 3), Cut(0.5, 0.4))  # of descents that begin anywhere
REFINING_CUTS = (Cut(0.25, 1 / 2), Cut(0.5, 1 / 2))  # of descents that begin near the boundary
# The search ends when `ENOUGH` far groups found the nearest crossing, each within 3% of its distance. Far groups do not
# start from known crossings: if three of them find the same one, they would also have found a nearer one that is as
# easy to find. Jump groups are not counted, because they tend to find the crossings from which they start.
ENOUGH, SAME = 3, 0.03
# Let the ratio be margin / ||gradient|| at the input over the nearest crossing's distance. The larger it is, the less
# gradients say about where the boundary is, and the more easily near crossings are missed. It was 2 to 80 for networks
# trained on squared error and 1 to 3 for those trained on cross-entropy; where crossings were missed by more than 2%,
# it was 2 or more. So one and a half times the ratio is the number of groups that have to find the nearest crossing,
# within the limits `ENOUGH` and `MOST_WANTED`.
GROUPS_PER_RATIO, MOST_WANTED = 1.5, 12
MOST_FAR_GROUPS = 2  # the largest number of far groups in a round after the first
# A score is reduced for crossings that were probably missed, by a share with two parts. The first part is
# `UNSEEN_PER_SPREAD` times the spread, which says by what share the second nearest of the crossings that far groups
# found is farther than the nearest crossing; it is `MOST_UNSEEN` at most. The second part is `UNSEEN_WHERE_CURVED` at
# most, where margin / ||gradient|| at the input differs from the nearest crossing's distance. On adversarially trained
# convolutional networks many crossings are about equally near, each group finds different ones, and longer attacks find
# nearer ones: without this correction up to 31% of their scores were above the attack's distance, with it 5%. (Twice
# the spread of the third nearest does as well there, but scores of easy networks then differ by 5% from seed to seed.)
# Where too few groups found the nearest crossing, two groups may find equally near crossings by chance, unless the
# distances are almost the same. Then the factor of the spread is `UNSETTLED_PER_SPREAD`.
UNSETTLED_PER_SPREAD = 15.0
UNSEEN_PER_SPREAD, MOST_UNSEEN, UNSEEN_WHERE_CURVED = 3.0, 0.06, 0.01
# The smallest first part where the search of corners found the nearest crossing and too few far groups did: in l1,
# crossings that move three or more coordinates may be nearer. (CNN with max-pools: one of 80 scores was 7% above the
# attack's distance without it.)
UNSEEN_BY_FAR_GROUPS = 0.045
GROUP_NUMBERS = 16  # each round has so many group numbers, more than it has groups


@dataclass(frozen=True)
class Group:
    """The starts of one group.

    number      the number of the group; lengths and random directions of its offsets depend on it.
    lengths     the length of each start's random offset, in units of the nearest crossing's distance.
    jumps       whether it is a jump group: its offsets lead from the nearest crossings, in turn, to the starts. Those
                of a far group lead from the input.
    """

    number: int
    lengths: tuple[float, ...]
    jumps: bool


@dataclass
class FarGroups:
    """The crossings that far groups found.

    first_order margin / ||gradient|| at the input.
    met         the distance of the nearest crossing that each group found, infinite if it found none.
    corners     the distance of the nearest crossing that the search of corners found (l1 only), infinite if none. For
                the correction (`unseen`) it is used like the result of two far groups: this search does not start from
                known crossings either, and it looks at all moves of one coordinate, so that a second one would find the
                same. `meetings` leaves it out.
    """

    first_order: float = math.inf
    met: list[float] = field(default_factory=list)
    corners: float = math.inf

    def wanted(self, nearest: float) -> int:
        """How many groups have to find the nearest crossing, which is at distance `nearest`, before the search may end.

        >>> [FarGroups(first_order).wanted(1.0) for first_order in (1.2, 2.2, 9.0)], FarGroups(1.0).wanted(math.inf)
        ([3, 4, 12], 3)
        """
        if not 0.0 < nearest < math.inf or math.isnan(self.first_order):
            return ENOUGH
        return math.ceil(min(max(GROUPS_PER_RATIO * self.first_order / nearest, ENOUGH), MOST_WANTED))

    def meetings(self, nearest: float) -> int:
        """How many groups found the nearest crossing, which is at distance `nearest`, or one at most 3% farther.

        >>> FarGroups(1.0, [1.0, 1.01, 1.2, 1.0]).meetings(1.0), FarGroups(1.0, [math.inf] * 9).meetings(math.inf)
        (3, 0)
        """
        return sum(distance <= (1.0 + SAME) * nearest for distance in self.met) if math.isfinite(nearest) else 0

    def settled(self, nearest: float) -> bool:
        """Whether enough groups found the nearest crossing."""
        return self.meetings(nearest) >= self.wanted(nearest)

    def unseen(self, nearest: float, settled: bool) -> float:
        """The share by which a score is reduced for crossings that were probably missed.

        nearest     the distance of the nearest crossing.
        settled     whether enough groups found it.

        >>> FarGroups(1.0, [1.0, 1.0, 1.0]).unseen(1.0, True), round(FarGroups(3.0, [1.01, 1.0]).unseen(1.0, True), 3)
        (0.0, 0.04)
        >>> [round(FarGroups(1.0, [1.0, second, 1.2]).unseen(1.0, settled=False), 3) for second in (1.0, 1.002, 1.01)]
        [0.0, 0.03, 0.06]
        """
        if not 0.0 < nearest < math.inf:
            return 0.0
        second = sorted((*self.met, self.corners, self.corners))[1]
        per_spread = UNSEEN_PER_SPREAD if settled else UNSETTLED_PER_SPREAD
        by_spread = min(per_spread * max(second / nearest - 1.0, 0.0), MOST_UNSEEN)
        if not settled and self.corners <= (1.0 + SAME) * nearest:
            by_spread = max(by_spread, UNSEEN_BY_FAR_GROUPS)
        curved = 1.0 if math.isnan(self.first_order) else min(abs(self.first_order / nearest - 1.0), 1.0)
        return by_spread + UNSEEN_WHERE_CURVED * curved


def shortest_start(dim: int) -> float:
    """The smallest length of a far group, in units of the nearest crossing's distance.

    >>> shortest_start(2), shortest_start(784)
    (0.02, 0.5)
    """
    return FEW_SHORTEST if dim <= FEW_DIMENSIONS else START_LENGTHS[0]


def groups(
    round_number: int, count: int, wanted: int, met: int, shortest: float = START_LENGTHS[0]
) -> tuple[Group, ...]:
    """The groups of one round, with `count` starts each; no groups if the search may end.

    round_number    the number of the round, from 0.
    wanted      number of far groups that have to find the nearest crossing.
    met         number of far groups that found it.
    shortest    the smallest length of a far group, in units of the nearest crossing's distance.

    The first round has `wanted` far groups. The second round always has a jump group. While too few far groups have
    found the nearest crossing, every later round has the missing number of far groups, two at most, and one jump group.

    >>> [(group.number, group.jumps) for number in (0, 1, 2) for group in groups(number, 4, wanted=2, met=1)]
    [(0, False), (1, False), (16, False), (17, True), (32, False), (33, True)]
    >>> [len(groups(number, 4, wanted=2, met=2)) for number in (1, 2)]
    [1, 0]
    """
    missing = wanted if round_number == 0 else min(max(wanted - met, 0), MOST_FAR_GROUPS)
    first = GROUP_NUMBERS * round_number
    far = [_group(first + place, count, (shortest, START_LENGTHS[1])) for place in range(missing)]
    jumps = (
        [_group(first + missing, count, JUMP_LENGTHS, jumps=True)]
        if round_number == 1 or (round_number and missing)
        else []
    )
    return (*far, *jumps)


def _group(number: int, count: int, lengths: tuple[float, float], jumps: bool = False) -> Group:
    shortest, longest = lengths
    shares = ((place + (number * GOLDEN) % 1.0) / count for place in range(count))
    return Group(number, tuple(shortest * math.exp(share * math.log(longest / shortest)) for share in shares), jumps)


def sparse(offsets: torch.Tensor, number: int) -> torch.Tensor:
    """Offsets (n, d) with all but the largest coordinates of each set to zero.

    Between 1 and d coordinates of an offset remain; these numbers are spread evenly in the logarithm over the n
    offsets, and differ from group to group (`number` is that of the group).

    In l1 near crossings move few coordinates, and a projection onto the l1 ball removes dense noise at once. (CNN with
    max-pools: the nearest crossings of 16 inputs were 6.3% too far on average with dense starts, 1.4% with these.)

    >>> (sparse(torch.rand(4, 100), number=0) != 0).sum(1).tolist()
    [1, 17, 3, 51]
    """
    count, dim = offsets.shape
    ranks = offsets.abs().argsort(1, descending=True).argsort(1)
    kept = [round(dim ** ((place * GOLDEN + number * GOLDEN**2) % 1.0)) for place in range(count)]
    return torch.where(ranks < torch.tensor(kept, device=offsets.device)[:, None], offsets, 0.0)


def descent_gradients(count: int, steps: int) -> int:
    """The number of gradients of a group of `count` descents with this many steps, of which `CUTS` gives up most early.

    >>> descent_gradients(12, 40)
    216
    """
    total, last, left = 0, 0, count
    for cut in CUTS:
        at = round(cut.at * steps)
        total, last, left = total + left * (at - last), at, math.ceil(cut.share * left - 1e-6)
    return total + left * (steps - last)
