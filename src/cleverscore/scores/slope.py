"""SLOPE: the Lipschitz constant from slopes between pairs of points (Wood & Zhang, J. Global Optimization 8, 1996).

Consecutive points of a block are paired, x1 with x2, x3 with x4, and so on; the largest |g(x) - g(y)| / ||x - y||_p of
a block takes the place of its largest gradient norm. Blocks, their points and the fit are CLEVER's. A slope between far
points averages the gradient along the way, so the constant comes out too small and the score too large.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.errors import SettingError
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.sampling.chunk_size import resolved_chunk_size
from cleverscore.estimators.settings import Settings
from cleverscore.estimators.stop_reason import ALL_BLOCKS
from cleverscore.inputs.balls import LpBall, tile_points
from cleverscore.inputs.examples import Example, prepare
from cleverscore.inputs.targets import TargetsLike
from cleverscore.models.classifier import Classifier
from cleverscore.models.margin_gradients import dual_norms
from cleverscore.models.optimize import CHECKED_INPUTS, tuned
from cleverscore.scores.score import Scores, score_from
from cleverscore.threads import checked_workers, pool

Array = npt.NDArray[np.float64]


def slope_scores(
    classifier: Classifier,
    images: Any,
    *,
    p: float | str = 2.0,
    targets: TargetsLike = "untargeted",
    radius: float | None = None,
    blocks: int = 500,
    block_size: int = 1024,
    seed: int = 0,
    region: str = "ball",
    level: float = 0.95,
    labels: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    chunk_size: int | None = None,
    workers: int | None = None,
) -> Scores:
    """min(margin / L, radius), L fit to the largest slopes of pairs; arguments as `cleverscore.clever` has them.

    Only forward passes are needed; the column `gradients` counts points. With region="box" both points of a pair lie
    within the classifier's bounds; a slope has no components, so none are left out.

    >>> scores = slope_scores(Classifier(torch.nn.Linear(4, 3)), torch.rand(2, 4), blocks=20, block_size=8)
    >>> len(scores), scores[0].method
    (2, 'slope')
    """
    settings = Settings(
        p=p,  # type: ignore[arg-type]  # a name such as "inf" becomes a number in Settings
        targets=targets,
        radius=radius,
        blocks=blocks,
        block_size=block_size,
        seed=seed,
        region=region,
        level=level,
    )
    if settings.block_size < 2:
        raise SettingError(f"block_size={block_size}: a slope needs two points; give at least 2")
    workers = checked_workers(classifier.device, workers)
    examples = prepare(classifier, images, targets=targets, labels=labels, ids=ids, seed=seed)
    faster = tuned(classifier, torch.stack([example.x for example in examples[:CHECKED_INPUTS]]))
    chunk_size = resolved_chunk_size(faster, examples[0].x, chunk_size, workers=workers)
    measurements = [_measured(faster, example, settings, chunk_size, workers) for example in examples]
    return score_from(measurements, replace(settings.rule, method="slope"))


def _measured(
    classifier: Classifier, example: Example, settings: Settings, chunk_size: int, workers: int
) -> Measurements:
    began = time.perf_counter()
    with pool(workers) as executor:
        columns = executor.map(
            lambda block: _largest_slopes(classifier, example, settings, block, chunk_size), range(settings.blocks)
        )
        maxima = np.stack(list(columns), 1)
    count = len(example.targets)
    seconds = time.perf_counter() - began
    return Measurements.of(example, maxima, (settings.block_size,) * count, seconds, (ALL_BLOCKS,) * count)


def _largest_slopes(classifier: Classifier, example: Example, settings: Settings, block: int, chunk_size: int) -> Array:
    """The largest slope of a block for each target: (targets,)."""
    largest: Array = np.full(len(example.targets), -np.inf)
    for points in _pairs(classifier, example, settings, block, max(2, chunk_size)):
        slopes = pair_slopes(
            classifier, points, predicted=example.predicted, targets=example.targets, p=settings.ball.p
        )
        # np.maximum keeps NaN, so that a broken output is never hidden.
        largest = np.maximum(largest, slopes.amax(0).cpu().numpy())
    return largest


def pair_slopes(
    classifier: Classifier, points: torch.Tensor, *, predicted: int, targets: Sequence[int], p: float
) -> torch.Tensor:
    """|g_j(x) - g_j(y)| / ||x - y||_p for consecutive pairs and every target: (2n, *shape) -> (n, targets)."""
    with torch.no_grad():
        logits = classifier.logits(points).double()
        margins = logits[:, predicted, None] - logits[:, list(targets)]
        changes = (margins[0::2] - margins[1::2]).abs()
        lengths = dual_norms(points[0::2] - points[1::2], p).double()
        # Two points that are one, which clipping to the box can make, have no slope.
        slopes: torch.Tensor = torch.where(lengths[:, None] > 0.0, changes / lengths[:, None], 0.0)
    return slopes


def _pairs(
    classifier: Classifier, example: Example, settings: Settings, block: int, chunk_size: int
) -> Iterator[torch.Tensor]:
    """A block's points in order, an even number at a time; an odd last point has no partner."""
    ball: LpBall = settings.ball
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
            bounds=classifier.bounds,
        )
        waiting = torch.cat([waiting, drawn])
        while len(waiting) >= chunk_size:
            even = chunk_size - chunk_size % 2
            yield waiting[:even]
            waiting = waiting[even:]
    if len(waiting) >= 2:
        yield waiting[: len(waiting) - len(waiting) % 2]
