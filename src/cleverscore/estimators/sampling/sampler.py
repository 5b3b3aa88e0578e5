"""Sampling for examples: all blocks for all targets, or in rounds with target elimination and a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.estimators.budget import Budget
from cleverscore.estimators.estimator import OnWork, Order, Prepared
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.sampling.block_maxima import BlockMaxima, Request, sample
from cleverscore.estimators.sampling.chunk_size import resolved_chunk_size
from cleverscore.estimators.sampling.many_classes import sketched_norms
from cleverscore.estimators.sampling.row_space import Reduced, reduced
from cleverscore.estimators.sampling.target_elimination import (
    SKETCHED_DIRECTIONS,
    SKETCHED_POINTS,
    Stopping,
    TargetElimination,
)
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.inputs.balls import LpBall
from cleverscore.inputs.examples import Example
from cleverscore.inputs.targets import takes_smallest
from cleverscore.models.classifier import Classifier
from cleverscore.models.optimize import CHECKED_INPUTS, tuned
from cleverscore.threads import one_thread

if TYPE_CHECKING:
    from cleverscore.estimators.settings import Settings

Array = npt.NDArray[np.float64]

TOGETHER = 16  # inputs that are sampled in the same rounds: enough work for all threads, and first results early
LEAST_BLOCKS = 10  # a tail fit needs so many blocks; they are drawn even if the budget is used up before


@dataclass(frozen=True)
class Sampler(Prepared):
    """Prepared sampling in one norm.

    reduced     the optimised classifier and the ball, in the row space of the first layer if possible (`row_space`).
                This changes the coordinates of inputs, but not the distribution of gradient norms.
    """

    reduced: Reduced

    @classmethod
    def make(cls, order: Order, examples: Sequence[Example]) -> Sampler:
        """Prepare for inputs like the examples; the first of these are used to check the optimised network."""
        ball = order.estimator.ball_of(order.settings)
        with one_thread():  # the last bits of a decomposition depend on the number of threads
            smaller = reduced(order.classifier, examples[0].x.shape, ball)
            moved = [smaller.move(example) for example in examples[:CHECKED_INPUTS]]
        faster = tuned(smaller.classifier, torch.stack([example.x for example in moved]))
        chunk_size = resolved_chunk_size(faster, moved[0].x, order.chunk_size, workers=order.workers)
        ready = replace(smaller, classifier=faster)
        return cls(order.estimator, order.classifier, order.settings, chunk_size, order.workers, ready)

    @property
    def splits(self) -> bool:
        """Whether parts of an input's blocks can be computed independently: yes unless sampling is adaptive."""
        return not self.settings.adaptive

    def measure(
        self, examples: Sequence[Example], *, budget: Budget | None = None, on_work: OnWork | None = None
    ) -> Iterator[tuple[int, Measurements]]:
        """Draw the blocks of all examples; yields (position in `examples`, measurements) of each when it is done."""
        job = self._job(examples, on_work)
        if self.settings.adaptive:
            yield from job.until_eliminated(budget or Budget.parse(self.settings.budget))
        else:
            yield from job.all_blocks()

    def blocks(
        self, tasks: Sequence[tuple[Example, range]], *, on_work: OnWork | None = None
    ) -> Iterator[tuple[int, BlockMaxima]]:
        """Draw the given blocks of each example for all its targets.

        Yields (position in `tasks`, maxima) of each task when it is done.
        """
        job = self._job([example for example, _ in tasks], on_work)
        size = self.settings.block_size
        requests = [job.request(i, example.targets, blocks, size) for i, (example, blocks) in enumerate(tasks)]
        yield from job.draw(requests)

    def probe(self, example: Example, points: int) -> float:
        """The seconds that it takes to compute margin gradients at `points` points of an example, for all its targets.

        They are computed for this, with the classifier that sampling uses (`reduced`).
        """
        (moved,) = self.moved([example])
        return self._probed(self.reduced.classifier, moved, self.reduced.ball, points)

    def moved(self, examples: Sequence[Example]) -> list[Example]:
        """The examples in the coordinates of the reduced classifier."""
        with one_thread():
            return [self.reduced.move(example) for example in examples]

    def _job(self, examples: Sequence[Example], on_work: OnWork | None) -> _SamplingJob:
        small = self.reduced
        draw = partial(sample, small.classifier, chunk_size=self.chunk_size, workers=self.workers, on_points=on_work)
        return _SamplingJob(small.classifier, self.moved(examples), small.ball, self, draw)


def target_elimination(example: Example | Measurements, settings: Settings) -> TargetElimination:
    """A new `TargetElimination` for one input, for these settings."""
    rule = settings.rule
    return TargetElimination(
        example.targets,
        example.margins,
        limit=rule.limit,
        penalty=rule.penalty,
        level=rule.level,
        blocks=settings.blocks,
        block_size=settings.block_size,
        stopping=Stopping(settings.tolerance or 0.0, takes_smallest(rule.target_kind), settings.threshold),
    )


@dataclass(frozen=True)
class _SamplingJob:
    """Sampling for some examples.

    classifier, examples, ball      in the coordinates of the reduced classifier.
    ready       the sampler whose settings and chunk size are used.
    draw        computes the block maxima of requests: `sample` with all its other arguments given.
    """

    classifier: Classifier
    examples: Sequence[Example]
    ball: LpBall
    ready: Sampler
    draw: Callable[[Sequence[Request]], Iterator[tuple[int, BlockMaxima]]]

    def request(self, position: int, targets: tuple[int, ...], blocks: range, block_size: int) -> Request:
        """A request for blocks of the example at this position, for these targets."""
        example = self.examples[position]
        return Request(
            x=example.x,
            input_id=example.input_id,
            predicted=example.predicted,
            targets=targets,
            ball=self.ball,
            blocks=blocks,
            block_size=block_size,
            seed=self.ready.settings.seed,
        )

    def all_blocks(self) -> Iterator[tuple[int, Measurements]]:
        """Draw every block for every target, as the paper does; yields (position, measurements)."""
        size = self.ready.settings.block_size
        blocks = range(self.ready.settings.blocks)
        requests = [self.request(i, example.targets, blocks, size) for i, example in enumerate(self.examples)]
        for i, maxima in self.draw(requests):
            example = self.examples[i]
            count = len(example.targets)
            values = tuple(maxima.values)
            yield i, Measurements.of(example, values, (size,) * count, maxima.seconds, (StopReason.ALL_BLOCKS,) * count)

    def until_eliminated(self, budget: Budget) -> Iterator[tuple[int, Measurements]]:
        """Draw blocks in rounds for the targets that are not eliminated; yields (position, measurements).

        Inputs are sampled in groups of 16. Each round draws the blocks up to the next checkpoint.
        """
        for start in range(0, len(self.examples), TOGETHER):
            group = range(start, min(start + TOGETHER, len(self.examples)))
            running = {i: target_elimination(self.examples[i], self.ready.settings) for i in group}
            seconds = dict.fromkeys(group, 0.0)
            group_budget = budget.share(len(group), len(self.examples) - start)
            self._sketch(running, seconds, group_budget)
            self._prefilter(running, seconds, group_budget)
            while running:
                self._round(running, seconds, group_budget)
                for i in [i for i, elimination in running.items() if not elimination.active]:
                    ended = running.pop(i)
                    found = Measurements.of(
                        self.examples[i], ended.maxima, tuple(ended.block_sizes), seconds[i], tuple(ended.stopped),
                        gradients=tuple(ended.gradients),
                    )  # fmt: skip
                    yield i, found

    def _sketch(self, running: dict[int, TargetElimination], seconds: dict[int, float], group_budget: Budget) -> None:
        """For inputs with many targets, eliminate targets by random projections of their gradients at a few points.

        running     by position in `examples`, the state of the inputs that are not finished; changed by this method.
        seconds     by position, the time spent so far; changed by this method.

        The 128 projections of an input cost about as much as 128 gradients, for all its targets together. With
        region="box" nothing is done: projections give norms of whole gradients, but there only some components count,
        others for each target.
        """
        if self.ball.region == "box":
            return
        for i, elimination in running.items():
            if not elimination.needs_prefilter:
                continue
            began = time.perf_counter()
            example = self.examples[i]
            points = torch.cat(
                [
                    self.ball.points(
                        example.x, count=1, seed=self.ready.settings.seed, input_id=example.input_id, block=block,
                        tile=0, bounds=self.classifier.bounds,
                    )
                    for block in elimination.prefilter_blocks[:SKETCHED_POINTS]
                ]
            )  # fmt: skip
            with group_budget.charging(SKETCHED_POINTS * SKETCHED_DIRECTIONS):
                norms = sketched_norms(
                    self.classifier, points, predicted=example.predicted, targets=elimination.targets, q=self.ball.q,
                    directions=SKETCHED_DIRECTIONS, chunk_size=self.ready.chunk_size, seed=self.ready.settings.seed,
                    input_id=example.input_id,
                )  # fmt: skip
            if norms is not None and np.isfinite(norms).all():
                elimination.sketch(norms)
            seconds[i] += time.perf_counter() - began

    def _prefilter(
        self, running: dict[int, TargetElimination], seconds: dict[int, float], group_budget: Budget
    ) -> None:
        """For inputs that still have many targets, eliminate some by gradient norms at a few points.

        `running` and `seconds` are those of `_sketch`.
        """
        many = [i for i, elimination in running.items() if elimination.needs_prefilter]
        requests = [
            self.request(i, tuple(running[i].targets[t] for t in running[i].active), running[i].prefilter_blocks, 1)
            for i in many
        ]
        with group_budget.charging(sum(len(r.targets) * len(r.blocks) for r in requests)):
            for position, maxima in self.draw(requests):
                running[many[position]].prefilter(maxima.values)
                seconds[many[position]] += maxima.seconds

    def _round(self, running: dict[int, TargetElimination], seconds: dict[int, float], group_budget: Budget) -> None:
        """Draw blocks up to each input's next checkpoint, or as many as the budget allows.

        `running` and `seconds` are those of `_sketch`. If the budget allows none, sampling ends for all these inputs.
        """
        size = self.ready.settings.block_size
        ahead = {i: elimination.next_checkpoint() - elimination.drawn for i, elimination in running.items()}
        costs = {i: len(elimination.active) * size for i, elimination in running.items()}
        least = max(0, LEAST_BLOCKS - min(elimination.drawn for elimination in running.values()))
        allowed = group_budget.allowed_blocks(costs, ahead, least=least)
        if allowed == 0:
            for elimination in running.values():
                elimination.stop(StopReason.BUDGET)
            return
        order = list(running)
        requests = [self._next_request(i, running[i], min(ahead[i], allowed)) for i in order]
        with group_budget.charging(sum(len(r.targets) * len(r.blocks) * size for r in requests)):
            for position, maxima in self.draw(requests):
                seconds[order[position]] += maxima.seconds
                running[order[position]].add(maxima.values)

    def _next_request(self, position: int, elimination: TargetElimination, count: int) -> Request:
        """A request for the next `count` blocks of an input, for its targets that are not eliminated."""
        targets = tuple(elimination.targets[t] for t in elimination.active)
        return self.request(
            position, targets, range(elimination.drawn, elimination.drawn + count), self.ready.settings.block_size
        )
