"""Estimator: the base class of all methods that compute what a score needs, built-in or a user's own."""

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

OnWork = Callable[[int], None]  # is called with the work done since its last call, in the units of `Prepared.max_work`


@dataclass(frozen=True)
class Wording:
    """Texts about an estimator for tables and reports; a run stores them, so a report does not need the estimator.

    work            what the estimator computes for a target, as part of a sentence: "500 blocks of 1024 points".
    all_well        what a report says if nothing went wrong: "every input has a score".
    settings        rows (name, value) for the report's table of settings.
    how_to_read     paragraphs (title, text) for the report's explanations.
    """

    work: str
    all_well: str = "every input has a score"
    settings: tuple[tuple[str, str], ...] = ()
    how_to_read: tuple[tuple[str, str], ...] = ()


class Estimator:
    """A method that measures around an input what its scores are computed from: block maxima or radial profiles.

    Pass your own as `clever(..., method=)` (docs/extend.md). A subclass must have a `name` and the method `measure`.
    The defaults of the other members suit an estimator that measures one input at a time with a fixed amount of work.

    name        the value of the column `method` in result rows.
    radius      default radius of the ball.
    penalty     default weight of the penalty (scale / range)^2 in the tail fit.
    cap         whether scores are capped at the radius, as in Algorithm 1.
    tail        a tail model instead of the reverse Weibull law: (maxima, level) -> tails.Endpoints.
    unused      names of settings that the estimator does not use, such as "tolerance".
    activity    the text of the progress bar.
    title       the heading of its column in a table of several methods; default: its name.
    per_target  whether each target is measured at points of its own; otherwise all targets of an input share points.
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
        """Measure around one example for all its targets, with `ready.classifier` and within the budget if possible."""
        raise NotImplementedError

    def max_work(self, settings: Settings, dim: int) -> int:
        """The largest number of points per input (with `per_target`: of gradients per target), for progress and cost.

        dim: the number of components of an input.
        """
        return settings.blocks * settings.block_size

    def stops_early(self, settings: Settings) -> bool:
        """Whether the estimator may do less work than `max_work`."""
        return settings.adaptive

    def check(self, settings: Settings) -> None:
        """Raise a SettingError for settings that the estimator cannot use; the default checks the ball."""
        self.ball_of(settings)

    def ball_of(self, settings: Settings) -> LpBall:
        """The ball around each input for these settings."""
        from cleverscore.inputs.balls import LpBall

        assert settings.radius is not None  # set in Settings
        return LpBall(settings.p, settings.radius, settings.region)

    def rule(self, settings: Settings) -> ScoreRule:
        """The rule by which scores are computed from measurements."""
        assert settings.radius is not None  # both are set in Settings
        assert settings.penalty is not None
        return ScoreRule(
            p=settings.p, radius=settings.radius, method=self.name, target_kind=target_kind(settings.targets),
            penalty=settings.penalty, cap=self.cap, level=settings.level, title=self.title, tail=self.tail,
        )  # fmt: skip

    def wording(self, settings: Settings) -> Wording:
        """The texts about this estimator for tables and reports."""
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
        """Optimise a classifier for speed, check the optimised one on the examples, and choose the chunk size.

        chunk_size  points per forward pass; None lets the program choose.
        workers     number of threads; None for the default.
        """
        from cleverscore.models.input_box import box_of
        from cleverscore.threads import checked_workers

        box_of(settings.region, classifier.bounds)  # an error before anything is computed, if there is no box
        order = Order(self, classifier, settings, chunk_size, checked_workers(classifier.device, workers))
        return self.kind(classifier, settings).make(order, examples)

    def kind(self, classifier: Classifier, settings: Settings) -> type[Prepared]:
        """The subclass of `Prepared` of which `prepare` makes an object for this classifier."""
        return Prepared


class Order(NamedTuple):
    """The arguments of `Prepared.make`; a chunk size of None means that `make` chooses it."""

    estimator: Estimator
    classifier: Classifier
    settings: Settings
    chunk_size: int | None
    workers: int


@dataclass(frozen=True)
class Prepared:
    """An estimator with an optimised classifier, for one norm: `measure` computes what scores need.

    It can measure any inputs of the classifier, in any order. The same input has the same measurements each time.

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
        """Optimise the network for speed, and choose the chunk size."""
        import torch

        from cleverscore.estimators.sampling.chunk_size import resolved_chunk_size
        from cleverscore.models.optimize import CHECKED_INPUTS, tuned

        faster = tuned(order.classifier, torch.stack([example.x for example in examples[:CHECKED_INPUTS]]))
        chunk_size = resolved_chunk_size(faster, examples[0].x, order.chunk_size, workers=order.workers)
        return cls(order.estimator, faster, order.settings, chunk_size, order.workers)

    @property
    def splits(self) -> bool:
        """Whether parts of an input's blocks can be computed independently of each other, by the method `blocks`."""
        return False

    def max_work(self, dim: int) -> int:
        """The largest amount of work per input, in the units that `OnWork` functions get: those of the estimator."""
        return self.estimator.max_work(self.settings, dim)

    def measure(
        self, examples: Sequence[Example], *, budget: Budget | None = None, on_work: OnWork | None = None
    ) -> Iterator[tuple[int, Measurements]]:
        """Measure all examples; yields (position in `examples`, measurements) of each.

        budget  for all examples together; default: that of the settings.
        """
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
        """Draw the given blocks of each example for all its targets.

        Yields (position in `tasks`, maxima) of each task when it is done. A SettingError if the estimator cannot.
        """
        raise SettingError(f"the work of method {self.estimator.name!r} cannot be split into blocks")

    def probe(self, example: Example, points: int) -> float:
        """The seconds that it takes to compute margin gradients at `points` points of an example, for all its targets.

        They are computed for this.
        """
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
