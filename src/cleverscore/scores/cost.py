"""What a run will cost, from a short probe: seconds, gradients, memory."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cleverscore.estimators.sampling.chunk_size import footprint, resolved_chunk_size
from cleverscore.estimators.sampling.sampler import gather
from cleverscore.estimators.settings import Method, Settings
from cleverscore.inputs.examples import Example, prepare
from cleverscore.inputs.targets import TargetsLike
from cleverscore.models.classifier import Classifier
from cleverscore.models.structure import is_affine
from cleverscore.threads import checked_workers

PROBE_SECONDS = 1.0  # the probe grows until it takes this long
PROBED_TARGETS = 4
# Gradients, their norms and the temporary tensors of the backward pass come on top of what autograd keeps.
BACKWARD_SHARE = 1.0


@dataclass(frozen=True)
class Estimate:
    """What a run takes at most: adaptive sampling and ascents stop earlier.

    gradients   margin gradients: points times targets.
    memory      bytes for points, activations and gradients of all workers, weights and libraries left aside.
    inputs      how many inputs; a part where some of an input's blocks are there already.
    """

    seconds: float
    gradients: int
    points: int
    memory: int
    chunk_size: int
    workers: int
    inputs: float = 1.0

    def __str__(self) -> str:
        return (
            f"{duration(self.seconds)} for {self.gradients:,} gradients at {self.points:,} points, "
            f"{self.memory / 2**20:.0f} MB in chunks of {self.chunk_size} on {self.workers} threads"
        )


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(0.41), duration(75), duration(7500), duration(200000)
    ('0.4 s', '1 min 15 s', '2 h 5 min', '2 d 7 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    for limit, unit, small, names in ((3600, 60, 1, ("min", "s")), (86400, 3600, 60, ("h", "min"))):
        if seconds < limit:
            return f"{int(seconds // unit)} {names[0]} {int(seconds % unit // small)} {names[1]}"
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600)} h"


def estimate_for(
    classifier: Classifier,
    examples: Sequence[Example],
    settings: Settings,
    *,
    chunk_size: int | None = None,
    workers: int | None = None,
) -> Estimate:
    """Cost of scoring all examples."""
    workers = checked_workers(classifier.device, workers)
    one = examples[0]
    chunk_size = resolved_chunk_size(classifier, one.x, chunk_size, workers=workers)
    targets = sum(len(example.targets) for example in examples)
    per_input = 2 if is_affine(classifier) else settings.points(one.x.numel())
    if settings.sharp:  # climbs share no forward pass between targets, and are counted in gradients
        one = replace(one, targets=one.targets[:1], margins=one.margins[:1])
    # A point costs a forward pass, a target a backward pass; inputs differ in their number of targets.
    cost = _seconds_per_point(classifier, one, settings, chunk_size, workers)
    need = footprint(classifier, one.x)
    return Estimate(
        seconds=cost * per_input * targets / len(one.targets),
        gradients=per_input * targets,
        points=per_input * (targets if settings.sharp else len(examples)),
        memory=int(workers * chunk_size * need.total * (1 + BACKWARD_SHARE)),
        chunk_size=chunk_size,
        workers=workers,
        inputs=len(examples),
    )


def total(parts: Sequence[Estimate]) -> Estimate:
    """What all parts together take."""
    return replace(
        parts[0],
        seconds=sum(part.seconds for part in parts),
        gradients=sum(part.gradients for part in parts),
        points=sum(part.points for part in parts),
    )


def _seconds_per_point(
    classifier: Classifier, example: Example, settings: Settings, chunk_size: int, workers: int
) -> float:
    """Time of a point with all its targets; for many targets it follows from one and a few."""
    count = len(example.targets)
    if count <= PROBED_TARGETS:
        return _measured(classifier, example, settings, chunk_size, workers)
    one, few = (
        _measured(
            classifier,
            replace(example, targets=example.targets[:number], margins=example.margins[:number]),
            settings,
            chunk_size,
            workers,
        )
        for number in (1, PROBED_TARGETS)
    )
    # A backward pass costs about as much as the forward pass; half of that is below any noise.
    each = max((few - one) / (PROBED_TARGETS - 1), 0.5 * few / (1 + PROBED_TARGETS))
    return few + (count - PROBED_TARGETS) * each


def _measured(classifier: Classifier, example: Example, settings: Settings, chunk_size: int, workers: int) -> float:
    """Seconds per point, from fixed sampling of a growing number of points."""
    size = min(settings.block_size, chunk_size)
    blocks = math.ceil(workers * chunk_size / size)
    # An ascent is charged in gradients too, so sampling tells its speed.
    method: str | Method = "paper" if settings.sharp else settings.method
    plain = replace(settings, method=method, block_size=size, tolerance=None, budget=None)
    total = settings.points(example.x.numel())
    # The first points pay for threads, memory and kernels that later ones find ready.
    cold = True
    while True:
        probe = replace(plain, blocks=blocks)
        began = time.perf_counter()
        flow = gather(classifier, [example], probe, chunk_size=chunk_size, workers=workers)
        busy = sum(measurements.seconds for _, measurements in flow)
        if busy >= PROBE_SECONDS:  # a large network: its check of faster forms is no part of the cost of a point
            return busy / (blocks * size)
        took = time.perf_counter() - began
        if not cold and (took >= PROBE_SECONDS or blocks * size >= total):
            return took / (blocks * size)
        if not cold:
            blocks = min(math.ceil(blocks * max(2.0, 1.2 * PROBE_SECONDS / took)), math.ceil(total / size))
        cold = False


def estimate(
    classifier: Classifier,
    images: Any,
    *,
    p: float | str = 2.0,
    targets: TargetsLike = "untargeted",
    blocks: int = 500,
    block_size: int = 1024,
    method: str | Method = "paper",
    chunk_size: int | None = None,
    workers: int | None = None,
) -> Estimate:
    """What `clever` with the same arguments will cost at most, from about a second of probing.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Softplus(), torch.nn.Linear(4, 3))
    >>> estimate(Classifier(model), torch.rand(5, 8), blocks=10, block_size=100).gradients
    10000
    """
    settings = Settings(p=p, targets=targets, blocks=blocks, block_size=block_size, method=method)  # type: ignore[arg-type]
    examples = prepare(classifier, images, targets=targets)
    return estimate_for(classifier, examples, settings, chunk_size=chunk_size, workers=workers)
