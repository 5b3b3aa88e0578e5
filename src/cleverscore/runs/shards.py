"""Shards: the pieces of work into which a study is divided, and how a worker computes one.

A shard is some blocks of one or more inputs; if sampling is adaptive, it is one or more whole inputs. The result of a
shard does not depend on where, when or together with which other shards it is computed.
"""

from __future__ import annotations

import math
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cleverscore.errors import CleverError, SettingError
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.estimator import Prepared
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.sampling.block_maxima import BlockMaxima, blocks_together
from cleverscore.estimators.settings import Settings
from cleverscore.inputs.examples import Example
from cleverscore.models.classifier import Classifier
from cleverscore.runs.schema import EVERYTHING, StoredBlocks

SHARD_SECONDS = 20.0
MOST_INPUTS = 64  # in one shard: their results are stored together
# Adaptive sampling mostly ends after this share of the gradients that it may take.
ADAPTIVE_SHARE = 0.25


# How a worker loads a classifier that cannot be pickled: a function that can be imported, and its arguments.
Recipe = tuple[Callable[..., Classifier], tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """Some blocks of an input, or the whole input where `blocks` is None."""

    example: Example
    blocks: range | None


@dataclass(frozen=True)
class Shard:
    """Tasks of one series that are computed, stored and, after a failure, repeated together.

    norm    the name of the series: its norm, for further methods also the method, as in "inf/sharp".
    number  the row of the shard in the table `shards` of the run.
    """

    norm: str
    tasks: tuple[Task, ...]
    number: int = 0

    @property
    def content(self) -> str:
        """The tasks as text for the log in the store: "7: 0-63; 8: all"."""
        return "; ".join(
            f"{task.example.input_id}: "
            + ("all" if task.blocks is None else f"{task.blocks.start}-{task.blocks.stop - 1}")
            for task in self.tasks
        )


@dataclass(frozen=True)
class Finished:
    """The measurements of a shard, with the seconds they took and the name of the worker."""

    shard: Shard
    parts: tuple[StoredBlocks, ...]
    seconds: float
    worker: str


class Executor(Protocol):
    """Computes shards, on this machine or on a cluster.

    An executor takes a shard from the iterator only when it can start it. If a worker dies, its shard is computed
    again, so that there is a result for every shard that was taken. `slots` is the number of shards that are computed
    at the same time.
    """

    slots: int

    def run(self, context: WorkerContext, shards: Iterator[Shard]) -> Iterator[Finished]:
        """Compute the shards, in any order."""


class ShardQueue:
    """A queue of shards that wait for a worker; shards that were returned to it come first.

    most_deaths     if so many workers die while they compute the same shard, `repeat` raises an error.
    repeated        number of shards returned because their worker had died.
    """

    def __init__(self, shards: Iterator[Shard], most_deaths: int) -> None:
        self.repeated = 0
        self._shards, self._most_deaths = shards, most_deaths
        self._again: list[Shard] = []
        self._deaths: Counter[tuple[str, str]] = Counter()

    def next(self) -> Shard | None:
        """The next shard; None if there is none at the moment."""
        return self._again.pop() if self._again else next(self._shards, None)

    def put_back(self, shard: Shard) -> None:
        """Return a shard that a worker did not start."""
        self._again.append(shard)

    def repeat(self, shard: Shard, reason: str) -> None:
        """Return a shard whose worker died, with the reason, so that another worker computes it."""
        key = (shard.norm, shard.content)
        self._deaths[key] += 1
        if self._deaths[key] == self._most_deaths:
            raise CleverError(
                f"{self._most_deaths} workers died over the same piece of work (inputs and blocks {shard.content}), "
                f"the last one {reason}; what was stored is kept"
            )
        self.repeated += 1
        self.put_back(shard)


@dataclass
class WorkerContext:
    """What a worker needs to compute shards; `packed` and `unpacked` send it to another process.

    The keys of `settings`, `chunk_sizes` and `shares` are names of series, as in `Shard.norm`.

    examples    inputs on which the optimised network is checked; the same for all workers, so that all use the same
                network.
    threads     threads of one worker.
    shares      the budget of one input; a series without an entry has no limit.
    recipe      a function and its arguments with which a worker loads a classifier that cannot be sent; `classifier` is
                then None until `unpacked` has loaded it.
    on_points   called with the amount of work (such as points) that was done since the last call.
    """

    classifier: Classifier | None
    settings: Mapping[str, Settings]
    examples: Sequence[Example]
    chunk_sizes: Mapping[str, int]
    threads: int
    shares: Mapping[str, Budget] = field(default_factory=dict)
    recipe: Recipe | None = None
    on_points: Callable[[int], None] | None = None
    _ready: dict[str, Prepared] = field(default_factory=dict)

    def compute(self, shard: Shard) -> Finished:
        """Compute one shard in this process."""
        began = time.perf_counter()
        ready = self.prepared(shard.norm)
        device = ready.classifier.device
        examples = [replace(task.example, x=task.example.x.to(device)) for task in shard.tasks]
        if shard.tasks[0].blocks is None:
            found = dict(self._measured(ready, examples, self.shares.get(shard.norm)))
            parts = [StoredBlocks(shard.norm, found[i]) for i in range(len(examples))]
        else:
            tasks = [(s, task.blocks) for s, task in zip(examples, shard.tasks, strict=True) if task.blocks is not None]
            parts = [
                StoredBlocks(shard.norm, _some_blocks(examples[i], maxima), maxima.first, whole=False)
                for i, maxima in ready.blocks(tasks, on_work=self.on_points)
            ]
        return Finished(shard, tuple(parts), time.perf_counter() - began, f"process {os.getpid()}")

    def _measured(
        self, ready: Prepared, examples: Sequence[Example], share: Budget | None
    ) -> Iterator[tuple[int, Measurements]]:
        """Measure whole inputs; yields pairs (position in `examples`, measurements).

        share   the budget of one input; None for no limit. A limit on gradients holds for every input alone. A limit on
                seconds is multiplied by the number of inputs and holds for all together: one may use what others leave.
        """
        if share is None or math.isinf(share.gradients):
            # Together: a method may then measure several inputs at the same time, with the same results.
            budget = Budget(seconds=math.inf if share is None else share.seconds * len(examples))
            yield from ready.measure(examples, budget=budget, on_work=self.on_points)
            return
        for i, example in enumerate(examples):  # one at a time: what one leaves of its gradients must not go to another
            for _, found in ready.measure([example], budget=Budget(gradients=share.gradients), on_work=self.on_points):
                yield i, found

    def prepared(self, norm: str) -> Prepared:
        """The estimator with the optimised classifier, for the series of this name; made once and kept."""
        if norm not in self._ready:
            assert self.classifier is not None  # `unpacked` loads it
            settings = self.settings[norm]
            self._ready[norm] = settings.estimator.prepare(
                self.classifier, self.examples, settings, chunk_size=self.chunk_sizes.get(norm), workers=self.threads
            )
        return self._ready[norm]

    def packed(self, dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
        """This context as bytes, with the classifier or, if `dumps` cannot store it, with the recipe alone."""
        bare = replace(self, on_points=None, _ready={})
        try:
            return dumps(bare)
        except Exception as error:
            if self.recipe is None:
                raise SettingError(
                    f"the model cannot be sent to another process ({type(error).__name__}: {error}); score it with "
                    "threads of this process, or give it as something that can be loaded: a file or module:factory"
                ) from error
        return dumps(replace(bare, classifier=None))

    @classmethod
    def unpacked(cls, content: bytes, *, threads: int | None = None, device: str | None = None) -> WorkerContext:
        """The context from the bytes of `packed`, in a worker; model and inputs are moved to the device, if given."""
        context: WorkerContext = pickle.loads(content)
        if context.classifier is None:
            assert context.recipe is not None  # packed refuses otherwise
            load, arguments, options = context.recipe
            context.classifier = load(*arguments, **options)
        if device is not None:
            context.classifier = context.classifier.to(device)
            context.examples = [replace(s, x=s.x.to(device)) for s in context.examples]
        context.threads = threads or context.threads
        return context


def _some_blocks(example: Example, maxima: BlockMaxima) -> Measurements:
    count = len(example.targets)
    return Measurements.of(example, maxima.values, (maxima.block_size,) * count, maxima.seconds, ("",) * count)


def plan(
    examples: Sequence[Example],
    settings: Mapping[str, Settings],
    splits: Mapping[str, bool],
    covered: Mapping[tuple[int, str], Sequence[range]],
    *,
    chunk_sizes: Mapping[str, int],
    seconds_per_input: Mapping[str, float],
    shard_seconds: float = SHARD_SECONDS,
    threads: int = 1,
) -> list[Shard]:
    """Divide the missing work into shards of about `shard_seconds`.

    The keys of all mappings are names of series, as in `Shard.norm`; those of `covered` are pairs (input, series).

    splits              whether the blocks of an input can be computed apart; else a shard has whole inputs.
    covered             the blocks that are stored already.
    seconds_per_input   the time of an input of which nothing is stored.
    threads             threads of a worker; a shard has a multiple of so many whole inputs, since a worker may measure
                        one input in each thread.

    The shards are in an order that gives useful results early: first some blocks of every input, then the others; the
    series of an input follow each other.
    """
    shards: list[tuple[tuple[int, int, int], Shard]] = []
    for place, (norm, rule) in enumerate(settings.items()):
        each = max(seconds_per_input[norm], 1e-9)
        if not splits[norm]:
            missing = [example for example in examples if (example.input_id, norm) not in covered]
            together = _at_most(shard_seconds / (each * ADAPTIVE_SHARE), MOST_INPUTS)
            together = threads * math.ceil(together / threads)
            groups = [missing[i : i + together] for i in range(0, len(missing), together)]
            shards += [
                ((0, i, place), Shard(norm, tuple(Task(example, None) for example in group)))
                for i, group in enumerate(groups)
            ]
            continue
        step = blocks_together(chunk_sizes[norm], rule.block_size)
        size = max(1, round(shard_seconds * rule.blocks / each / step)) * step
        pieces = [
            (index, order, Task(example, blocks))
            for order, example in enumerate(examples)
            for index, blocks in enumerate(_gaps(covered.get((example.input_id, norm), ()), rule.blocks, size))
        ]
        pieces.sort(key=lambda piece: piece[:2])
        # Inputs that take less time than a shard are put together into one.
        shard: list[Task] = []
        blocks = 0
        first = (0, 0)
        for index, order, task in pieces:
            assert task.blocks is not None  # made above
            if shard and (blocks + len(task.blocks) > size or len(shard) == MOST_INPUTS):
                shards.append(((*first, place), Shard(norm, tuple(shard))))
                shard, blocks = [], 0
            if not shard:
                first = (index, order)
            shard.append(task)
            blocks += len(task.blocks)
        if shard:
            shards.append(((*first, place), Shard(norm, tuple(shard))))
    return [shard for _, shard in sorted(shards, key=lambda pair: pair[0])]


def _at_most(number: float, most: int) -> int:
    return max(1, min(most, math.floor(min(number, float(most)))))


def _gaps(covered: Sequence[range], blocks: int, size: int) -> list[range]:
    """The ranges of blocks below `blocks` that are not covered, split at multiples of `size`.

    >>> _gaps([range(0, 4), range(6, 7)], 10, 5)
    [range(4, 5), range(5, 6), range(7, 10)]
    """
    missing: list[range] = []
    start = 0
    for part in sorted([*covered, range(blocks, EVERYTHING)], key=lambda part: part.start):
        end = min(part.start, blocks)
        while start < end:
            stop = min(end, (start // size + 1) * size)
            missing.append(range(start, stop))
            start = stop
        start = max(start, part.stop)
    return missing
