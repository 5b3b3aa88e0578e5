"""The search for radial profiles: descents of the margin first, then ascents across shells.

Descents search for the nearest crossings, points of another class (`crossing_search`). Then ascents maximise the falls
(decreases) of the margin across shells, the spaces between neighbouring spheres around the input. They start in the
directions of the nearest crossings and in others. The score is based on the root: the radius at which the falls add up
to the margin.

An untargeted score is the smallest over targets. A target is dropped when, after the same stage, its distance is more
than a factor above the smallest one; the reported score comes from a target that went through all stages. If every
target needs a score, the untargeted search comes first, and then a search for each target.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cleverscore.estimators.ascent.crossing_search import (
    MOST_ROUNDS,
    REFINED,
    CrossingSearch,
    Directions,
    TargetSearch,
    leave_out,
    most_descent_gradients,
    unit,
)
from cleverscore.estimators.ascent.crossing_search import SLACK as DESCENT_SLACK
from cleverscore.estimators.ascent.descent_starts import FEW_DIMENSIONS
from cleverscore.estimators.ascent.margin_rows import ANY, MarginRows
from cleverscore.estimators.ascent.projected_ascent import ShellAscent
from cleverscore.estimators.ascent.radial_profile import RadialProfile
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.inputs.balls import LpBall
from cleverscore.inputs.projections import steepest
from cleverscore.models.classifier import Classifier
from cleverscore.models.input_box import box_of
from cleverscore.models.margin_gradients import dual_norms, margin_gradient_norms
from cleverscore.tails import FitOutcome
from cleverscore.threads import pool

if TYPE_CHECKING:
    from cleverscore.inputs.examples import Example

# Where shells end, as shares of the radius. With more shells the score is farther below the distance, by amounts that
# differ from input to input, and the search costs more. The outer shell is thin, because the margins of networks that
# are flat at their data fall mostly near the boundary. (Median of score / crossing on five networks: .96-.97 with these
# two shells, .94-.96 with three that end at .6, .8 and 1.)
EDGES = (0.7, 1.0)
# Multiplies the number of starts in few dimensions: there gradients are cheap, and steep pieces of networks are hard to
# find.
FEW_DIMENSIONS_FACTOR = 4
# Starts of the ascents in each shell: the directions of the target's two nearest crossings, and the steepest direction
# at the input. With one crossing alone, scores of a GELU network differed by 9% from seed to seed where a target's
# nearest crossing was not found. With a random direction instead of the steepest one, a score of a robust network
# differed by 34%.
SHELL_STARTS = 3
SHELL_STEPS, FIRST_SHELL_STEPS = 24, 6  # steps of an ascent, and those after which targets are compared
SLACK = 1.1  # a target is dropped when its distance after the first steps is more than so many times the smallest
# Of more than `MANY_TARGETS` targets, only `PREFILTERED` are searched: those with the smallest margin / ||gradient|| at
# the input.
MANY_TARGETS, PREFILTERED = 32, 16
# The shares by which a longer search may still lower a score, for `score_low`: `SEARCH_ERROR` always; `GAP_WEIGHT`
# times the share by which the root is below the nearest crossing, since other ascents may go farther below it; and
# `NOT_MET_ENOUGH` where too few groups found the nearest crossing. Of 480 scores on five networks 90% were within 1.5%
# of the smallest of 12 seeds, and within 8.5% where they were 10 to 20% below their crossing.
SEARCH_ERROR, GAP_WEIGHT, NOT_MET_ENOUGH = 0.02, 0.5, 0.1
# A score is not smaller than this share of the nearest crossing's distance. The largest falls of two shells may belong
# to two directions, and then no single line from the input has both. On a robustly trained network, the root was up to
# 23% below the nearest crossing for this reason, for some seeds and not for others, while the crossing itself was
# within 7% of the longest attack's distance. `score_low` is computed without this rule.
LEAST_SHARE = 0.89
UNSETTLED = 0.1  # the outcome is `unsettled` where a longer search may lower the root by more than this share
UNTARGETED_SHARE = 0.5  # the untargeted search's share of the budget, where each target needs a score
NUMBERS_TOGETHER = 2**24  # components of all directions in one batch of ascents: 64 MB of float32


def most_gradients(dim: int) -> int:
    """About the largest number of gradients that the search for one target takes, for inputs of `dim` components.

    >>> most_gradients(784) < 512_000 / 45
    True
    """
    factor = FEW_DIMENSIONS_FACTOR if dim <= FEW_DIMENSIONS else 1
    return most_descent_gradients(factor) + _ascent_cost(SHELL_STEPS, factor)


def _ascent_cost(steps: int, factor: int) -> int:
    """The number of gradients of one target's ascents of `steps` steps, including the passes that find the root.

    factor  multiplies the number of starts.
    """
    return (2 * len(EDGES) - 1) * (SHELL_STARTS * factor * (steps + 1) + 5)


@dataclass(frozen=True)
class Effort:
    """The effort of a search.

    work            multiplies the number of starts and the number of rounds.
    from_crossings  whether descents search for crossings first. Ascents then start from these, and the score is at most
                    the distance of the nearest one. Without descents a score depends on ascents alone.
    """

    work: int = 1
    from_crossings: bool = True


@dataclass(frozen=True)
class Untargeted:
    """The results of the untargeted search, which limit the scores of single targets: no class is nearer than the
    nearest.

    crossing    the distance of the nearest crossing that it found.
    scores      scores of the targets that it searched to the end, by position; the smallest is the untargeted score.
    uppers      distances of the nearest crossings of these targets, by position.
    """

    crossing: float
    scores: Mapping[int, float]
    uppers: Mapping[int, float]

    def searched(self, t: int, upper: float) -> bool:
        """Whether target `t` was searched to the end, and no crossing of it that is more than 1% nearer was found
        since.

        upper   the distance of its nearest crossing now.
        """
        return t in self.scores and upper >= 0.99 * self.uppers[t]

    def agreed(self, distance: float, t: int, upper: float) -> float:
        """The score of target `t`, made to agree with the untargeted search.

        distance    its score from its own search.
        upper       the distance of its nearest crossing.

        The result is at most the score that the untargeted search gave this target, because a longer search never
        raises a score. It is at least the untargeted score, because no class is nearer than the nearest one; `distance`
        may be smaller, since the largest falls of the shells may lie on different lines. If `upper` is smaller than the
        distance of the nearest crossing of the untargeted search, this lower limit is reduced in proportion.

        >>> found = Untargeted(1.0, {3: 0.9}, {3: 1.0})
        >>> found.agreed(0.8, 2, upper=1.5), found.agreed(0.7, 2, upper=0.9), found.agreed(0.92, 3, upper=1.0)
        (0.9, 0.81, 0.9)
        """
        least = min(self.scores.values()) * min(upper / self.crossing, 1.0)
        return max(min(distance, self.scores.get(t, math.inf)), least)


class ProfileSearch:
    """The search for the radial profiles of one input, one for each of its targets.

    rows                evaluates margins and gradients at points around the input.
    box                 (low, high), in which all points of the search stay, or None.
    smallest_only       whether only the nearest of all targets needs a score.
    most_gradients, most_seconds    the budget.
    """

    def __init__(
        self,
        example: Example,
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
        self.smallest_only = smallest_only
        self.most_gradients, self.most_seconds, self.share = most_gradients, most_seconds, 1.0
        self.x = example.x
        self.dim = example.x.numel()
        self.from_crossings = effort.from_crossings
        self.factor = effort.work * (FEW_DIMENSIONS_FACTOR if self.dim <= FEW_DIMENSIONS else 1)
        self.targets = [TargetSearch(margin) for margin in example.margins]
        self.directions = Directions(self.p, seed, example.input_id, example.x)
        self.crossings = CrossingSearch(
            self.x, rows, self.targets, example.targets, self.directions, self.p, self.radius, box, smallest_only,
            self.factor, MOST_ROUNDS * effort.work, max(REFINED, self.factor * SHELL_STARTS), self._affords,
        )  # fmt: skip
        self.untargeted: Untargeted | None = None
        self.began = time.perf_counter()
        self.seconds = 0.0

    def run(self) -> None:
        """Run all stages of the search."""
        self.began = time.perf_counter()
        if self.from_crossings and not self.smallest_only and len(self.targets) > 1:
            self._stages(smallest_only=True, share=UNTARGETED_SHARE)
            self._open_all()
        self._stages(self.smallest_only)
        self.seconds = time.perf_counter() - self.began

    def _stages(self, smallest_only: bool, share: float = 1.0) -> None:
        """Run descents and ascents once: for the nearest of all targets if `smallest_only`, else for each target.

        share   the part of the budget that may be used up when they end.
        """
        self.share, self.crossings.smallest_only = share, smallest_only
        self._prefilter()
        if self.from_crossings:
            self.crossings.run(_ascent_cost(SHELL_STEPS, self.factor))
        self._ascend()

    def _open_all(self) -> None:
        """Record the results of the untargeted search, and prepare all targets for their own search."""
        ended = [t for t, target in enumerate(self.targets) if target.finished]
        if ended:
            self.untargeted = Untargeted(
                self.crossings.nearest, {t: self._distance(t) for t in ended}, {t: self.targets[t].upper for t in ended}
            )
        for target in self.targets:
            if target.stopped != StopReason.EXACT:
                target.stopped = ""
                if not len(target.falls):  # it went through no ascent, so the value is that of an earlier stage
                    target.value = math.inf

    @property
    def stopped(self) -> tuple[str, ...]:
        """Why the search ended, per target."""
        return tuple(target.stopped for target in self.targets)

    def profiles(self) -> tuple[RadialProfile, ...]:
        """The radial profile of each target."""
        return tuple(self._profile(t) for t in range(len(self.targets)))

    def _profile(self, t: int) -> RadialProfile:
        target, distance = self.targets[t], self._distance(t)
        low = target.low * (1.0 - self.crossings.unseen(t))
        return RadialProfile(
            distance, min(low, distance), target.upper, target.falls, EDGES[: len(target.falls)],
            math.ceil(target.gradients), self._outcome(t).value,
        )  # fmt: skip

    def _distance(self, t: int) -> float:
        """The score of target `t`: the root, reduced for crossings that were probably missed.

        It is not below `_least`, agrees with the untargeted search if there was one, and is at most the ball's radius.
        Once a crossing is known, the search does not depend on the radius, so all larger radii give the same score.
        """
        distance, upper = self.targets[t].value, self.targets[t].upper
        if self.from_crossings:
            distance = max(distance * (1.0 - self.crossings.unseen(t)), self._least(t))
        if self.untargeted is not None:
            distance = self.untargeted.agreed(distance, t, upper)
        return min(distance, self.radius)

    def _least(self, t: int) -> float:
        """The smallest score that target `t` can have: a share of its nearest crossing's distance, or 0."""
        upper = self.targets[t].upper
        return LEAST_SHARE * upper if self.from_crossings and math.isfinite(upper) else 0.0

    def _outcome(self, t: int) -> FitOutcome:
        target = self.targets[t]
        if self.rows.broken & {ANY, self.example.targets[t]}:
            return FitOutcome.NOT_FINITE
        if target.stopped == StopReason.EXACT:
            return FitOutcome.CONSTANT
        if self.rows.steepest == 0.0:
            return FitOutcome.ZERO
        settled = target.finished and target.low >= (1.0 - UNSETTLED) * min(target.value, self.radius)
        # A root at the radius or beyond is trusted if a crossing was found. If none was found, the descents may have
        # missed a crossing inside the ball.
        beyond = target.value >= self.radius and (math.isfinite(target.upper) or not self.from_crossings)
        return FitOutcome.ASCENDED if settled or beyond else FitOutcome.UNSETTLED

    def _affords(self, gradients: float) -> bool:
        """Whether this many more gradients are within the budget, at the speed measured so far."""
        elapsed = time.perf_counter() - self.began
        each = elapsed / max(self.rows.spent, 1.0)
        return (
            self.rows.spent + gradients <= self.share * self.most_gradients
            and elapsed + gradients * each <= self.share * self.most_seconds
        )

    def _prefilter(self) -> None:
        """Give targets without a positive margin the score 0. If only the nearest of many targets is needed, drop those
        that are far by margin / ||gradient|| at the input.
        """
        for target in self.targets:
            if target.margin <= 0.0:
                target.value, target.low, target.stopped, target.finished = 0.0, 0.0, StopReason.EXACT, True
        if not self.crossings.smallest_only or len(self.targets) <= MANY_TARGETS:
            return
        norms = margin_gradient_norms(
            self.rows.classifier, self.x[None], predicted=self.example.predicted, targets=self.example.targets, q=self.q
        )[0].double()
        distances = torch.tensor(self.example.margins, dtype=torch.float64) / norms.cpu()
        for rank, t in enumerate(distances.argsort().tolist()):
            target = self.targets[t]
            target.gradients += 1.0
            if not target.stopped and rank >= PREFILTERED:
                target.value, target.stopped = float(distances[t]), StopReason.ELIMINATED

    def _ascend(self) -> None:
        """Run ascents across the shells of the targets that are still searched, in batches of targets.

        If only the nearest target is needed, targets that are far are dropped after the first steps. The ascents of the
        others are completed if the budget allows it.
        """
        starts = self.factor * SHELL_STARTS
        together = max(1, NUMBERS_TOGETHER // (len(EDGES) * starts * self.dim))
        for t in self.crossings.active:
            if self.untargeted is not None and self.untargeted.searched(t, self.targets[t].upper):
                self._end(t)
        active = self.crossings.active
        groups = [active[first : first + together] for first in range(0, len(active), together)]
        ascents = [(places, self._begin(places, starts)) for places in groups]
        for places, ascent in ascents:
            self._climb(ascent, places, 0, FIRST_SHELL_STEPS)
        if self.crossings.smallest_only:
            values = [max(target.value, self._least(t)) for t, target in enumerate(self.targets)]
            leave_out(self.targets, values, SLACK * min((values[t] for t in active), default=math.inf))
        for places, ascent in ascents:
            keep = [i for i, t in enumerate(places) if not self.targets[t].stopped]
            left = [places[i] for i in keep]
            if not left:
                continue
            if self._affords(len(left) * _ascent_cost(SHELL_STEPS - FIRST_SHELL_STEPS, self.factor)):
                ascent.select(torch.tensor(keep, device=self.x.device))
                self._climb(ascent, left, FIRST_SHELL_STEPS, SHELL_STEPS)
                for t in left:
                    self._end(t)
            else:
                for t in left:
                    self.targets[t].stopped = StopReason.BUDGET

    def _end(self, t: int) -> None:
        self.targets[t].finished = True
        self.targets[t].stopped = StopReason.SETTLED if self.crossings.settled(t) else StopReason.ALL_STARTS

    def _begin(self, places: Sequence[int], starts: int) -> ShellAscent:
        drawn = self.directions.draw(0, starts)
        directions = []
        for t in places:
            target = self.targets[t]
            known = target.crossings[: max(1, starts - 1)]
            if target.gradient is not None:
                known = [*known, -steepest(target.gradient[None], self.p)[0]]
            first = [unit(torch.stack(known), self.p)] if known else []
            directions.append(torch.cat([*first, drawn[len(known) :]]))
        classes = torch.tensor([self.example.targets[t] for t in places], device=self.x.device)
        margins = self.x.new_tensor([self.targets[t].margin for t in places])
        limits = self.x.new_tensor([self._limit(t) for t in places])
        radii = torch.minimum(limits, self.x.new_tensor(DESCENT_SLACK[1] * self.crossings.nearest))
        if not self.from_crossings:
            x = self.x.expand(len(places), *self.x.shape)
            slopes = dual_norms(self.rows.margins_and_gradients(x, classes)[1].flatten(1), self.q)
            radii = torch.minimum(limits, margins / slopes.clamp_min(1e-30))
        return ShellAscent.begin(
            self.rows, self.x, classes, margins, limits, torch.stack(directions), radii=radii,
            p=self.p, edges=EDGES, box=self.box,
        )  # fmt: skip

    def _limit(self, t: int) -> float:
        """The largest radius of a target's ascents: its nearest crossing's distance, else the ball's radius."""
        upper = self.targets[t].upper
        return upper if math.isfinite(upper) else self.radius

    def _climb(self, ascent: ShellAscent, places: Sequence[int], first: int, last: int) -> None:
        before = self.rows.spent
        ascent.climb(first, last, SHELL_STEPS)
        radii, falls = ascent.roots(self.radius)
        for i, t in enumerate(places):
            target = self.targets[t]
            if self.from_crossings:
                target.passed = min(target.passed, float(ascent.nearest[i]))
            # Directions whose falls add up to the margin at some radius show that the root is at most this radius, so
            # the smallest one is kept. The tensors `radii` and `limits` are rounded to the network's precision: where
            # they are equal, the limit itself is used.
            root = float(radii[i]) if bool(radii[i] < ascent.limits[i]) else self._limit(t)
            if not len(target.falls) or root <= target.value:
                target.value, target.falls = root, falls[i].double().cpu().numpy()
            target.value = min(target.value, target.upper)
            target.low = _low(target.value, self._limit(t), self.crossings.settled(t))
            target.gradients += (self.rows.spent - before) / len(places)


def _low(value: float, upper: float, settled: bool) -> float:
    """A cautious guess of the root that a longer search would give.

    value       the root.
    upper       the distance of the nearest crossing, or the ball's radius if none was found.
    settled     whether enough far groups found this crossing.

    >>> _low(0.95, 1.0, settled=True) < 0.95 and _low(0.95, 1.0, settled=False) < 0.9 * 0.95
    True
    """
    gap = 1.0 - value / upper if 0.0 < upper < math.inf else 0.0
    return value * max(0.0, 1.0 - SEARCH_ERROR - GAP_WEIGHT * gap - (0.0 if settled else NOT_MET_ENOUGH))


def searches(
    classifier: Classifier,
    examples: Sequence[Example],
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
    """Search all inputs and yield (position in `examples`, finished search) in order.

    Inputs are searched in parallel, one thread each; a single input uses all threads for its chunks. Both give the same
    numbers, since a chunk never contains points of two inputs and chunks begin and end at the same points in both
    cases. With a limited budget, as many inputs as there are threads are searched at a time. Each of them may use an
    equal share of what is left, so that later inputs get what earlier ones did not use.

    smallest_only   whether only the nearest of all targets of an input needs a score.
    chunk_size      points per forward pass.
    on_points       a function that is called with the number of gradients just spent.
    """
    box = box_of(ball.region, classifier.bounds)
    together = max(1, len(examples) if budget.unlimited else min(workers, len(examples)))

    def search(position: int, inner: ThreadPoolExecutor | None, gradients: float, seconds: float) -> ProfileSearch:
        example = examples[position]
        rows = MarginRows(classifier, example.predicted, example.targets, chunk_size, inner, on_points)
        found = ProfileSearch(
            example, rows, ball=ball, box=box, seed=seed, smallest_only=smallest_only, most_gradients=gradients,
            most_seconds=seconds, effort=effort or Effort(),
        )  # fmt: skip
        found.run()
        return found

    with pool(workers) as executor:
        for first in range(0, len(examples), together):
            group = range(first, min(first + together, len(examples)))
            share = budget.share(len(group), len(examples) - first)
            limits = share.gradients / len(group), share.seconds
            with share.charging() as charge:
                if len(group) == 1:
                    found = iter([search(first, executor, *limits)])
                else:
                    futures = [executor.submit(search, i, None, *limits) for i in group]
                    found = (future.result() for future in futures)
                for position, each in zip(group, found, strict=True):
                    charge.gradients += math.ceil(each.rows.spent)
                    yield position, each
