"""The search for radial profiles: descents of the margin first, then ascents across shells.

1. A descent from the input towards every target meets a crossing, whose distance is the first upper limit.
2. Rounds of descents from points at many distances, near and far, and from around the nearest crossings look for nearer
   ones, until most descents of a round meet the same one. The nearest are then refined.
3. Between the input and the nearest crossing, the falls across shells are maximised from the directions of the nearest
   crossings and from random ones. The radius at which they add up to the margin is the score.

An untargeted score is the smallest over targets. A target is left out when it is behind the smallest of its stage by a
factor (`SLACK`); the score that is reported comes from a target that went through all stages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.allocator import kept_pages
from cleverscore.balls import LpBall
from cleverscore.budget import Budget
from cleverscore.classifier import Classifier
from cleverscore.estimators.ascent.boundary_descent import FAR, NEAR, NEAREST_BY, Schedule, descend
from cleverscore.estimators.ascent.descent_starts import NEAREST, settled, starts
from cleverscore.estimators.ascent.margin_rows import ANY, MarginRows
from cleverscore.estimators.ascent.projected_ascent import ShellAscent
from cleverscore.estimators.ascent.radial_profile import RadialProfile
from cleverscore.gradients import dual_norms, margin_gradient_norms
from cleverscore.maxima import pool
from cleverscore.reasons import ALL_STARTS, BUDGET, EXACT, LOST, SETTLED
from cleverscore.regions import box_of
from cleverscore.tails import FitOutcome

if TYPE_CHECKING:
    from cleverscore.subjects import Subject

Array = npt.NDArray[np.float64]

# Where shells end, as shares of the radius. More of them leave more between score and distance, and by amounts that
# differ from input to input; outer ones are thin, because networks that are flat at their data fall near the boundary.
EDGES = (0.6, 0.8, 1.0)
DESCENT_STEPS = 40
# A round has so many starts that take whichever target they meet; where each target is asked for, more of its own.
ANY_STARTS, TARGET_STARTS = 12, 3
MOST_ROUNDS = 12
FEW_DIMENSIONS, FEW_DIMENSIONS_FACTOR = 32, 4  # there gradients are cheap, and small networks hide steep pieces
# The nearest crossings are refined, as they are and moved a little (as a share of their distance): small pieces of the
# boundary lie side by side. The best is refined once more. Where each target is asked for, this is done for each.
REFINED, REFINING_STEPS, SMALL_JUMP = 4, 50, 0.1
SHELL_STARTS = 2  # directions of the nearest crossings, the last one random
SHELL_STEPS, FIRST_SHELL_STEPS = 24, 8
# A target is out when its distance is more than so many times the smallest of its stage: after the first descents,
# after all descents, after the first steps across shells.
SLACK = (3.0, 1.6, 1.15)
# With more targets than this, only the nearest by margin / ||gradient at the input|| are searched at all.
MANY_TARGETS, PREFILTERED = 32, 16
# What more search may still take off a score: a little always; more where the ascents went far below the nearest
# crossing, since others may go farther; and much where the nearest crossing was not met often enough. Of 480 scores on
# five networks 90% were within 1.5% of the smallest of 12 seeds, and within 8.5% where they were 10 to 20% below their
# crossing.
SEARCH_ERROR, GAP_WEIGHT, NOT_MET_ENOUGH = 0.02, 0.5, 0.1
UNSETTLED = 0.1  # more search would lower the score by more than this share
START_BLOCK = 2**40  # random starts come from blocks that no sampling reaches
NUMBERS_TOGETHER = 2**24  # of all directions that climb together: 64 MB of float32


def most_gradients(dim: int) -> int:
    """Gradients of one target at most, about.

    >>> most_gradients(784) < 512_000 / 50
    True
    """
    factor = FEW_DIMENSIONS_FACTOR if dim <= FEW_DIMENSIONS else 1
    descents = 1 + MOST_ROUNDS * (TARGET_STARTS + ANY_STARTS) * factor
    return descents * DESCENT_STEPS + (2 * REFINED + 1) * REFINING_STEPS + _ascent_cost(SHELL_STEPS, factor)


def _ascent_cost(steps: int, factor: int) -> int:
    """Gradients of one target's ascents; two forward passes of all directions and some of the best find the root."""
    return (2 * len(EDGES) - 1) * (SHELL_STARTS * factor * (steps + 1) + 5)


@dataclass(frozen=True)
class Effort:
    """How hard to search.

    work            multiplies the number of random starts and rounds.
    from_crossings  whether descents give starts and an upper limit; without them a score rests on ascents alone.
    """

    work: int = 1
    from_crossings: bool = True


@dataclass
class _Target:
    """What is known of one target.

    distances   of the crossings that descents met, nearest first; `crossings` holds the offsets of the nearest.
    met         what each descent towards this target met, infinite where it met nothing.
    value       the distance at the present stage; with `finished`, at the last one.
    """

    margin: float
    distances: list[float] = field(default_factory=list)
    crossings: list[torch.Tensor] = field(default_factory=list)
    met: list[float] = field(default_factory=list)
    value: float = math.inf
    low: float = math.nan
    falls: Array = field(default_factory=lambda: np.empty(0))
    gradients: float = 0.0
    stopped: str = ""
    finished: bool = False

    @property
    def upper(self) -> float:
        return self.distances[0] if self.distances else math.inf

    def take(self, distance: float, offset: torch.Tensor, keep: int) -> None:
        """Note what a descent met."""
        place = int(np.searchsorted(self.distances, distance))
        self.distances.insert(place, distance)
        if place < keep:
            self.crossings.insert(place, offset)
            del self.crossings[keep:]


class ProfileSearch:
    """The search for one input's profiles."""

    def __init__(
        self,
        example: Subject,
        rows: MarginRows,
        *,
        ball: LpBall,
        box: tuple[float, float] | None,
        seed: int,
        smallest_only: bool,
        most_gradients: float = math.inf,
        most_seconds: float = math.inf,
        effort: Effort,
    ) -> None:
        self.example, self.rows, self.box = example, rows, box
        self.p, self.q, self.radius = ball.p, ball.q, ball.radius
        self.seed, self.smallest_only = seed, smallest_only
        self.most_gradients, self.most_seconds = most_gradients, most_seconds
        self.x = example.x
        self.dim = example.x.numel()
        self.from_crossings = effort.from_crossings
        self.factor = effort.work * (FEW_DIMENSIONS_FACTOR if self.dim <= FEW_DIMENSIONS else 1)
        self.most_rounds = MOST_ROUNDS * effort.work
        self.targets = [_Target(margin) for margin in example.margins]
        self.any_met: list[float] = []  # as `met` of a target, for descents towards any of them
        self.places = {target: t for t, target in enumerate(example.targets)}
        self.began = time.perf_counter()
        self.seconds = 0.0

    def run(self) -> None:
        """Go through all stages."""
        self.began = time.perf_counter()
        self._prefilter()
        if self.from_crossings:
            self._descend_from_input()
            self._descend_in_rounds()
        self._ascend()
        self.seconds = time.perf_counter() - self.began

    @property
    def active(self) -> list[int]:
        """Positions of the targets that are still searched."""
        return [t for t, target in enumerate(self.targets) if not target.stopped]

    @property
    def stopped(self) -> tuple[str, ...]:
        """Why the search ended, per target."""
        return tuple(target.stopped for target in self.targets)

    def profiles(self) -> tuple[RadialProfile, ...]:
        """What was found, per target."""
        return tuple(
            RadialProfile(
                target.value, target.low, target.upper, target.falls, EDGES[: len(target.falls)],
                math.ceil(target.gradients), self._outcome(t).value,
            )
            for t, target in enumerate(self.targets)
        )  # fmt: skip

    def _outcome(self, t: int) -> FitOutcome:
        target = self.targets[t]
        if self.rows.broken & {ANY, self.example.targets[t]}:
            return FitOutcome.NOT_FINITE
        if target.stopped == EXACT:
            return FitOutcome.CONSTANT
        if self.rows.steepest == 0.0:
            return FitOutcome.ZERO
        settled = target.finished and target.low >= (1.0 - UNSETTLED) * target.value
        return FitOutcome.ASCENDED if settled or target.value >= self.radius else FitOutcome.UNSETTLED

    def _affords(self, gradients: float) -> bool:
        """Whether so many more gradients are within the budget, at the speed seen so far."""
        elapsed = time.perf_counter() - self.began
        each = elapsed / max(self.rows.spent, 1.0)
        return self.rows.spent + gradients <= self.most_gradients and elapsed + gradients * each <= self.most_seconds

    def _prefilter(self) -> None:
        """Leave out classes that are reached already, and of many those that are far by margin / ||gradient||."""
        for target in self.targets:
            if target.margin <= 0.0:
                target.value, target.low, target.stopped, target.finished = 0.0, 0.0, EXACT, True
        if not self.smallest_only or len(self.targets) <= MANY_TARGETS:
            return
        norms = margin_gradient_norms(
            self.rows.classifier, self.x[None], predicted=self.example.predicted, targets=self.example.targets, q=self.q
        )[0].double()
        distances = torch.tensor(self.example.margins, dtype=torch.float64) / norms.cpu()
        for rank, t in enumerate(distances.argsort().tolist()):
            target = self.targets[t]
            target.gradients += 1.0
            if not target.stopped and rank >= PREFILTERED:
                target.value, target.stopped = min(float(distances[t]), self.radius), LOST

    def _descend_from_input(self) -> None:
        nowhere = torch.zeros(self.dim, dtype=self.x.dtype, device=self.x.device)
        self._descents([(t, nowhere) for t in self.active])
        self._drop([target.upper for target in self.targets], SLACK[0])

    def _descend_in_rounds(self) -> None:
        """Rounds of descents from many places, until enough of them met the nearest crossing."""
        for number in range(1, self.most_rounds + 1):
            work = self._starts(number)
            reserve = len(self.active) * _ascent_cost(SHELL_STEPS, self.factor)
            if not work or not self._affords(len(work) * DESCENT_STEPS + reserve):
                break
            self._descents(work)
        self._refine_crossings()
        self._drop([target.upper for target in self.targets], SLACK[1])

    def _starts(self, number: int) -> list[tuple[int, torch.Tensor]]:
        """Where the descents of a round begin, and whereto they go; none where there were enough."""
        count, own = self.factor * ANY_STARTS, self._own_starts
        work = []
        if len(self.targets) > 1 and not settled(self.any_met, self._nearest, count):
            near = self._nearest_crossings(NEAREST)
            work += [(ANY, offset) for offset in self._offsets(number, count, self._nearest, near)]
        if not self._together:
            for t in self.active:
                target = self.targets[t]
                if not settled(target.met, target.upper, own):
                    near = target.crossings[:NEAREST]
                    work += [(t, offset) for offset in self._offsets(number, own, target.upper, near)]
        return work

    @property
    def _together(self) -> bool:
        """Whether only the nearest of several targets is asked for, so that descents need not name one."""
        return self.smallest_only and len(self.targets) > 1

    @property
    def _own_starts(self) -> int:
        """Starts of a round that one target has for itself."""
        return self.factor * (TARGET_STARTS if len(self.targets) > 1 else ANY_STARTS)

    def _offsets(self, number: int, count: int, nearest: float, near: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Offsets of starts for crossings of which the nearest known one is so far."""
        size = min(nearest, self.radius)
        offsets = []
        for start, drawn in zip(starts(number, count), self._directions(number, count), strict=True):
            center = near[start.around % len(near)] if start.around is not None and near else 0.0
            offsets.append(center + start.length * size * drawn)
        return offsets

    def _refine_crossings(self) -> None:
        """The nearest crossings, moved along the boundary as near as they get."""
        for count, schedule in ((REFINED, NEAR), (1, NEAREST_BY)):
            if self._together:
                work = [(ANY, offset) for offset in self._nearest_crossings(count)]
            else:
                work = [(t, self.targets[t].crossings[0]) for t in self.active if self.targets[t].crossings]
            if schedule is NEAR:
                drawn = SMALL_JUMP * self._nearest * self._directions(self.most_rounds + 1, len(work))
                work += [(t, offset + jump) for (t, offset), jump in zip(work, drawn, strict=True)]
            if self._affords(len(work) * REFINING_STEPS):
                self._descents(work, REFINING_STEPS, schedule)

    @property
    def _nearest(self) -> float:
        """Distance of the nearest crossing of any target."""
        return min((target.upper for target in self.targets), default=math.inf)

    def _nearest_crossings(self, count: int) -> list[torch.Tensor]:
        """Offsets of the nearest crossings, whatever their targets."""
        known = [pair for target in self.targets for pair in zip(target.distances, target.crossings, strict=False)]
        return [offset for _, offset in sorted(known, key=lambda pair: pair[0])[:count]]

    def _settled(self, t: int) -> bool:
        """Whether the nearest crossing of this target, or of any that is asked for, was met often enough."""
        if self._together:
            return settled(self.any_met, self._nearest, self.factor * ANY_STARTS)
        target = self.targets[t]
        return settled(target.met, target.upper, self._own_starts)

    def _directions(self, number: int, count: int) -> torch.Tensor:
        """Random directions (count, d) of norm 1, from (seed, input id, norm, round) alone."""
        drawn = LpBall(self.p, 1.0).offsets(
            dim=self.dim, count=count, seed=self.seed, input_id=self.example.input_id, block=START_BLOCK + number,
            tile=0,
        ).to(self.x)  # fmt: skip
        return _unit(drawn, self.p)

    def _descents(
        self, work: Sequence[tuple[int, torch.Tensor]], steps: int = DESCENT_STEPS, schedule: Schedule = FAR
    ) -> None:
        """Descend towards targets, or `ANY` of them, from offsets."""
        if not work:
            return
        before = self.rows.spent
        classes = torch.tensor([t if t == ANY else self.example.targets[t] for t, _ in work], device=self.x.device)
        x = self.x.expand(len(work), *self.x.shape)
        low, high = (None, None) if self.box is None else (x.new_tensor(edge) for edge in self.box)
        distances, points = descend(
            lambda places: self.rows.margins_and_gradients(places, classes), x,
            x + torch.stack([offset for _, offset in work]).view_as(x),
            p=self.p, steps=steps, schedule=schedule, low=low, high=high,
        )  # fmt: skip
        met = torch.isfinite(distances)
        reached = classes.clone()
        anywhere = met & (classes == ANY)
        if bool(anywhere.any()):
            reached[anywhere] = self.rows.nearest_targets(points[anywhere])
        offsets = (points - x).flatten(1)
        cost = (self.rows.spent - before) / len(work)
        for i, (t, _) in enumerate(work):
            place = self.places[int(reached[i])] if bool(met[i]) else max(t, 0)
            self.targets[place].gradients += cost
            if bool(met[i]):
                self.targets[place].take(float(distances[i]), offsets[i], max(REFINED, self.factor * SHELL_STARTS))
            if schedule is FAR:
                (self.any_met if t == ANY else self.targets[t].met).append(float(distances[i]))
        limit = SLACK[1] * min(target.upper for target in self.targets)
        for target in self.targets:
            if target.stopped == LOST and target.upper <= limit:
                target.stopped = ""  # a descent towards any class met this one near by
            if target.stopped != EXACT:
                target.value = min(target.upper, self.radius, target.value)

    def _drop(self, values: Sequence[float], slack: float) -> None:
        """Leave out targets that are too far behind the smallest of their stage."""
        if not self.smallest_only:
            return
        active = self.active
        limit = slack * min((values[t] for t in active), default=math.inf)
        for t in active:
            if values[t] > limit:
                self.targets[t].stopped = LOST

    def _ascend(self) -> None:
        """Ascents across the shells of the targets that are left, as many targets at a time as fit in memory."""
        starts = self.factor * SHELL_STARTS
        together = max(1, NUMBERS_TOGETHER // (len(EDGES) * starts * self.dim))
        active = self.active
        groups = [active[first : first + together] for first in range(0, len(active), together)]
        ascents = [(places, self._begin(places, starts)) for places in groups]
        for places, ascent in ascents:
            self._climb(ascent, places, 0, FIRST_SHELL_STEPS)
        self._drop([target.value for target in self.targets], SLACK[2])
        for places, ascent in ascents:
            keep = [i for i, t in enumerate(places) if not self.targets[t].stopped]
            left = [places[i] for i in keep]
            if not left:
                continue
            if self._affords(len(left) * _ascent_cost(SHELL_STEPS - FIRST_SHELL_STEPS, self.factor)):
                ascent.select(torch.tensor(keep, device=self.x.device))
                self._climb(ascent, left, FIRST_SHELL_STEPS, SHELL_STEPS)
                for t in left:
                    self.targets[t].finished = True
                    self.targets[t].stopped = SETTLED if self._settled(t) else ALL_STARTS
            else:
                for t in left:
                    self.targets[t].stopped = BUDGET

    def _begin(self, places: Sequence[int], starts: int) -> ShellAscent:
        drawn = self._directions(0, starts)
        directions = []
        for t in places:
            known = self.targets[t].crossings[: max(1, starts - 1)]
            first = [_unit(torch.stack(known), self.p)] if known else []
            directions.append(torch.cat([*first, drawn[len(known) :]]))
        classes = torch.tensor([self.example.targets[t] for t in places], device=self.x.device)
        margins = self.x.new_tensor([self.targets[t].margin for t in places])
        limits = self.x.new_tensor([min(self.targets[t].upper, self.radius) for t in places])
        radii = None
        if not self.from_crossings:
            x = self.x.expand(len(places), *self.x.shape)
            slopes = dual_norms(self.rows.margins_and_gradients(x, classes)[1].flatten(1), self.q)
            radii = torch.minimum(limits, margins / slopes.clamp_min(1e-30))
        return ShellAscent.begin(
            self.rows, self.x, classes, margins, limits, torch.stack(directions), radii=radii,
            p=self.p, edges=EDGES, box=self.box,
        )  # fmt: skip

    def _climb(self, ascent: ShellAscent, places: Sequence[int], first: int, last: int) -> None:
        before = self.rows.spent
        ascent.climb(first, last, SHELL_STEPS)
        radii, falls = ascent.roots()
        for i, t in enumerate(places):
            target = self.targets[t]
            if self.from_crossings and float(ascent.nearest[i]) < target.upper:
                target.distances.insert(0, float(ascent.nearest[i]))
            # Directions that reach the margin bound the root from above, whenever they were found. A limit is rounded
            # to the network's precision: where it is the radius, the value is the radius itself.
            root = float(radii[i]) if bool(radii[i] < ascent.limits[i]) else min(target.upper, self.radius)
            if not len(target.falls) or root <= target.value:
                target.value, target.falls = root, falls[i].double().cpu().numpy()
            target.value = min(target.value, target.upper)
            target.low = _low(target.value, target.upper, self._settled(t))
            target.gradients += (self.rows.spent - before) / len(places)


def _unit(offsets: torch.Tensor, p: float) -> torch.Tensor:
    """Offsets (n, d) of length 1; none where the length is zero."""
    lengths = torch.linalg.vector_norm(offsets, p, dim=1, keepdim=True)
    return offsets / torch.where(lengths > 0.0, lengths, 1.0)


def _low(value: float, upper: float, settled: bool) -> float:
    """What more search would leave of a score, probably.

    >>> _low(0.95, 1.0, settled=True) < 0.95 and _low(0.95, 1.0, settled=False) < 0.9 * 0.95
    True
    """
    gap = 1.0 - value / upper if 0.0 < upper < math.inf else 0.0
    return value * max(0.0, 1.0 - SEARCH_ERROR - GAP_WEIGHT * gap - (0.0 if settled else NOT_MET_ENOUGH))


def searches(
    classifier: Classifier,
    examples: Sequence[Subject],
    *,
    ball: LpBall,
    seed: int,
    budget: Budget,
    smallest_only: bool,
    chunk_size: int,
    workers: int,
    on_points: Callable[[int], None] | None = None,
    effort: Effort | None = None,
) -> Iterator[tuple[int, ProfileSearch]]:
    """Search all inputs and yield (position, finished search) in order.

    Inputs are searched side by side, one thread each; a single input shares its chunks among all threads. Both give the
    same numbers, since a batch never holds points of two inputs and is always cut in the same places.
    """
    box = box_of(ball.region, classifier.bounds)
    together = workers if len(examples) > 1 else 1

    def search(position: int, inner: ThreadPoolExecutor | None, gradients: float, seconds: float) -> ProfileSearch:
        example = examples[position]
        rows = MarginRows(classifier, example.predicted, example.targets, chunk_size, inner, on_points)
        found = ProfileSearch(
            example, rows, ball=ball, box=box, seed=seed, smallest_only=smallest_only, most_gradients=gradients,
            most_seconds=seconds, effort=effort or Effort(),
        )  # fmt: skip
        found.run()
        return found

    with kept_pages(), pool(workers) as executor:
        for first in range(0, len(examples), together):
            group = range(first, min(first + together, len(examples)))
            share = budget.share(len(group), len(examples) - first)
            limits = share.gradients / len(group), share.seconds
            with share.paying() as charge:
                if len(group) == 1:
                    found = [search(first, executor, *limits)]
                else:
                    futures = [executor.submit(search, i, None, *limits) for i in group]
                    found = [future.result() for future in futures]
                charge.gradients += sum(math.ceil(each.rows.spent) for each in found)
            yield from zip(group, found, strict=True)
