"""The exact minimum distortion of small ReLU networks.

An attack finds an adversarial point. The first radius is the distance of the nearest adversarial point in the same
cell, which is the set around it on which the network is affine. Then branch and bound (the default for p = 2) looks for
a nearer point, or a mixed-integer program (the default for p = 1 and inf) decides whether the ball that is smaller by
the tolerance contains an adversarial point, with bounds of the units for just this ball. A "yes" gives a nearer point
and the next question, a "no" completes the proof. Minimising the radius in the program itself is far slower, because
the bounds must then hold for all radii.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cleverscore.exact.branch_and_bound import improved, nearest_adversarial
from cleverscore.exact.mip import encode
from cleverscore.exact.multistart import checked_norm, dense_multistart_distortion, in_double, one_example
from cleverscore.exact.relu_network import Array, Network, bounds, read
from cleverscore.exact.result import BRANCHING, PROGRAM, TOLERANCE, Exact, checked_search
from cleverscore.inputs.targets import TargetsLike
from cleverscore.models.classifier import Classifier

INFEASIBLE = 2  # scipy's status


def exact_minimum_distortion(
    classifier: Classifier,
    image: Any,
    *,
    p: float | str,
    targets: TargetsLike = "untargeted",
    search: str | None = None,
    seconds: float = 60.0,
) -> Exact:
    """The smallest ||delta||_p with f_j(x + delta) >= f_c(x + delta) for a target j, for p = 1, 2 or inf.

    c is the predicted class of the image x. The network must be a sequence of Linear and ReLU layers in turn. The
    classifier's bounds are ignored: x + delta may lie outside.

    image       one input, without a batch axis.
    targets     a name such as "runner_up", or a list with one list of classes, [[3, 5]]; the result is the smallest
                distortion over these classes.
    search      "program" (mixed-integer, the default for p = 1 and inf) or "branching" (the default for p = 2).
    seconds     time limit; if it is reached, the distortion is only known to lie between `low` and `high`.

    >>> plane = Classifier(torch.nn.Linear(2, 2).double())
    >>> with torch.no_grad():
    ...     _ = plane.module.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 0.0]])), plane.module.bias.zero_()
    >>> round(exact_minimum_distortion(plane, torch.tensor([1.0, 0.5]), p=2).value, 6)
    1.0
    """
    p = checked_norm(p)
    search = checked_search(search or (BRANCHING if p == 2.0 else PROGRAM), p)
    began = time.perf_counter()
    classifier = in_double(classifier)
    example = one_example(classifier, image, targets)
    network = read(classifier, example.x, p)
    attack = dense_multistart_distortion(
        classifier, image, p=p, targets=[list(example.targets)], count=12, steps=15, accuracy=1e-2
    )
    if attack.value == 0.0 or math.isinf(attack.value):
        return replace(attack, seconds=time.perf_counter() - began)
    high, target = attack.value, attack.target
    point = (attack.point - example.x).flatten().cpu().numpy()
    # The margin is 1 at the input, so that the solver's absolute tolerance is a relative one.
    margins = {
        j: network.margin(example.predicted, j, scale=1.0 / m)
        for j, m in zip(example.targets, example.margins, strict=True)
    }
    nearer = improved(margins[target], point)
    if nearer is not None and np.linalg.norm(nearer, p) < high:
        high, point = float(np.linalg.norm(nearer, p)), nearer
    low = high
    for j in sorted(margins, key=lambda j: j != target):
        left = seconds - (time.perf_counter() - began)
        proved, found = SEARCH[search](margins[j], high, seconds=left)
        low = min(low, proved)
        if found is not None:
            high, point, target = float(np.linalg.norm(found, p)), found, j
    moved = example.x + torch.from_numpy(point).to(example.x).view(example.x.shape)
    return Exact(high, min(low, high), high, time.perf_counter() - began, target, moved)


def _by_branching(network: Network, high: float, *, seconds: float) -> tuple[float, Array | None]:
    """By branch and bound: a radius below which no point is adversarial, and an adversarial point nearer than `high`.

    `network` has a single output, the margin of one target. The point is a vector d from the input; None if there is
    none, or if time ran out before one was found.
    """
    smaller, basis = network.projected()
    low, _, point = nearest_adversarial(smaller, high, seconds=seconds, tolerance=TOLERANCE)
    if low < high * (1.0 - 2.0 * TOLERANCE):  # the time ran out
        low = max(low, certified_radius(smaller, high))
    return low, None if point is None else basis @ point


def _by_program(network: Network, high: float, *, seconds: float) -> tuple[float, Array | None]:
    """The same as `_by_branching`, by mixed-integer programs."""
    began = time.perf_counter()
    found, slack = None, TOLERANCE
    while slack < 0.1:
        radius = high * (1.0 - slack)
        ball = network.at(radius)
        known = bounds(ball)
        if known.low[-1][0] > 0.0:
            return radius, found
        encoding = encode(ball, known)
        outputs = encoding.outputs[-1]
        kept = outputs >= 0
        encoding.program.require(outputs[kept], ball.weights[-1][0, kept], -math.inf, -float(ball.biases[-1][0]))
        left = seconds - (time.perf_counter() - began)
        solved = encoding.program.solve(np.zeros(len(encoding.program.low)), seconds=left, gap=TOLERANCE)
        if solved.status == INFEASIBLE:
            return radius, found
        if solved.x is None:
            break
        point = improved(network, encoding.point(solved.x, network.dim) * radius)
        if point is not None and np.linalg.norm(point, network.p) < high:
            found, high, slack = point, float(np.linalg.norm(point, network.p)), TOLERANCE
        else:
            slack *= 4.0  # adversarial only within the solver's tolerance: ask about a smaller ball
    return certified_radius(network, high), found


def certified_radius(network: Network, high: float) -> float:
    """The largest radius up to `high`, found by bisection, at which the lower bound of the margin is above 0."""
    low = 0.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if bounds(network.at(middle)).low[-1][0] > 0.0 else (low, middle)
    return low


SEARCH = {BRANCHING: _by_branching, PROGRAM: _by_program}
