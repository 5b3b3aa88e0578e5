"""SLOPE: the Lipschitz constant from slopes between pairs of points (Wood & Zhang, J. Global Optimization 8, 1996).

Consecutive points of a block are paired, x1 with x2, x3 with x4, and so on. With the margin g, the largest |g(x) -
g(y)| / ||x - y||_p over the pairs (x, y) of a block takes the place of its largest gradient norm. Blocks, their points
and the fit are CLEVER's. The slope between two distant points is an average of the gradient along their connecting
line, so the estimated constant is too small and the score too large.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.errors import SettingError
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.estimator import Estimator, Prepared
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.sampling.method import Method
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.inputs.balls import tile_points
from cleverscore.inputs.examples import Example
from cleverscore.models.classifier import Classifier
from cleverscore.models.margin_gradients import dual_norms
from cleverscore.threads import pool

if TYPE_CHECKING:
    from cleverscore.estimators.settings import Settings

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Slope(Method):
    """The method "slope": it samples the largest slopes between pairs of points instead of the largest gradient norms.

    Only forward passes are needed; the column `gradients` has the number of points. With region="box" both points of a
    pair lie within the classifier's bounds. Gradient components along which the input cannot move are left out by other
    methods then; a slope has no components, so here nothing is left out.
    """

    activity = "sampling slopes"
    unused = ("tolerance",)

    def check(self, settings: Settings) -> None:
        """Raise a SettingError for blocks of fewer than two points."""
        super().check(settings)
        if settings.block_size < 2:
            raise SettingError(f"block_size={settings.block_size}: a slope needs two points; give at least 2")

    kind = Estimator.kind  # no shortcuts for affine networks or in the row space of the first layer

    def measure(self, ready: Prepared, example: Example, budget: Budget) -> Measurements:
        """Draw all blocks of one example; the budget is not used."""
        began = time.perf_counter()
        with pool(ready.workers) as executor:
            columns = executor.map(lambda block: _largest_slopes(ready, example, block), range(ready.settings.blocks))
            maxima = np.stack(list(columns), 1)
        count = len(example.targets)
        seconds = time.perf_counter() - began
        return Measurements.of(
            example, maxima, (ready.settings.block_size,) * count, seconds, (StopReason.ALL_BLOCKS,) * count
        )


def _largest_slopes(ready: Prepared, example: Example, block: int) -> Array:
    """The largest slope of a block for each target: (targets,)."""
    largest: Array = np.full(len(example.targets), -np.inf)
    for points in _pairs(ready, example, block):
        slopes = pair_slopes(
            ready.classifier, points, predicted=example.predicted, targets=example.targets, p=ready.settings.p
        )
        # np.maximum keeps NaN, so that a logit that is not finite is never hidden.
        largest = np.maximum(largest, slopes.amax(0).cpu().numpy())
    return largest


def pair_slopes(
    classifier: Classifier, points: torch.Tensor, *, predicted: int, targets: Sequence[int], p: float
) -> torch.Tensor:
    """|g_j(x) - g_j(y)| / ||x - y||_p for consecutive pairs (x, y) and every target: (2n, *shape) -> (n, targets).

    g_j = f_c - f_j, where c is `predicted` and j a target.
    """
    with torch.no_grad():
        logits = classifier.logits(points).double()
        margins = logits[:, predicted, None] - logits[:, list(targets)]
        changes = (margins[0::2] - margins[1::2]).abs()
        lengths = dual_norms(points[0::2] - points[1::2], p).double()
        # Two points that are equal, as clipping to the box can make them, get the slope 0.
        slopes: torch.Tensor = torch.where(lengths[:, None] > 0.0, changes / lengths[:, None], 0.0)
    return slopes


def _pairs(ready: Prepared, example: Example, block: int) -> Iterator[torch.Tensor]:
    """The points of a block in order, in parts (2n, *shape) of an even number; an odd last point is left out."""
    settings, chunk_size = ready.settings, max(2, ready.chunk_size)
    ball = ready.estimator.ball_of(settings)
    size = tile_points(example.x.numel())
    waiting = example.x.new_empty(0, *example.x.shape)
    for tile, start in enumerate(range(0, settings.block_size, size)):
        count = min(size, settings.block_size - start)
        drawn = ball.points(
            example.x,
            count=count,
            seed=settings.seed,
            input_id=example.input_id,
            block=block,
            tile=tile,
            bounds=ready.classifier.bounds,
        )
        waiting = torch.cat([waiting, drawn])
        while len(waiting) >= chunk_size:
            even = chunk_size - chunk_size % 2
            yield waiting[:even]
            waiting = waiting[even:]
    if len(waiting) >= 2:
        yield waiting[: len(waiting) - len(waiting) % 2]
