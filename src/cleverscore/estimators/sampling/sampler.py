"""From examples to evidence: all blocks for all targets, or rounds in which targets race and budgets end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.estimators.ascent.profile_search import searches
from cleverscore.estimators.ascent.radial_profile import RadialProfile
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.sampling.block_maxima import BlockMaxima, Request, sample
from cleverscore.estimators.sampling.chunk_size import resolved_chunk_size
from cleverscore.estimators.sampling.many_classes import sketched_norms
from cleverscore.estimators.sampling.row_space import Reduced, reduced
from cleverscore.estimators.sampling.target_elimination import SKETCHED_DIRECTIONS, SKETCHED_POINTS, TargetElimination
from cleverscore.estimators.settings import Settings
from cleverscore.estimators.stop_reason import ALL_BLOCKS, BUDGET, EXACT
from cleverscore.inputs.balls import LpBall
from cleverscore.inputs.examples import Example
from cleverscore.inputs.targets import takes_smallest, target_kind
from cleverscore.models.classifier import Classifier
from cleverscore.models.input_box import box_of
from cleverscore.models.margin_gradients import margin_gradient_norms
from cleverscore.models.optimize import CHECKED_INPUTS, tuned
from cleverscore.models.structure import is_affine
from cleverscore.tails import FitOutcome
from cleverscore.threads import checked_workers, one_thread

Array = npt.NDArray[np.float64]

RACED_TOGETHER = 16  # inputs: enough work for all threads in a round, and results early
LEAST_BLOCKS = 10  # a tail fit needs them; a budget that runs out earlier is exceeded


def gather(
    classifier: Classifier,
    examples: Sequence[Example],
    settings: Settings,
    *,
    chunk_size: int | None = None,
    workers: int | None = None,
    on_points: Callable[[int], None] | None = None,
    shared_budget: Budget | None = None,
) -> Iterator[tuple[int, Measurements]]:
    """Draw the blocks of all examples and yield (position, evidence) as each input is complete.

    account     what adaptive sampling pays from; default: the budget of the settings.
    """
    ready = Sampler.make(
        classifier, examples[:CHECKED_INPUTS], settings, chunk_size=chunk_size, workers=workers, on_points=on_points
    )
    yield from ready.gather(examples, shared_budget=shared_budget)


@dataclass(frozen=True)
class Sampler:
    """A classifier made ready for one norm: exact shortcuts taken, the faster form checked, the chunk size chosen.

    It serves any inputs, in any order and any number of times, and gives the same numbers each time.
    """

    classifier: Classifier
    settings: Settings
    affine: bool
    reduced: Reduced
    chunk_size: int
    workers: int
    on_points: Callable[[int], None] | None = None

    @classmethod
    def make(
        cls,
        classifier: Classifier,
        examples: Sequence[Example],
        settings: Settings,
        *,
        chunk_size: int | None = None,
        workers: int | None = None,
        on_points: Callable[[int], None] | None = None,
    ) -> Sampler:
        """Prepare for inputs like the examples, on which faster forms of the network are checked."""
        workers = checked_workers(classifier.device, workers)
        box_of(settings.region, classifier.bounds)  # refuses a box that is not there before anything is computed
        if is_affine(classifier) and not (settings.sharp and settings.region == "box"):
            whole = Reduced(classifier, settings.ball)
            return cls(classifier, settings, True, whole, chunk_size or 1, workers, on_points)
        with one_thread():  # a decomposition on several threads is not the same to the last bit on another machine
            smaller = reduced(classifier, examples[0].x.shape, settings.ball)
            moved = [smaller.move(example) for example in examples[:CHECKED_INPUTS]]
        faster = tuned(smaller.classifier, torch.stack([example.x for example in moved]))
        resolved = resolved_chunk_size(faster, moved[0].x, chunk_size, workers=workers)
        return cls(classifier, settings, False, replace(smaller, classifier=faster), resolved, workers, on_points)

    def gather(
        self, examples: Sequence[Example], *, shared_budget: Budget | None = None
    ) -> Iterator[tuple[int, Measurements]]:
        """All evidence of the examples: (position, evidence) as each is complete."""
        if self.affine:
            yield from _affine(self.classifier, examples, self.settings)
            return
        budget = shared_budget or Budget.parse(self.settings.budget)
        moved = self._moved(examples)
        if self.settings.sharp:
            yield from self._sharp(moved, budget)
            return
        plan = self._plan(moved)
        yield from plan.race(budget) if self.settings.adaptive else plan.all_blocks()

    def blocks(self, tasks: Sequence[tuple[Example, range]]) -> Iterator[tuple[int, BlockMaxima]]:
        """Some blocks of each example for all its targets: (position, maxima) as each task is complete."""
        plan = self._plan(self._moved([example for example, _ in tasks]))
        size = self.settings.block_size
        requests = [plan.request(i, example.targets, blocks, size) for i, (example, blocks) in enumerate(tasks)]
        yield from plan.draw(requests)

    def _moved(self, examples: Sequence[Example]) -> list[Example]:
        with one_thread():
            return [self.reduced.move(example) for example in examples]

    def _plan(self, moved: Sequence[Example]) -> _SamplingJob:
        small = self.reduced
        draw = partial(
            sample, small.classifier, chunk_size=self.chunk_size, workers=self.workers, on_points=self.on_points
        )
        return _SamplingJob(small.classifier, moved, small.ball, self.settings, self.chunk_size, draw)

    def _sharp(self, moved: Sequence[Example], budget: Budget) -> Iterator[tuple[int, Measurements]]:
        """Radial profiles by descents and ascents."""
        # The projection of an l2 ball onto a subspace is an l2 ball.
        ball = LpBall(self.reduced.ball.p, self.reduced.ball.radius, self.reduced.ball.region)
        found = searches(
            self.reduced.classifier, moved, ball=ball, seed=self.settings.seed, budget=budget,
            smallest_only=takes_smallest(target_kind(self.settings.targets)), chunk_size=self.chunk_size,
            workers=self.workers, on_points=self.on_points,
        )  # fmt: skip
        for i, search in found:
            yield i, _searched(moved[i], search.profiles(), search.seconds, search.stopped)


def _affine(
    classifier: Classifier, examples: Sequence[Example], settings: Settings
) -> Iterator[tuple[int, Measurements]]:
    """The gradient is the same everywhere: the input and one more point tell it, and the larger norm counts twice.

    In the box, margin / (masked norm) is a lower bound of the distance, not always the distance itself: a move may end
    at a face before it is that long.
    """
    ball = settings.ball
    for position, example in enumerate(examples):
        began = time.perf_counter()
        norms = margin_gradient_norms(
            classifier,
            torch.stack([example.x, example.x + ball.radius]),
            predicted=example.predicted,
            targets=example.targets,
            q=ball.q,
            moves=ball.moves(example.x, classifier.bounds),
        )
        largest = norms.amax(0).double().cpu().numpy()
        count = len(example.targets)
        stopped = (EXACT,) * count
        if settings.sharp:
            profiles = tuple(
                _flat_profile(float(norm), margin, ball.radius)
                for norm, margin in zip(largest, example.margins, strict=True)
            )
            yield position, _searched(example, profiles, time.perf_counter() - began, stopped)
        else:
            maxima = tuple(np.full(2, value) for value in largest)
            yield position, Measurements.of(example, maxima, (1,) * count, time.perf_counter() - began, stopped)


def _flat_profile(norm: float, margin: float, radius: float) -> RadialProfile:
    """The profile of an affine classifier: one shell, and the margin falls as fast everywhere."""
    upper = max(margin, 0.0) / norm if norm > 0.0 else math.inf
    distance = min(upper, radius)
    outcome = FitOutcome.CONSTANT if norm > 0.0 else FitOutcome.ZERO
    if not math.isfinite(norm):
        outcome = FitOutcome.NOT_FINITE
    return RadialProfile(distance, distance, upper, np.array([norm * distance]), (1.0,), 2, outcome.value)


def _searched(
    example: Example, profiles: tuple[RadialProfile, ...], seconds: float, stopped: tuple[str, ...]
) -> Measurements:
    nothing = tuple(np.empty(0) for _ in example.targets)
    return Measurements.of(example, nothing, (0,) * len(nothing), seconds, stopped, profiles=profiles)


@dataclass(frozen=True)
class _SamplingJob:
    """Subjects and their ball as the network sees them after exact shortcuts, and how points are drawn."""

    classifier: Classifier
    examples: Sequence[Example]
    ball: LpBall
    settings: Settings
    chunk_size: int
    draw: Callable[[Sequence[Request]], Iterator[tuple[int, BlockMaxima]]]

    def request(self, position: int, targets: tuple[int, ...], blocks: range, block_size: int) -> Request:
        """Ask for blocks of one example."""
        example = self.examples[position]
        return Request(
            x=example.x,
            input_id=example.input_id,
            predicted=example.predicted,
            targets=targets,
            ball=self.ball,
            blocks=blocks,
            block_size=block_size,
            seed=self.settings.seed,
        )

    def all_blocks(self) -> Iterator[tuple[int, Measurements]]:
        """Every block for every target, as the paper does."""
        size = self.settings.block_size
        blocks = range(self.settings.blocks)
        requests = [self.request(i, example.targets, blocks, size) for i, example in enumerate(self.examples)]
        for i, maxima in self.draw(requests):
            example = self.examples[i]
            count = len(example.targets)
            values = tuple(maxima.values)
            yield i, Measurements.of(example, values, (size,) * count, maxima.seconds, (ALL_BLOCKS,) * count)

    def race(self, budget: Budget) -> Iterator[tuple[int, Measurements]]:
        """Rounds of more blocks for the races that still run, a group of inputs at a time."""
        for start in range(0, len(self.examples), RACED_TOGETHER):
            group = range(start, min(start + RACED_TOGETHER, len(self.examples)))
            races = {i: self.settings.race(self.examples[i]) for i in group}
            seconds = dict.fromkeys(group, 0.0)
            group_budget = budget.share(len(group), len(self.examples) - start)
            self._sketch(races, seconds, group_budget)
            self._prefilter(races, seconds, group_budget)
            while races:
                self._round(races, seconds, group_budget)
                for i in [i for i, race in races.items() if not race.active]:
                    race = races.pop(i)
                    found = Measurements.of(
                        self.examples[i], race.maxima, tuple(race.block_sizes), seconds[i], tuple(race.stopped),
                        gradients=tuple(race.gradients),
                    )  # fmt: skip
                    yield i, found

    def _sketch(self, races: dict[int, TargetElimination], seconds: dict[int, float], group_budget: Budget) -> None:
        """Random projections for races with many targets: most of them end there, for a gradient each at most.

        Not in the box: projections tell norms of whole gradients, and which components count differs between targets.
        """
        if self.ball.region == "box":
            return
        for i, race in races.items():
            if not race.needs_prefilter:
                continue
            began = time.perf_counter()
            example = self.examples[i]
            points = torch.cat(
                [
                    self.ball.points(
                        example.x, count=1, seed=self.settings.seed, input_id=example.input_id, block=block, tile=0,
                        bounds=self.classifier.bounds,
                    )
                    for block in race.prefilter_blocks[:SKETCHED_POINTS]
                ]
            )  # fmt: skip
            with group_budget.charging(SKETCHED_POINTS * SKETCHED_DIRECTIONS):
                norms = sketched_norms(
                    self.classifier, points, predicted=example.predicted, targets=race.targets, q=self.ball.q,
                    directions=SKETCHED_DIRECTIONS, chunk_size=self.chunk_size, seed=self.settings.seed,
                    input_id=example.input_id,
                )  # fmt: skip
            if norms is not None and np.isfinite(norms).all():
                race.sketch(norms)
            seconds[i] += time.perf_counter() - began

    def _prefilter(self, races: dict[int, TargetElimination], seconds: dict[int, float], group_budget: Budget) -> None:
        """A few points for races with many targets, so that blocks are drawn for the promising ones only."""
        many = [i for i, race in races.items() if race.needs_prefilter]
        requests = [
            self.request(i, tuple(races[i].targets[t] for t in races[i].active), races[i].prefilter_blocks, 1)
            for i in many
        ]
        with group_budget.charging(sum(len(r.targets) * len(r.blocks) for r in requests)):
            for position, maxima in self.draw(requests):
                races[many[position]].prefilter(maxima.values)
                seconds[many[position]] += maxima.seconds

    def _round(self, races: dict[int, TargetElimination], seconds: dict[int, float], group_budget: Budget) -> None:
        """Blocks up to each race's next look, or what the budget allows."""
        size = self.settings.block_size
        ahead = {i: race.next_checkpoint() - race.drawn for i, race in races.items()}
        costs = {i: len(race.active) * size for i, race in races.items()}
        least = max(0, LEAST_BLOCKS - min(race.drawn for race in races.values()))
        allowed = group_budget.allowed_blocks(costs, ahead, least=least)
        if allowed == 0:
            for race in races.values():
                race.stop(BUDGET)
            return
        order = list(races)
        requests = [self._next_request(i, races[i], min(ahead[i], allowed)) for i in order]
        with group_budget.charging(sum(len(r.targets) * len(r.blocks) * size for r in requests)):
            for position, maxima in self.draw(requests):
                seconds[order[position]] += maxima.seconds
                races[order[position]].add(maxima.values)

    def _next_request(self, position: int, race: TargetElimination, count: int) -> Request:
        """The next blocks of the targets that are still in."""
        targets = tuple(race.targets[t] for t in race.active)
        return self.request(position, targets, range(race.drawn, race.drawn + count), self.settings.block_size)
