"""The search for the nearest crossings of one input; a crossing is a point where the margin towards a target class is
zero or negative.

1. A descent from the input towards every target finds a crossing, whose distance is the first upper limit.
2. In l1, moves of a single coordinate are tried, and moves of a few that are grown from them (`corners`), before and
   after the rounds.
3. Rounds of descents from points at many distances, near and far, and from around the nearest crossings search for
   nearer ones, until enough groups of starts found the same crossing (`descent_starts`).
4. The nearest crossings are moved along the decision boundary, nearer to the input.
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

DESCENT_STEPS = 28  # gradients of one descent
# In l1 inside a box a descent needs more of them: it moves one coordinate after another to the side of the box. (A ReLU
# network trained on squared error: with 28 steps the crossing of one of 16 inputs was 1.4 to 1.5 times as far as with
# 40.)
L1_BOX_STEPS = 40
# Starts of a group whose descents go towards whichever target is nearest, or towards the only target there is; and
# starts of a group for one of several targets, where each of them needs a score.
ANY_STARTS, TARGET_STARTS = 11, 5
# Every third far group of a round (only the first round has so many) goes towards each target in turn: descents towards
# whichever target is nearest can pass by a class that is near. (ReLU 256 x 2, l2: a crossing 14% farther for one of ten
# seeds without such groups.)
AIMED = 3
# The largest number of rounds. Only searches in which too few groups found the nearest crossing get so far. With 6, one
# of 80 scores on ReLU 256 x 6 (linf) was 7% above the attack's distance and 15% above another seed's score. With 14
# none was above and seeds were 1.5% apart, for 30% more gradients there and 8% more on the MNIST CNN.
MOST_ROUNDS = 14
# At the end, descents of `REFINING_STEPS` gradients start from the `REFINED` nearest crossings, or, where each target
# needs a score, from the nearest crossing of each. A second descent starts beside each of these crossings, at
# `SMALL_JUMP` times the distance of the nearest one, because small pieces of the boundary lie side by side.
REFINED, REFINING_STEPS, SMALL_JUMP = 4, 32, 0.1
# Where the network is so flat at the input that `MOST_WANTED` groups are wanted: there the score is almost the
# crossing's distance.
REFINING_STEPS_WHERE_FLAT = 64
# When descents from the input are given up, where only the nearest target is needed.
FIRST_CUTS = (Cut(0.3, 1 / 2), Cut(0.6, 1 / 2))
# A target is dropped when both its nearest crossing's distance and its margin / ||gradient|| at the input are more than
# so many times the distance of the nearest crossing of all targets: first number after the descents from the input,
# second number after all descents.
SLACK = (3.0, 1.4)
# Corners of the l1 ball are searched again while this brings the nearest crossing nearer by the share `NEARER`, at most
# `MOST_SWEEPS` times in a row.
MOST_SWEEPS, NEARER = 3, 0.02
TINY = 1e-30
START_BLOCK = 2**40  # random directions of starts are drawn from blocks from this number on, which no sampling reaches
SMALL_JUMPS = 2**20  # the number for drawing the directions of small jumps; no group has it


def most_descent_gradients(factor: int) -> int:
    """About the largest number of gradients of one target's descents; `factor` multiplies the number of starts."""
    groups = MOST_WANTED + (MOST_ROUNDS - 1) * (MOST_FAR_GROUPS + 1)
    each = sum(descent_gradients(factor * starts, DESCENT_STEPS) for starts in (ANY_STARTS, TARGET_STARTS))
    return DESCENT_STEPS + groups * each + 2 * REFINED * REFINING_STEPS_WHERE_FLAT


@dataclass
class TargetSearch:
    """The state of the search for one target.

    margin      the margin at the input.
    distances   distances of all crossings that descents found, nearest first.
    crossings   offsets (d,) from the input of the nearest of these crossings.
    passed      distance of the nearest crossing that an ascent passed, whose offset is not kept.
    gradient    of the margin at the input, (d,); None before the first descent.
    far         the crossings that far groups of this target found.
    value       the latest estimate of the distance to this class: from the gradient at the input, from crossings, or
                (after the ascents) the root; infinite before.
    low, falls  `low` and `falls` of the radial profile.
    gradients   number of gradients spent on this target.
    stopped     the `StopReason`, "" while the search goes on.
    settled     whether enough far groups found the nearest crossing.
    finished    whether the target went through all stages.
    """

    margin: float
    distances: list[float] = field(default_factory=list)
    crossings: list[torch.Tensor] = field(default_factory=list)
    passed: float = math.inf
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
        """Distance of the nearest crossing found, infinite if there is none."""
        return min(self.distances[0], self.passed) if self.distances else self.passed

    @property
    def promised(self) -> float:
        """The smaller of the nearest crossing's distance and of margin / gradient norm at the input."""
        return min(self.upper, self.far.first_order)

    def take(self, distance: float, offset: torch.Tensor, keep: int) -> None:
        """Record the distance of a crossing, and its offset (d,) if it is one of the `keep` nearest."""
        place = int(np.searchsorted(self.distances, distance))
        self.distances.insert(place, distance)
        if place < keep:
            self.crossings.insert(place, offset)
            del self.crossings[keep:]


def leave_out(targets: Sequence[TargetSearch], values: Sequence[float], limit: float) -> None:
    """Stop the search for those targets whose value (`values` has one per target) exceeds the limit."""
    for target, value in zip(targets, values, strict=True):
        if not target.stopped and value > limit:
            target.stopped = StopReason.ELIMINATED


@dataclass(frozen=True)
class Directions:
    """Random directions of lp norm 1, which depend on the seed, the input's id, p and the number given to `draw` alone.

    like    a tensor with d elements, whose device and precision the directions get.
    """

    p: float
    seed: int
    input_id: int
    like: torch.Tensor

    def draw(self, number: int, count: int) -> torch.Tensor:
        """Directions (count, d), different ones for each number; for p = 1 many coordinates are zero (`sparse`)."""
        drawn = LpBall(self.p, 1.0).offsets(
            dim=self.like.numel(), count=count, seed=self.seed, input_id=self.input_id, block=START_BLOCK + number,
            tile=0,
        ).to(self.like)  # fmt: skip
        return unit(sparse(drawn, number) if self.p == 1.0 else drawn, self.p)


def unit(offsets: torch.Tensor, p: float) -> torch.Tensor:
    """Offsets (n, d) scaled to lp norm 1; an offset of zero stays zero."""
    lengths = torch.linalg.vector_norm(offsets, p, dim=1, keepdim=True)
    return offsets / torch.where(lengths > 0.0, lengths, 1.0)


@dataclass(frozen=True)
class _Start:
    """The start of a descent.

    target  the position of the target towards which the descent goes, or `ANY` for whichever target is nearest.
    offset  from the input to the start, (d,).
    group   the number of its group: descents of one group compete when most of them are given up.
    far     the record to which the nearest crossing of the group is added, if the group is a far one.
    """

    target: int
    offset: torch.Tensor
    group: int = 0
    far: FarGroups | None = None


@dataclass
class CrossingSearch:
    """The search for crossings of one input by descents towards its targets.

    targets         the states of the search, one per target; the search updates them.
    classes         the classes of the targets, in the same order.
    radius          of the ball; sets the scale of starts if no crossing is known and the classifier has no bounds.
    box             (low, high), in which descents stay, or None.
    smallest_only   whether only the nearest of all targets is needed.
    factor          multiplies the number of starts in a group.
    most_rounds     the largest number of rounds.
    kept            number of crossings per target whose offsets are kept.
    affords         a function: whether this many more gradients are within the budget.
    far, settled_any    like `far` and `settled` of a target, for groups that descend towards whichever target is
                        nearest.
    swept           by position of a target (or `ANY`): the distance of its nearest crossing when corners were last
                    searched.
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
        """Distance of the nearest crossing of all targets, infinite if there is none."""
        return min((target.upper for target in self.targets), default=math.inf)

    def settled(self, t: int) -> bool:
        """Whether enough far groups found the nearest crossing of this target, or of all targets if `together`."""
        return self.settled_any if self.together else self.targets[t].settled

    def unseen(self, t: int) -> float:
        """The share by which this target's score is reduced for crossings that were probably missed."""
        target = self.targets[t]
        if self.far.met and (self.together or target.upper <= self.nearest):
            return self.far.unseen(self.nearest, self.settled_any)
        return target.far.unseen(target.upper, target.settled)

    def run(self, reserve: float) -> None:
        """Run all descents.

        reserve     the number of gradients that the ascents of one target will need; the budget must leave them.
        """
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
        # Decided before the refinement, which makes crossings nearer than those that groups found.
        self.settled_any = self.far.settled(self.nearest)
        for target in self.targets:
            target.settled = target.far.settled(target.upper)
        self._refine()
        # NaN or infinite values at far starts are forgotten: they say nothing about the ball.
        self.rows.broken &= broken
        self._leave_out(SLACK[1])

    def _leave_out(self, slack: float) -> None:
        """If only the nearest target is needed, drop targets that are farther than `slack` times the nearest crossing.

        The distance of a target is taken to be `promised`, which may be smaller than that of its nearest crossing.
        """
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
        """For p = 1, descend from moves of one to four coordinates about as far as the nearest crossing; repeat this
        while it finds nearer ones. For other p, do nothing.

        reserve     gradients per target that the budget must leave.
        """
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
        """The moves of one to four coordinates with the smallest margins towards target `t`, or towards whichever
        target is nearest (`ANY`): offsets (n, d).

        upper   the distance of the nearest crossing.
        """
        aim = ANY if t == ANY else self.classes[t]

        def aims(points: torch.Tensor) -> torch.Tensor:
            return torch.full((len(points),), aim, device=points.device)

        return sparse_moves(
            lambda points: self.rows.margins(points, aims(points)),
            lambda points: self.rows.margins_and_gradients(points, aims(points))[1].flatten(1),
            self.x, upper, self.factor * ANY_STARTS, self.box,
        )  # fmt: skip

    def _round(self, number: int) -> list[_Start]:
        """The starts of round `number`, counted from 0; none if the search may end (`groups` says when)."""
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
        """Positions of the targets that are still searched, the one with the smallest `promised` first."""
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
        """The starts of one group.

        aims        positions of the targets to which the descents go, in turn, or `ANY`.
        far         the record for the nearest crossing of the group, used if it is a far group.
        nearest     the distance of the nearest crossing, infinite if none is known.
        near        offsets of the nearest crossings, around which the starts of a jump group lie.
        label       the number of the group among those that descend together.
        """
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
        """The scale of starts while no crossing is known: the lp length of the diagonal of the classifier's bounds, or
        the ball's radius if it has none.
        """
        bounds = self.rows.classifier.bounds
        if bounds is None:
            return self.radius
        width = float(bounds[1]) - float(bounds[0])
        return width if math.isinf(self.p) else width * self.x.numel() ** (1.0 / self.p)

    def _refine(self) -> None:
        """Move the nearest crossings along the boundary, nearer to the input, if the budget allows it."""
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
        """Offsets (d,) of the `count` nearest crossings of all targets, nearest first."""
        known = [pair for target in self.targets for pair in zip(target.distances, target.crossings, strict=False)]
        return [offset for _, offset in sorted(known, key=lambda pair: pair[0])[:count]]

    def _descend(
        self,
        work: Sequence[_Start],
        steps: int = 0,
        schedule: Schedule = FAR,
        cuts: Sequence[Cut] = CUTS,
    ) -> dict[int, float]:
        """Run descents from these starts, and record the crossings with their targets and far groups.

        steps   gradients of a descent; 0 for the usual number.

        Returns the distance of the nearest crossing of each group, by its number; infinite if it found none.
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
        """Take up dropped targets again if a near crossing of theirs was found, and lower each target's value to the
        distance of its nearest crossing.
        """
        limit = SLACK[1] * self.nearest
        for target in self.targets:
            if target.stopped == StopReason.ELIMINATED and target.upper <= limit:
                target.stopped = ""
            if target.stopped != StopReason.EXACT:
                target.value = min(target.upper, target.value)
