"""Affine classifiers: the gradient is the same everywhere, so it is computed at two points instead of many."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from cleverscore.estimators.budget import Budget
from cleverscore.estimators.estimator import OnWork, Order, Prepared
from cleverscore.estimators.measurements import Measurements
from cleverscore.models.margin_gradients import margin_gradient_norms

if TYPE_CHECKING:
    from cleverscore.inputs.examples import Example


class AffinePrepared(Prepared):
    """Gradient norms of an affine classifier: for each target the larger one of those at the input and another point.

    A subclass makes measurements from them (`of_norms`). With region="box", components along which the input cannot
    move are set to 0 in the norm. Then margin / norm is a lower bound of the distance, not always the distance itself:
    a line from the input may leave the box before it reaches the decision boundary.
    """

    @classmethod
    def make(cls, order: Order, examples: Sequence[Example]) -> AffinePrepared:
        """Prepare: an affine classifier is not optimised, and its chunk size is 1 unless one is given."""
        return cls(order.estimator, order.classifier, order.settings, order.chunk_size or 1, order.workers)

    def max_work(self, dim: int) -> int:
        """The work per input: two points."""
        return 2

    def measure(
        self, examples: Sequence[Example], *, budget: Budget | None = None, on_work: OnWork | None = None
    ) -> Iterator[tuple[int, Measurements]]:
        """Measure all examples; yields (position in `examples`, measurements). The budget does not limit two points."""
        ball = self.estimator.ball_of(self.settings)
        for position, example in enumerate(examples):
            began = time.perf_counter()
            norms = margin_gradient_norms(
                self.classifier,
                torch.stack([example.x, example.x + ball.radius]),
                predicted=example.predicted,
                targets=example.targets,
                q=ball.q,
                moves=ball.moves(example.x, self.classifier.bounds),
            )
            largest = norms.amax(0).double().cpu().tolist()
            yield position, self.of_norms(example, largest, time.perf_counter() - began)

    @abstractmethod
    def of_norms(self, example: Example, norms: Sequence[float], seconds: float) -> Measurements:
        """Measurements of an example from gradient norms (targets,) that are the same everywhere."""
