"""Block maxima of some images: for the three kinds of targets all blocks, for other classes until they are eliminated.

A class is eliminated when its score can no longer be the smallest, whichever of the three penalties the law is fitted
with, so that untargeted scores lose nothing. The fits are made when pages are written, from the maxima.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import cleverscore as cs
from cleverscore.estimators.sampling.block_maxima import Request, sample
from cleverscore.estimators.sampling.sampler import Sampler
from cleverscore.estimators.sampling.target_elimination import Stopping, TargetElimination, checkpoints
from cleverscore.estimators.settings import Settings
from cleverscore.inputs.examples import Example, prepare
from cleverscore.models.input_box import Moves
from cleverscore.models.margin_gradients import dual_norms, margin_gradient_norms, margin_gradients
from cleverscore.threads import one_thread
from paper.medium.plan import AUTHORS, NORMS
from paper.medium.store import Arrays
from paper.networks import KINDS, LARGE, SEED, CorrectImages
from paper.sizes import BLOCK_COUNTS, PAPER, RELEASED, Size

PENALTIES = (0.0, 0.01, 0.1)
LEVEL = 0.95  # of the intervals that elimination asks
Floats = npt.NDArray[np.float64]
Draw = Callable[[tuple[int, ...], range], Floats]


@dataclass(frozen=True)
class Blocks:
    """How many blocks an image has: `adaptive` with elimination among all classes, `full` for the three kinds."""

    adaptive: int
    full: int
    size: int

    @classmethod
    def of(cls, network: str, question: str, size: Size, image: int) -> Blocks:
        """500 blocks of the first images in l2; the MLPs have them under both laws and for all classes."""
        mlp = network.endswith("-mlp")
        more = image < size.many and (question == "maxima-l2" or (mlp and question == AUTHORS))
        full = BLOCK_COUNTS[-1] if more else size.blocks
        return cls(full if mlp else size.blocks, full, size.block_size)


def drawn(
    classifier: cs.Classifier, network: str, question: str, examples: CorrectImages, part: slice, size: Size
) -> Arrays:
    """The block maxima of images, as arrays.

    ids, predicted  (n,).
    kinds           (n, 3), the least likely, a random and the likeliest other class.
    targets         (n, targets), and `margins` beside them.
    counts          (n, targets), blocks of each target; `block_size` points each.
    l2, linf        maxima of all images and targets one after the other, in float32 as they were computed.
    """
    authors = question == AUTHORS
    norms = NORMS if authors else (question.removeprefix("maxima-"),)
    settings = Settings(
        p=2.0 if norms[0] == "l2" else math.inf, seed=SEED, method=RELEASED if authors else PAPER,
        blocks=size.blocks, block_size=size.block_size,
    )  # fmt: skip
    kinds = [tuple(kind[name] for name in KINDS) for kind in examples.kinds[part]]
    # On ImageNet the paper has no untargeted scores.
    targets = [sorted(set(few)) for few in kinds] if network in LARGE else "all"
    x, ids, labels = examples.x[part], examples.ids[part], examples.labels[part]
    prepared = prepare(classifier, x, targets=targets, labels=labels, ids=ids, seed=SEED)
    ready = settings.estimator.prepare(classifier, prepared, settings, workers=1)
    assert isinstance(ready, Sampler)  # none of the networks is affine
    found: dict[str, list[Floats]] = {norm: [] for norm in norms}
    counts = []
    for i, example in enumerate(prepared):
        blocks = Blocks.of(network, question, size, part.start + i)
        rows = adaptive_maxima(
            _drawing(ready, example, len(norms)), example, kinds[i], blocks, settings.rule.limit, len(norms)
        )
        counts.append([len(row) for row in rows[0]])
        for norm, values in zip(norms, rows, strict=True):
            found[norm] += values
    return {
        **_about(prepared, kinds),
        "counts": np.array(counts, np.int32),
        "block_size": np.array(size.block_size, np.int32),
        **{norm: np.concatenate(values).astype(np.float32) for norm, values in found.items()},
    }


def _about(prepared: Sequence[Example], kinds: Sequence[tuple[int, ...]]) -> dict[str, npt.NDArray[Any]]:
    return {
        "ids": np.array([example.input_id for example in prepared], np.int32),
        "predicted": np.array([example.predicted for example in prepared], np.int16),
        "kinds": np.array(kinds, np.int16),
        "targets": _padded([example.targets for example in prepared], -1).astype(np.int16),
        "margins": _padded([example.margins for example in prepared], np.nan),
    }


def _padded(rows: Sequence[Sequence[float]], empty: float) -> Floats:
    """Rows of equal length: two kinds of an image may be the same class."""
    width = max(map(len, rows))
    return np.array([[*row, *[empty] * (width - len(row))] for row in rows])


def _drawing(ready: Sampler, example: Example, norms: int) -> Draw:
    """A function from targets and blocks to maxima (norms * targets, blocks)."""
    with one_thread():
        moved = ready.reduced.move(example)
    measure = margin_gradient_norms if norms == 1 else both_norms

    def draw(targets: tuple[int, ...], blocks: range) -> Floats:
        request = Request(
            x=moved.x, input_id=moved.input_id, predicted=moved.predicted, targets=targets * norms,
            ball=ready.reduced.ball, blocks=blocks, block_size=ready.settings.block_size, seed=SEED,
        )  # fmt: skip
        ((_, maxima),) = sample(
            ready.reduced.classifier, [request], chunk_size=ready.chunk_size, workers=1, measure=measure
        )  # fmt: skip
        return maxima.values

    return draw


def both_norms(
    classifier: cs.Classifier,
    points: torch.Tensor,
    *,
    predicted: int,
    targets: Sequence[int],
    q: float,
    moves: Moves | None = None,
) -> torch.Tensor:
    """l2 and then l1 norms of margin gradients: (n, *input_shape) -> (n, targets), each target being there twice."""
    columns: dict[float, list[torch.Tensor]] = {2.0: [], 1.0: []}
    once = targets[: len(targets) // 2]
    for gradient in margin_gradients(classifier, points, predicted=predicted, targets=once):
        for dual, column in columns.items():
            column.append(dual_norms(gradient, dual))
    return torch.stack([*columns[2.0], *columns[1.0]], 1)


def adaptive_maxima(
    draw: Draw, example: Example, kinds: Sequence[int], blocks: Blocks, limit: float, norms: int
) -> list[list[Floats]]:
    """Maxima of each norm and target; a target is drawn for as long as any norm and any penalty may want it.

    limit   the largest score there can be: a class that surely reaches it needs no more blocks.
    """
    running = {
        (norm, penalty): TargetElimination(
            example.targets, example.margins, limit=limit, penalty=penalty, level=LEVEL, blocks=blocks.adaptive,
            block_size=blocks.size, stopping=Stopping(0.0, smallest=True),
        )
        for norm in range(norms)
        for penalty in PENALTIES
    }  # fmt: skip
    if set(example.targets) <= set(kinds):  # nothing can be eliminated
        running = {}
    found: list[list[Floats]] = [[np.empty(0) for _ in example.targets] for _ in range(norms)]
    always = {t for t, target in enumerate(example.targets) if target in kinds}
    done = 0
    for end in dict.fromkeys([*checkpoints(blocks.adaptive), blocks.full]):
        active = sorted(always.union(*(elimination.active for elimination in running.values())))
        values = draw(tuple(example.targets[t] for t in active), range(done, end)).reshape(norms, len(active), -1)
        for norm in range(norms):
            for t, row in zip(active, values[norm], strict=True):
                found[norm][t] = np.concatenate([found[norm][t], row])
        for (norm, _), elimination in running.items():
            if elimination.active:
                elimination.add(values[norm][[active.index(t) for t in elimination.active]])
        done = end
    return found


def slopes(classifier: cs.Classifier, question: str, examples: CorrectImages, part: slice, size: Size) -> Arrays:
    """The largest slopes of the blocks of images for the three kinds of targets; arrays as `drawn` has them."""
    norm = question.removeprefix("slope-")
    kinds = [tuple(kind[name] for name in KINDS) for kind in examples.kinds[part]]
    targets = [sorted(set(few)) for few in kinds]
    x, ids, labels = examples.x[part], examples.ids[part], examples.labels[part]
    scores = cs.clever(
        classifier, x, p=norm.removeprefix("l"), targets=targets, blocks=size.blocks, block_size=size.block_size,
        seed=SEED, ids=ids, labels=labels, method="slope", workers=1, progress=False,
    )  # fmt: skip
    prepared = prepare(classifier, x, targets=targets, labels=labels, ids=ids, seed=SEED)
    maxima = {(row.input, row.target): row.maxima for row in scores.rows}
    about = _about(prepared, kinds)
    return {
        **about,
        "counts": np.where(about["targets"] >= 0, size.blocks, 0).astype(np.int32),
        "block_size": np.array(size.block_size, np.int32),
        norm: np.concatenate(
            [maxima[example.input_id, target] for example in prepared for target in example.targets]
        ).astype(np.float32),
    }
