"""Estimator: what measures a classifier near inputs. The built-in methods and a user's own are subclasses of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cleverscore import tails
from cleverscore.errors import SettingError
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.score_rule import ScoreRule
from cleverscore.inputs.targets import target_kind

if TYPE_CHECKING:
    from cleverscore.estimators.measurements import Measurements
    from cleverscore.estimators.sampling.block_maxima import BlockMaxima
    from cleverscore.estimators.settings import Settings
    from cleverscore.inputs.balls import LpBall
    from cleverscore.inputs.examples import Example
    from cleverscore.models.classifier import Classifier

OnWork = Callable[[int], None]  # hears how much work was done, in the units of `Prepared.max_work`


@dataclass(frozen=True)
class Wording:
    """What tables and reports say of an estimator; a run keeps it, so that a reader does not need the estimator.

    work            what was computed for a target, as part of a sentence.
    all_well        what there is to say where nothing went wrong.
    settings        rows (name, value) of the report's table of settings.
    how_to_read     paragraphs (title, text) of the report.
    """

    work: str
    all_well: str = "every input has a score"
    settings: tuple[tuple[str, str], ...] = ()
    how_to_read: tuple[tuple[str, str], ...] = ()


class Estimator:
    """A way to measure a classifier near an input; `clever(..., method=)` takes one of your own (docs/extend.md).

    A subclass has a `name` and the method `measure`. The other members have defaults that suit an estimator which does
    a fixed amount of work for one input after the other.

    name        what result rows carry in their column `method`.
    radius      of the ball, where the user gives none.
    penalty     the weight of (scale / range)^2 in the tail fit, where the user gives none.
    cap         whether the radius bounds the score, as Algorithm 1 says.
    tail        a tail model instead of the reverse Weibull law: (maxima, level) -> tails.Endpoints.
    unused      settings that have no meaning for it.
    activity    what a progress bar says.
    title       what a table with several methods calls it; default: its name.
    per_target  whether each target is measured at points of its own; else a point serves all targets.
    """

    name: str
    radius: float = 5.0
    penalty: float = tails.PENALTY
    cap: bool = True
    tail: tails.TailModel | None = None
    unused: tuple[str, ...] = ()
    activity: str = "measuring"
    title: str = ""
    per_target: bool = False

    def measure(self, ready: Prepared, example: Example, budget: Budget) -> Measurements:
        """Measure one example with `ready.classifier`, within the budget if it can be."""
        raise NotImplementedError

    def max_work(self, settings: Settings, dim: int) -> int:
        """Points per input, or with `per_target` gradients per target, at most: for progress and cost."""
        return settings.blocks * settings.block_size

    def stops_early(self, settings: Settings) -> bool:
        """Whether it may do less than `max_work`."""
        return settings.adaptive

    def check(self, settings: Settings) -> None:
        """Refuse settings that it cannot work with: at least a ball that does not exist."""
        self.ball_of(settings)

    def ball_of(self, settings: Settings) -> LpBall:
        """The ball around each input."""
        from cleverscore.inputs.balls import LpBall

        assert settings.radius is not None  # set in Settings
        return LpBall(settings.p, settings.radius, settings.region)

    def rule(self, settings: Settings) -> ScoreRule:
        """How measurements become scores."""
        assert settings.radius is not None  # both are set in Settings
        assert settings.penalty is not None
        return ScoreRule(
            p=settings.p, radius=settings.radius, method=self.name, target_kind=target_kind(settings.targets),
            penalty=settings.penalty, cap=self.cap, level=settings.level, title=self.title, tail=self.tail,
        )  # fmt: skip

    def wording(self, settings: Settings) -> Wording:
        """What is said of it."""
        return Wording(f"method {self.name}")

    def prepare(
        self,
        classifier: Classifier,
        examples: Sequence[Example],
        settings: Settings,
        *,
        chunk_size: int | None = None,
        workers: int | None = None,
    ) -> Prepared:
        """Make a classifier ready for inputs like the examples, on which faster forms of it are checked."""
        from cleverscore.models.input_box import box_of
        from cleverscore.threads import checked_workers

        box_of(settings.region, classifier.bounds)  # refuses a box that is not there before anything is computed
        order = Order(self, classifier, settings, chunk_size, checked_workers(classifier.device, workers))
        return self.kind(classifier, settings).make(order, examples)

    def kind(self, classifier: Classifier, settings: Settings) -> type[Prepared]:
        """What a classifier is made ready as."""
        return Prepared


class Order(NamedTuple):
    """What is to be made ready; the chunk size is None where it is still to be chosen."""

    estimator: Estimator
    classifier: Classifier
    settings: Settings
    chunk_size: int | None
    workers: int


@dataclass(frozen=True)
class Prepared:
    """An estimator with a classifier made ready for one norm.

    It serves any inputs, in any order and any number of times, and gives the same numbers each time.

    chunk_size  points per forward pass.
    workers     threads.
    """

    estimator: Estimator
    classifier: Classifier
    settings: Settings
    chunk_size: int
    workers: int

    @classmethod
    def make(cls, order: Order, examples: Sequence[Example]) -> Prepared:
        """Choose the fastest form of the network and the chunk size."""
        import torch

        from cleverscore.estimators.sampling.chunk_size import resolved_chunk_size
        from cleverscore.models.optimize import CHECKED_INPUTS, tuned

        faster = tuned(order.classifier, torch.stack([example.x for example in examples[:CHECKED_INPUTS]]))
        chunk_size = resolved_chunk_size(faster, examples[0].x, order.chunk_size, workers=order.workers)
        return cls(order.estimator, faster, order.settings, chunk_size, order.workers)

    @property
    def splits(self) -> bool:
        """Whether the blocks of an input can be computed apart from each other, by `blocks`."""
        return False

    def max_work(self, dim: int) -> int:
        """Work per input at most, in the units of progress."""
        return self.estimator.max_work(self.settings, dim)

    def measure(
        self, examples: Sequence[Example], *, budget: Budget | None = None, on_work: OnWork | None = None
    ) -> Iterator[tuple[int, Measurements]]:
        """Measure all examples: (position, measurements) as each is complete. Default budget: that of the settings."""
        budget = budget or Budget.parse(self.settings.budget)
        for position, example in enumerate(examples):
            share = budget.share(1, len(examples) - position)
            with share.charging() as charge:
                found = self.estimator.measure(self, example, share)
                charge.gradients += sum(found.gradients)
            if on_work is not None:
                on_work(self.max_work(example.x.numel()))
            yield position, found

    def blocks(
        self, tasks: Sequence[tuple[Example, range]], *, on_work: OnWork | None = None
    ) -> Iterator[tuple[int, BlockMaxima]]:
        """Some blocks of each example for all its targets: (position, maxima) as each task is complete."""
        raise SettingError(f"the work of method {self.estimator.name!r} cannot be split into blocks")

    def probe(self, example: Example, points: int) -> float:
        """Seconds that margin gradients at so many points take."""
        return self._probed(self.classifier, example, self.estimator.ball_of(self.settings), points)

    def _probed(self, classifier: Classifier, example: Example, ball: LpBall, points: int) -> float:
        from cleverscore.estimators.sampling.block_maxima import Request, sample

        size = min(points, self.chunk_size)
        request = Request(
            example.x, example.input_id, example.predicted, example.targets, ball, range(-(-points // size)), size,
            self.settings.seed,
        )  # fmt: skip
        began = time.perf_counter()
        list(sample(classifier, [request], chunk_size=self.chunk_size, workers=self.workers))
        return time.perf_counter() - began
