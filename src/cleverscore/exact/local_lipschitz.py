"""The exact local Lipschitz constant of small ReLU networks: the largest gradient norm of cells that meet a ball.

A cell is a set of points on which the network is affine.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch

from cleverscore.exact.branch_and_bound import cell, slope_bound, steepest_cell
from cleverscore.exact.mip import Encoding, encode, slope_terms
from cleverscore.exact.multistart import checked_norm, in_double, one_example, starts
from cleverscore.exact.polyhedron import within
from cleverscore.exact.relu_network import Array, Network, bounds, read
from cleverscore.exact.result import BRANCHING, TOLERANCE, Exact, checked_search
from cleverscore.inputs.balls import LpBall
from cleverscore.models.classifier import Classifier
from cleverscore.norms import dual_exponent

INFEASIBLE = 2  # scipy's status
SAMPLED = 2048  # random points for a first lower bound


def exact_local_lipschitz(
    classifier: Classifier,
    image: Any,
    *,
    p: float | str,
    radius: float,
    target: int,
    search: str = BRANCHING,
    seconds: float = 60.0,
) -> Exact:
    """The largest ||grad(f_c - f_j)(x)||_q over the ball B_p(x0, radius), for p = 1, 2 or inf.

    c is the predicted class of the image x0 and j is `target`. The network must be a sequence of Linear and ReLU layers
    in turn. The classifier's bounds are ignored: the whole ball counts. Linear pieces of the network without a point in
    the ball that is at least a millionth of the radius away from all their faces are left out.

    image       one input, without a batch axis.
    search      "branching", or for p = 1 and inf "program": mixed-integer programs, which are slower for large inputs.
                For p = inf the program has a binary variable for each gradient component of unknown sign; for p = 1
                there are up to two programs for each component.
    seconds     time limit; if it is reached, the constant is only known to lie between `low` and `high`.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> target = 1 - int(net(torch.zeros(1, 2)).argmax())
    >>> exact_local_lipschitz(Classifier(net), torch.zeros(2), p="inf", radius=1.0, target=target).closed
    True
    """
    p = checked_norm(p)
    search = checked_search(search, p)
    radius = LpBall(p, radius).radius
    began = time.perf_counter()
    classifier = in_double(classifier)
    example = one_example(classifier, image, [[target]])
    network = read(classifier, example.x, p).at(radius)
    whole = network.margin(example.predicted, target)
    # The solver's tolerance is absolute: with this scale no gradient is longer than 1.
    scale = slope_bound(whole, bounds(whole).phases) if whole.depth else 1.0
    if scale == 0.0:
        return Exact(0.0, 0.0, 0.0, time.perf_counter() - began, target, example.x)
    whole = network.margin(example.predicted, target, scale=1.0 / scale)
    if not whole.depth:
        low = high = float(np.linalg.norm(whole.weights[0][0], LpBall(p, radius).q))
        point = np.zeros(whole.dim)
    else:
        smaller, basis = whole.projected()
        first = _sampled(smaller)
        find = steepest_cell if search == BRANCHING else _largest_sum if math.isinf(p) else _largest_entry
        low, high, point = find(smaller, first, seconds=seconds)
        point = basis @ point
    low, high = low * scale / radius, high * scale / radius  # on the unit ball gradients are `radius` times as long
    moved = example.x + torch.from_numpy(point * radius).to(example.x).view(example.x.shape)
    return Exact(low, low, high, time.perf_counter() - began, target, moved)


def _sampled(network: Network) -> tuple[float, Array]:
    """The largest gradient norm at SAMPLED random points of the unit ball, a first lower bound; and the point."""
    rows = torch.from_numpy(network.weights[0])
    points = starts(network.dim, SAMPLED, p=network.p, radius=1.0, seed=0, rows=rows).numpy()
    factor = np.ones((len(points), 1))
    for z, weight in zip(network.layers(points)[-2::-1], network.weights[:0:-1], strict=True):
        factor = (factor @ weight) * (z > 0.0)
    norms = np.linalg.norm(factor @ network.weights[0], dual_exponent(network.p), axis=1)
    return float(norms.max()), points[norms.argmax()]


def _largest_sum(network: Network, first: tuple[float, Array], *, seconds: float) -> tuple[float, float, Array]:
    """The case p = inf: the largest sum of |g_i| over the gradient's components, by one mixed-integer program.

    It has a binary variable for each component of unknown sign. Returns lower bound, upper bound and a point.
    """
    encoding = encode(network, bounds(network))
    places, constants, low, high = slope_terms(network, encoding)
    program, weight = encoding.program, network.weights[0]
    positive, negative = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
    below, above = low @ positive + high @ negative, high @ positive + low @ negative
    moving = places >= 0
    steady = np.where(moving, 0.0, constants) @ weight
    signs = np.where(below >= 0.0, 1.0, np.where(above <= 0.0, -1.0, 0.0))
    # The |g_i| of known sign add up to one linear function of h.
    cost = {int(place): -float(value) for place, value in zip(places[moving], (weight @ signs)[moving], strict=True)}
    for i in np.flatnonzero(signs == 0.0):
        size = program.variable(0.0, max(-below[i], above[i]))
        side = program.variable(0.0, 1.0, whole=True)
        row = weight[moving, i]
        # t <= g + 2 |below| (1 - side) and t <= -g + 2 above side
        program.require(
            np.r_[places[moving], size, side], np.r_[-row, 1.0, -2.0 * below[i]], -math.inf, steady[i] - 2.0 * below[i]
        )
        program.require(np.r_[places[moving], size, side], np.r_[row, 1.0, -2.0 * above[i]], -math.inf, -steady[i])
        cost[size] = -1.0
    return _steepest(network, encoding, cost, float(signs @ steady), first, seconds=seconds)


def _largest_entry(network: Network, first: tuple[float, Array], *, seconds: float) -> tuple[float, float, Array]:
    """The case p = 1: the largest |g_i|, by one program for each component and sign, in order of decreasing bounds.

    Returns lower bound, upper bound and a point.
    """
    began = time.perf_counter()
    encoding = encode(network, bounds(network))
    places, constants, low, high = slope_terms(network, encoding)
    weight = network.weights[0]
    signed = np.hstack([weight, -weight])
    limits = high @ np.maximum(signed, 0.0) + low @ np.minimum(signed, 0.0)
    moving = places >= 0
    (best, point), bound = first, 0.0
    for i in np.argsort(-limits, kind="stable"):
        if limits[i] <= best * (1.0 + TOLERANCE):
            break
        cost = {int(place): -float(value) for place, value in zip(places[moving], signed[moving, i], strict=True)}
        steady = float(np.where(moving, 0.0, constants) @ signed[:, i])
        left = seconds - (time.perf_counter() - began)
        best, limit, point = _steepest(network, encoding, cost, steady, (best, point), seconds=left)
        bound = max(bound, min(limit, float(limits[i])))
    return best, max(best * (1.0 + TOLERANCE), bound), point


def _steepest(
    network: Network,
    encoding: Encoding,
    cost: dict[int, float],
    constant: float,
    first: tuple[float, Array],
    *,
    seconds: float,
) -> tuple[float, float, Array]:
    """Maximise a gradient norm over the cells that meet the unit ball: lower bound, upper bound, a point.

    If the cell of a solution does not meet the ball, its phases are excluded and the program is solved again.

    cost, constant  the norm is constant - sum of cost[i] * variable i.
    first           a gradient norm that is attained in the ball, and a point where it is.
    """
    began = time.perf_counter()
    costs = np.zeros(len(encoding.program.low))
    costs[list(cost)] = list(cost.values())
    (best, point), bound = first, 1.0  # gradients are scaled so that none is longer
    while True:
        solved = encoding.program.solve(costs, seconds=seconds - (time.perf_counter() - began), gap=TOLERANCE)
        if solved.status == INFEASIBLE:
            return best, best * (1.0 + TOLERANCE), point
        # Without binary numbers it is a linear program, whose optimum is its own bound.
        dual = solved.mip_dual_bound if any(encoding.program.whole) else solved.fun
        bound = bound if dual is None else min(bound, constant - float(dual))
        if solved.x is None:
            return best, bound, point
        pattern = encoding.pattern(solved.x)
        rows, heights, slope, _ = cell(network, pattern)
        inner = within(rows, heights, network.p)
        if inner is not None:
            value = float(np.linalg.norm(slope, 1.0 if math.isinf(network.p) else math.inf))
            if value > best:
                best, point = value, inner
            return best, max(bound, best), point
        if bound <= best * (1.0 + TOLERANCE) or solved.status != 0:
            return best, max(bound, best), point
        encoding.forbid(pattern)
