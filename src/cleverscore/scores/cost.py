"""The cost of a run, estimated by a short measurement: seconds, gradients, memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cleverscore.estimators.estimator import Prepared
from cleverscore.estimators.sampling.chunk_size import footprint
from cleverscore.estimators.settings import Settings
from cleverscore.inputs.examples import Example, prepare
from cleverscore.models.classifier import Classifier

PROBE_SECONDS = 1.0  # the number of points that are measured grows until they take this long
PROBED_TARGETS = 4  # with more targets per input, the time is extrapolated from 1 and from this many
# Memory of gradients, their norms and the backward pass, as a share of what autograd keeps for the forward pass.
BACKWARD_SHARE = 1.0


@dataclass(frozen=True)
class Estimate:
    """The largest cost of a run; adaptive sampling and searches may stop earlier.

    gradients   number of margin gradients: one for each target at each point.
    points      number of points at which the network is evaluated.
    memory      bytes for points, activations and gradients of all workers, without weights and libraries.
    chunk_size  points per forward pass.
    workers     number of threads.
    inputs      number of inputs; an input of which some blocks are already stored counts as a fraction.
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
    """A number of seconds as text, in one or two units.

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


def estimate_for(ready: Prepared, examples: Sequence[Example], probe_seconds: float = PROBE_SECONDS) -> Estimate:
    """The cost of measuring all examples with `ready`, from a trial of about `probe_seconds`."""
    one, per_target = examples[0], ready.estimator.per_target
    targets = sum(len(example.targets) for example in examples)
    per_input = ready.max_work(one.x.numel())
    if per_target:  # no forward pass is shared between targets
        one = replace(one, targets=one.targets[:1], margins=one.margins[:1])
    # A point costs a forward pass, and each target of it a backward pass; inputs may have different numbers of targets.
    cost = _seconds_per_point(ready, one, per_input, probe_seconds)
    need = footprint(ready.classifier, one.x)
    return Estimate(
        seconds=cost * per_input * targets / len(one.targets),
        gradients=per_input * targets,
        points=per_input * (targets if per_target else len(examples)),
        memory=int(ready.workers * ready.chunk_size * need.total * (1 + BACKWARD_SHARE)),
        chunk_size=ready.chunk_size,
        workers=ready.workers,
        inputs=len(examples),
    )


def total(parts: Sequence[Estimate]) -> Estimate:
    """The seconds, gradients and points of several estimates together; all else is that of the first."""
    return replace(
        parts[0],
        seconds=sum(part.seconds for part in parts),
        gradients=sum(part.gradients for part in parts),
        points=sum(part.points for part in parts),
    )


def _seconds_per_point(ready: Prepared, example: Example, most: int, probe_seconds: float) -> float:
    """Seconds per point with all targets of the example; those of many are extrapolated from one and from a few."""
    count = len(example.targets)
    if count <= PROBED_TARGETS:
        return _measured(ready, example, most, probe_seconds)
    parts = (
        replace(example, targets=example.targets[:number], margins=example.margins[:number])
        for number in (1, PROBED_TARGETS)
    )
    one, few = (_measured(ready, part, most, probe_seconds) for part in parts)
    # A backward pass costs about as much as the forward pass; half of that is below any noise.
    each = max((few - one) / (PROBED_TARGETS - 1), 0.5 * few / (1 + PROBED_TARGETS))
    return few + (count - PROBED_TARGETS) * each


def _measured(ready: Prepared, example: Example, most: int, probe_seconds: float) -> float:
    """Seconds per point, measured with more and more points, up to `most`, until they take `probe_seconds`."""
    points = min(ready.workers * ready.chunk_size, most)
    # The first call also starts threads, allocates memory and chooses kernels; if it was short, it is repeated.
    took = ready.probe(example, points)
    while took < probe_seconds:
        took = ready.probe(example, points)
        if took >= probe_seconds or points >= most:
            break
        points = min(math.ceil(points * max(2.0, 1.2 * probe_seconds / took)), most)
    return took / points


def estimate(
    classifier: Classifier,
    images: Any,
    *,
    labels: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    chunk_size: int | None = None,
    workers: int | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> Estimate:
    """The largest cost of `clever` with the same arguments, estimated from about a second of computation.

    `settings` are other arguments of `clever`. With a tolerance or a budget, `clever` may end earlier. No progress bar
    is shown.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Softplus(), torch.nn.Linear(4, 3))
    >>> estimate(Classifier(model), torch.rand(5, 8), blocks=10, block_size=100).gradients
    10000
    """
    asked = Settings(**{"p": 2.0, **settings})
    examples = prepare(classifier, images, targets=asked.targets, labels=labels, ids=ids, seed=asked.seed)
    ready = asked.estimator.prepare(classifier, examples, asked, chunk_size=chunk_size, workers=workers)
    return estimate_for(ready, examples)
