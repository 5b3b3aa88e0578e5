"""The search for the nearest crossings of one input; a crossing is a point where a target class wins.

1. A descent from the input towards every target finds a crossing, whose distance is the first upper limit.
2. In l1, moves of a single coordinate are tried, and moves of a few that are grown from them (`corners`).
3. Rounds of descents from points at many distances, near and far, and from around the nearest crossings search for
   nearer ones, until enough groups of starts found the same crossing (`descent_starts`).
4. The nearest crossings are refined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.estimators.ascent.boundary_descent import FAR, NEAR, Cut, Schedule, descend_halving
from cleverscore.estimators.ascent.corners import corner_gradients, sparse_moves
from cleverscore.estimators.ascent.descent_starts import (
    CUTS,
    MOST_FAR_GROUPS,
    MOST_WANTED,
    NEAREST,
    REFINING_CUTS,
    FarGroups,
    Group,
    descent_gradients,
    groups,
    shortest_start,
    sparse,
)
from cleverscore.estimators.ascent.margin_rows import ANY, MarginRows
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.inputs.balls import LpBall
from cleverscore.models.margin_gradients import dual_norms
from cleverscore.norms import dual_exponent

Array = npt.NDArray[np.float64]

DESCENT_STEPS = 28
# In l1 inside a box a descent moves one coordinate after another to the side of the box. (A ReLU network trained on
# squared error: with 28 steps the crossing of one of 16 inputs was 1.4 to 1.5 times as far as with 40.)
L1_BOX_STEPS = 40
# Starts of a group that take whichever target they meet; where each target is asked for, it also has groups of its own.
ANY_STARTS, TARGET_STARTS = 11, 5
# Every third far group goes towards the targets in turn: descents towards any of them can pass by a class that is near.
# (ReLU 256 x 2, l2: a crossing 14% farther for one of ten seeds without it.)
AIMED = 3
# Rounds at most. Only searches that met no crossing often enough get so far. With 6, one of 80 scores on ReLU 256 x 6
# (linf) was 7% above the attack and 15% above another seed's. With 14 none was above and seeds were 1.5% apart, for 30%
# more gradients there and 8% more on the MNIST CNN.
MOST_ROUNDS = 14
# The nearest crossings are refined, as they are and moved a little (as a share of their distance): small pieces of the
# boundary lie side by side. Where each target is asked for, this is done for each.
REFINED, REFINING_STEPS, SMALL_JUMP = 4, 32, 0.1
REFINING_STEPS_WHERE_FLAT = 64  # there shells leave almost nothing between score and crossing
# Of the descents from the input, where only the nearest target is asked for.
FIRST_CUTS = (Cut(0.3, 1 / 2), Cut(0.6, 1 / 2))
# A target is out when its nearest crossing, and the one that its gradient at the input promises, are more than so many
# times as far as the nearest of all targets: after the first descents, and after all.
SLACK = (3.0, 1.4)
# Corners of the l1 ball are searched again while crossings get nearer by this share, so often at most.
MOST_SWEEPS, NEARER = 3, 0.02
TINY = 1e-30
START_BLOCK = 2**40  # random starts come from blocks that no sampling reaches
SMALL_JUMPS = 2**20  # the number of their directions, which no group has


def most_descent_gradients(factor: int) -> int:
    """About the largest number of gradients of one target's descents; `factor` multiplies the number of starts."""
    groups = MOST_WANTED + (MOST_ROUNDS - 1) * (MOST_FAR_GROUPS + 1)
    each = sum(descent_gradients(factor * starts, DESCENT_STEPS) for starts in (ANY_STARTS, TARGET_STARTS))
    return DESCENT_STEPS + groups * each + 2 * REFINED * REFINING_STEPS_WHERE_FLAT


@dataclass
class TargetSearch:
    """The state of the search for one target.

    distances   distances of the crossings that descents found, nearest first; `crossings` has the offsets of the
                nearest.
    gradient    of the margin at the input.
    far         the crossings that far groups of this target found.
    value       the distance at the current stage; with `finished`, at the last stage.
    low, falls  `low` and `falls` of the radial profile.
    settled     whether enough far groups found the nearest crossing.
    """

    margin: float
    distances: list[float] = field(default_factory=list)
    crossings: list[torch.Tensor] = field(default_factory=list)
    gradient: torch.Tensor | None = None
    far: FarGroups = field(default_factory=FarGroups)
    value: float = math.inf
    low: float = math.nan
    falls: Array = field(default_factory=lambda: np.empty(0))
    gradients: float = 0.0
    stopped: str = ""
    settled: bool = False
    finished: bool = False

    @property
    def upper(self) -> float:
        """Distance of the nearest crossing found."""
        return self.distances[0] if self.distances else math.inf

    @property
    def promised(self) -> float:
        """The smaller of the nearest crossing's distance and of margin / gradient norm at the input."""
        return min(self.upper, self.far.first_order)

    def take(self, distance: float, offset: torch.Tensor, keep: int) -> None:
        """Record the crossing that a descent found."""
        place = int(np.searchsorted(self.distances, distance))
        self.distances.insert(place, distance)
        if place < keep:
            self.crossings.insert(place, offset)
            del self.crossings[keep:]


def leave_out(targets: Sequence[TargetSearch], values: Sequence[float], limit: float) -> None:
    """Stop the search for targets whose value exceeds the limit."""
    for target, value in zip(targets, values, strict=True):
        if not target.stopped and value > limit:
            target.stopped = StopReason.ELIMINATED


@dataclass(frozen=True)
class Directions:
    """Random directions of norm 1, from (seed, input id, norm, number) alone."""

    p: float
    seed: int
    input_id: int
    like: torch.Tensor

    def draw(self, number: int, count: int) -> torch.Tensor:
        """The directions of this number: (count, d)."""
        drawn = LpBall(self.p, 1.0).offsets(
            dim=self.like.numel(), count=count, seed=self.seed, input_id=self.input_id, block=START_BLOCK + number,
            tile=0,
        ).to(self.like)  # fmt: skip
        return unit(sparse(drawn, number) if self.p == 1.0 else drawn, self.p)


def unit(offsets: torch.Tensor, p: float) -> torch.Tensor:
    """Offsets (n, d) scaled to length 1; an offset of length zero stays zero."""
    lengths = torch.linalg.vector_norm(offsets, p, dim=1, keepdim=True)
    return offsets / torch.where(lengths > 0.0, lengths, 1.0)


@dataclass(frozen=True)
class _Start:
    """The start of a descent: an offset from the input, the target or `ANY`, and the group in which it competes.

    far     the record of crossings that far groups found, if the group is a far one.
    """

    target: int
    offset: torch.Tensor
    group: int = 0
    far: FarGroups | None = None


@dataclass
class CrossingSearch:
    """Descents towards the targets of one input.

    classes         the classes of the targets, in order.
    smallest_only   whether only the nearest of all targets is needed.
    factor          multiplies the number of starts in a group.
    affords         a function: whether this many more gradients are within the budget.
    far             like `far` of a target, for groups that descend towards any target; `settled_any` likewise.
    swept           the distances at which corners were searched, by target.
    """

    x: torch.Tensor
    rows: MarginRows
    targets: list[TargetSearch]
    classes: Sequence[int]
    directions: Directions
    p: float
    radius: float
    box: tuple[float, float] | None
    smallest_only: bool
    factor: int
    most_rounds: int
    kept: int
    affords: Callable[[float], bool]
    far: FarGroups = field(default_factory=FarGroups)
    settled_any: bool = False
    swept: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = {target: t for t, target in enumerate(self.classes)}
        self.shortest = shortest_start(self.x.numel())
        self.steps = L1_BOX_STEPS if self.p == 1.0 and self.box is not None else DESCENT_STEPS

    @property
    def active(self) -> list[int]:
        """Positions of the targets that are still searched."""
        return [t for t, target in enumerate(self.targets) if not target.stopped]

    @property
    def together(self) -> bool:
        """Whether only the nearest of several targets is needed, so that descents may go towards any of them."""
        return self.smallest_only and len(self.targets) > 1

    @property
    def nearest(self) -> float:
        """Distance of the nearest crossing of any target."""
        return min((target.upper for target in self.targets), default=math.inf)

    def settled(self, t: int) -> bool:
        """Whether enough far groups found the nearest crossing of this target, or of any target."""
        return self.settled_any if self.together else self.targets[t].settled

    def unseen(self, t: int) -> float:
        """The share by which this target's score is reduced for crossings that were probably missed."""
        target = self.targets[t]
        if self.far.met and (self.together or target.upper <= self.nearest):
            return self.far.unseen(self.nearest, self.settled_any)
        return target.far.unseen(target.upper, target.settled)

    def run(self, reserve: float) -> None:
        """Run all descents; `reserve` is the number of gradients that the ascents of one target will need."""
        self._from_input()
        self._leave_out(SLACK[0])
        broken = set(self.rows.broken)
        self._sweep_corners(reserve)
        for number in range(self.most_rounds):
            work = self._round(number)
            left = reserve * len(self.active)
            if not work or not self.affords(descent_gradients(len(work), self.steps) + left):
                break
            self._descend(work)
        self._sweep_corners(reserve)
        # Decided before crossings are refined, which brings them below what groups met.
        self.settled_any = self.far.settled(self.nearest)
        for target in self.targets:
            target.settled = target.far.settled(target.upper)
        self._refine()
        self.rows.broken &= broken  # what is not finite at a far start says nothing of the ball
        self._leave_out(SLACK[1])

    def _leave_out(self, slack: float) -> None:
        """Leave out targets that are far beside the nearest crossing, which is not a promise: it was found."""
        if self.smallest_only:
            leave_out(self.targets, [target.promised for target in self.targets], slack * self.nearest)

    def _from_input(self) -> None:
        active = self.active
        if not active:
            return
        classes = torch.tensor([self.classes[t] for t in active], device=self.x.device)
        margins, gradients = self.rows.margins_and_gradients(self.x.expand(len(active), *self.x.shape), classes)
        gradients = gradients.flatten(1).nan_to_num(0.0, 0.0, 0.0)
        slopes = dual_norms(gradients, dual_exponent(self.p))
        for t, distance, gradient in zip(active, (margins / slopes.clamp_min(TINY)).tolist(), gradients, strict=True):
            self.targets[t].far.first_order, self.targets[t].gradient = distance, gradient
        self.far.first_order = min(target.far.first_order for target in self.targets)
        nowhere = torch.zeros(self.x.numel(), dtype=self.x.dtype, device=self.x.device)
        new = [t for t in active if not self.targets[t].crossings]
        self._descend([_Start(t, nowhere) for t in new], cuts=FIRST_CUTS if self.together else ())

    def _sweep_corners(self, reserve: float) -> None:
        """For p = 1, descend from the most promising moves of a few coordinates, as long as the nearest crossing."""
        if self.p != 1.0 or not self.active:
            return
        for _ in range(MOST_SWEEPS):
            work: list[_Start] = []
            before = self.rows.spent
            for t in (ANY,) if self.together else self.active:
                upper = self.nearest if t == ANY else self.targets[t].upper
                if math.isfinite(upper) and upper < (1.0 - NEARER) * self.swept.get(t, math.inf):
                    if not self.affords(corner_gradients(self.x.numel()) + reserve * len(self.active)):
                        return
                    self.swept[t] = upper
                    work += [_Start(t, offset, t) for offset in self._corners(t, upper)]
            if not work:
                return
            for t in self.active:
                self.targets[t].gradients += (self.rows.spent - before) / len(self.active)
            for t, nearest in self._descend(work, schedule=NEAR, cuts=REFINING_CUTS).items():
                far = self.far if t == ANY else self.targets[t].far
                far.corners = min(far.corners, nearest)

    def _corners(self, t: int, upper: float) -> torch.Tensor:
        """The most promising moves of a few coordinates, for a target or for any: offsets (n, d)."""
        aim = ANY if t == ANY else self.classes[t]

        def aims(points: torch.Tensor) -> torch.Tensor:
            return torch.full((len(points),), aim, device=points.device)

        return sparse_moves(
            lambda points: self.rows.margins(points, aims(points)),
            lambda points: self.rows.margins_and_gradients(points, aims(points))[1].flatten(1),
            self.x, upper, self.factor * ANY_STARTS, self.box,
        )  # fmt: skip

    def _round(self, number: int) -> list[_Start]:
        """The starts of a round; none if enough groups found the nearest crossing."""
        work: list[_Start] = []
        if self.together:
            near = self._nearest_crossings(NEAREST)
            wanted, met = self.far.wanted(self.nearest), self.far.meetings(self.nearest)
            for place, group in enumerate(groups(number, self.factor * ANY_STARTS, wanted, met, self.shortest)):
                aims = self._aims() if place % AIMED == AIMED - 1 and not group.jumps else (ANY,)
                work += self._starts(aims, group, self.far, self.nearest, near, len(work))
        else:
            count = self.factor * (TARGET_STARTS if len(self.targets) > 1 else ANY_STARTS)
            for t in self.active:
                target = self.targets[t]
                far, upper, near = target.far, target.upper, target.crossings[:NEAREST]
                for group in groups(number, count, far.wanted(upper), far.meetings(upper), self.shortest):
                    work += self._starts((t,), group, far, upper, near, len(work))
        return work

    def _aims(self) -> list[int]:
        """The targets that are still searched, the nearest first."""
        return sorted(self.active, key=lambda t: self.targets[t].promised)

    def _starts(
        self,
        aims: Sequence[int],
        group: Group,
        far: FarGroups,
        nearest: float,
        near: Sequence[torch.Tensor],
        label: int,
    ) -> list[_Start]:
        """The starts of a group, towards the targets `aims` in turn; `nearest`: distance of the nearest crossing."""
        size = nearest if math.isfinite(nearest) else self._extent()
        drawn = self.directions.draw(1 + group.number, len(group.lengths))
        found = []
        for place, (length, direction) in enumerate(zip(group.lengths, drawn, strict=True)):
            center = near[place % len(near)] if group.jumps and near else 0.0
            aim = aims[place % len(aims)]
            offset = center + length * size * direction
            found.append(_Start(aim, offset, label, None if group.jumps else far))
        return found

    def _extent(self) -> float:
        """The scale of starts while no crossing is known: the size of the input box, or the radius without a box."""
        bounds = self.rows.classifier.bounds
        if bounds is None:
            return self.radius
        width = float(bounds[1]) - float(bounds[0])
        return width if math.isinf(self.p) else width * self.x.numel() ** (1.0 / self.p)

    def _refine(self) -> None:
        """Move the nearest crossings along the boundary, nearer to the input."""
        if self.together:
            work = [_Start(ANY, offset) for offset in self._nearest_crossings(REFINED)]
        else:
            known = [t for t in self.active if self.targets[t].crossings]
            work = [_Start(t, self.targets[t].crossings[0], t) for t in known]
        drawn = SMALL_JUMP * self.nearest * self.directions.draw(SMALL_JUMPS, len(work))
        work += [
            _Start(start.target, start.offset + jump, start.group) for start, jump in zip(work, drawn, strict=True)
        ]
        flat = self.far.wanted(self.nearest) == MOST_WANTED
        steps = REFINING_STEPS_WHERE_FLAT if flat else REFINING_STEPS
        if self.affords(len(work) * steps):
            self._descend(work, steps, NEAR, REFINING_CUTS)

    def _nearest_crossings(self, count: int) -> list[torch.Tensor]:
        """Offsets of the nearest crossings of all targets."""
        known = [pair for target in self.targets for pair in zip(target.distances, target.crossings, strict=False)]
        return [offset for _, offset in sorted(known, key=lambda pair: pair[0])[:count]]

    def _descend(
        self,
        work: Sequence[_Start],
        steps: int = 0,
        schedule: Schedule = FAR,
        cuts: Sequence[Cut] = CUTS,
    ) -> dict[int, float]:
        """Run descents, record the crossings that they found, and return the distance of each group's nearest.

        steps   gradients of a descent; 0 for the usual number.
        """
        if not work:
            return {}
        steps = steps or self.steps
        before = self.rows.spent
        classes = torch.tensor(
            [ANY if start.target == ANY else self.classes[start.target] for start in work], device=self.x.device
        )
        x = self.x.expand(len(work), *self.x.shape)
        low, high = (None, None) if self.box is None else (x.new_tensor(edge) for edge in self.box)
        distances, points = descend_halving(
            lambda rows: lambda places: self.rows.margins_and_gradients(places, classes[rows]), x,
            x + torch.stack([start.offset for start in work]).view_as(x),
            p=self.p, steps=steps, groups=torch.tensor([start.group for start in work], device=self.x.device),
            cuts=cuts, schedule=schedule, low=low, high=high,
        )  # fmt: skip
        met = torch.isfinite(distances)
        reached = classes.clone()
        anywhere = met & (classes == ANY)
        if bool(anywhere.any()):
            reached[anywhere] = self.rows.nearest_targets(points[anywhere])
        offsets = (points - x).flatten(1)
        cost = (self.rows.spent - before) / len(work)
        best: dict[int, float] = {}
        for start, crossed, distance, offset, end in zip(
            work, met.tolist(), distances.tolist(), offsets, reached.tolist(), strict=True
        ):
            place = self.places[end] if crossed else max(start.target, 0)
            self.targets[place].gradients += cost
            if crossed:
                self.targets[place].take(distance, offset, self.kept)
            best[start.group] = min(best.get(start.group, math.inf), distance)
        for group, far in {start.group: start.far for start in work}.items():
            if far is not None:
                far.met.append(best[group])
        self._update()
        return best

    def _update(self) -> None:
        """Resume targets of which a descent found a near crossing, and limit all values by distances of crossings."""
        limit = SLACK[1] * self.nearest
        for target in self.targets:
            if target.stopped == StopReason.ELIMINATED and target.upper <= limit:
                target.stopped = ""
            if target.stopped != StopReason.EXACT:
                target.value = min(target.upper, target.value)
