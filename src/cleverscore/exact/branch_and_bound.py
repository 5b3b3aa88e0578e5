"""Branch and bound over the phases of ReLU units (active or inactive), best first: exact answers also in l2.

A node of the search tree fixes some phases. Linear bounds turn every fixed phase, and the condition that the margin is
at most 0, into half-spaces that contain all points with these phases. The distance to the intersection of the
half-spaces is a lower bound for the node. Where all phases are fixed, the half-spaces are exact.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator
from itertools import count

import numpy as np

from cleverscore.exact.polyhedron import nearest, within
from cleverscore.exact.relu_network import Array, Bounds, Network, Phases, bounds
from cleverscore.exact.result import TOLERANCE
from cleverscore.norms import dual_exponent

MOST_CELLS = 50  # each step of a walk from cell to cell leads to a nearer point; so many steps are never needed


def half_spaces(phases: Phases, known: Bounds) -> tuple[Array, Array]:
    """(matrix, offset) with matrix @ d + offset >= 0 at all points with the given phases, from their bounds `known`."""
    rows, offsets = [np.zeros((0, known.lower[0][0].shape[1]))], [np.zeros(0)]
    for k, phase in enumerate(phases):
        on, off = phase > 0, phase < 0
        rows += [known.upper[k][0][on], -known.lower[k][0][off]]
        offsets += [known.upper[k][1][on], -known.lower[k][1][off]]
    return np.vstack(rows), np.concatenate(offsets)


def cell(network: Network, phases: Phases) -> tuple[Array, Array, Array, float]:
    """(rows, heights, slope, constant) of the set of points d on which all phases are as given.

    The set is rows @ d + heights >= 0, and the margin on it is slope @ d + constant.
    """
    matrices, offsets = network.affine(phases)
    sides = [phase.astype(np.float64) for phase in phases]
    rows = np.vstack([np.zeros((0, network.dim)), *(s[:, None] * m for s, m in zip(sides, matrices, strict=False))])
    heights = np.concatenate([np.zeros(0), *(s * c for s, c in zip(sides, offsets, strict=False))])
    return rows, heights, matrices[-1][0], float(offsets[-1][0])


def _children(phases: Phases, known: Bounds) -> Iterator[Phases]:
    """The two child nodes, which fix the unit whose unknown phase loosens the bounds most; none if all are fixed."""
    best, place = -1.0, None
    for k, fixed in enumerate(known.phases):
        free = fixed == 0
        if free.any():
            spread = np.minimum(-known.low[k], known.high[k])
            # If no unit affects the margin's bound, early layers come first: bounds of later ones depend on them.
            worth = np.where(free, known.influence[k] + 1e-6 * spread / (1 + k), -1.0)
            unit = int(worth.argmax())
            if worth[unit] > best:
                best, place = float(worth[unit]), (k, unit)
    if place is None:
        return
    for side in (1, -1):
        yield _with(phases, *place, side)


def _with(phases: Phases, k: int, unit: int, side: int) -> Phases:
    """The phases with one more unit fixed."""
    layer = phases[k].copy()
    layer[unit] = side
    return (*phases[:k], layer, *phases[k + 1 :])


def nearest_adversarial(
    network: Network, start: float, *, seconds: float, tolerance: float
) -> tuple[float, float, Array | None]:
    """The smallest ||d||_p < start with margin <= 0: a lower bound, an upper bound, and the point d of the upper bound.

    The point is None if none nearer than `start` was found; the upper bound is then `start`.

    network     with a single output, the margin.
    seconds     time limit; if it is reached, the lower bound is smaller.
    tolerance   relative; points that are nearer by less than this share are not searched for.
    """
    began = time.perf_counter()
    high, best = start, None
    unresolved = math.inf  # the smallest distance at which all phases are fixed and rounding errors hide the answer
    order = count()
    heap: list[tuple[float, int, Phases]] = [(0.0, next(order), network.free())]
    while heap and heap[0][0] < high * (1.0 - tolerance):
        if time.perf_counter() - began > seconds:
            return min(heap[0][0], unresolved), high, best
        _, _, phases = heapq.heappop(heap)
        known = bounds(network.at(high), phases)
        if not known.possible or known.low[-1][0] > 0.0:
            continue
        rows, offsets = half_spaces(phases, known)
        slope, constant = known.lower[-1][0][0], known.lower[-1][1][0]
        point = nearest(np.vstack([rows, -slope]), np.r_[offsets, -constant], network.p)
        distance = math.inf if point is None else float(np.linalg.norm(point, network.p)) * high
        if point is None or distance >= high * (1.0 - tolerance):
            continue
        found = improved(network.at(1.0), point * high)
        if found is not None and float(np.linalg.norm(found, network.p)) < high:
            best, high = found, float(np.linalg.norm(found, network.p))
        children = list(_children(phases, known))
        if not children and distance < high * (1.0 - tolerance):
            unresolved = min(unresolved, distance)
        for child in children:
            heapq.heappush(heap, (distance, next(order), child))
    return min(high * (1.0 - tolerance), unresolved), high, best


def improved(network: Network, point: Array) -> Array | None:
    """The nearest adversarial point in the cell of `point`, then in the next cell towards the input, and so on.

    Ends when the distance no longer decreases; None if no adversarial point is found. (A cell is a set of points on
    which all phases are the same.)
    """
    best = crossing(network, point)
    for _ in range(MOST_CELLS):
        rows, heights, slope, constant = cell(network, network.phases(point))
        found = nearest(np.vstack([rows, -slope]), np.r_[heights, -constant], network.p)
        found = None if found is None else crossing(network, found)
        if found is None:
            return best
        if best is not None and np.linalg.norm(found, network.p) >= np.linalg.norm(best, network.p) * (1.0 - 1e-9):
            return best
        best = found
        point = found * (1.0 - 1e-7)  # in the cell on the near side
    return best


def crossing(network: Network, point: Array) -> Array | None:
    """`point` moved slightly along the gradient until its margin is <= 0 in floating point; None if that fails."""
    largest = 1e-5 * max(1.0, abs(float(network.layers(0.0 * point[None])[-1][0, 0])))
    for size in (0.0, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7):
        moved: Array = point * (1.0 + size)
        margin = float(network.layers(moved[None])[-1][0, 0])
        if margin <= 0.0:
            return moved
        slope = cell(network, network.phases(moved))[2]
        norm = float(np.abs(slope).sum() if math.isinf(network.p) else slope @ slope)
        if norm > 0.0 and margin <= largest:
            direction = np.sign(slope) if math.isinf(network.p) else slope
            moved = moved - direction * (margin / norm) * (1.0 + 1e-9 + size)
            if network.layers(moved[None])[-1][0, 0] <= 0.0:
                return moved
    return None


def steepest_cell(
    network: Network, first: tuple[float, Array], *, seconds: float, tolerance: float = TOLERANCE
) -> tuple[float, float, Array]:
    """The largest ||grad margin||_q of cells that meet the unit ball: lower bound, upper bound, a point of the cell.

    first       a gradient norm that is attained in the ball, and a point where it is.
    seconds     time limit; if it is reached, the two bounds differ by more than the tolerance.
    tolerance   relative distance of the two bounds.
    """
    began = time.perf_counter()
    low, best = first
    order = count()
    known = bounds(network)
    heap = [(-slope_bound(network, known.phases), next(order), network.free())]
    while heap and -heap[0][0] > low * (1.0 + tolerance):
        if time.perf_counter() - began > seconds:
            return low, -heap[0][0], best
        _, _, phases = heapq.heappop(heap)
        known = bounds(network, phases)
        point = within(*half_spaces(phases, known), network.p) if known.possible else None
        if point is None:
            continue
        here = network.phases(point)
        value = float(np.linalg.norm(cell(network, here)[2], dual_exponent(network.p)))
        if value > low:
            inner = within(*cell(network, here)[:2], network.p)
            if inner is not None:
                low, best = value, inner
        for bound, k, unit, side in _flattest_split(network, known.phases):
            if bound > low * (1.0 + tolerance):
                heapq.heappush(heap, (-bound, next(order), _with(phases, k, unit, side)))
    return low, low * (1.0 + tolerance), best


def _flattest_split(network: Network, phases: Phases) -> list[tuple[float, int, int, int]]:
    """The unit for which the gradient bounds of its two phases have the smallest sum; an empty list if all are fixed.

    Returns (bound, layer, unit, phase) for each of the two phases.
    """
    best: list[tuple[float, int, int, int]] = []
    worth = math.inf
    for k, fixed in enumerate(phases):
        for unit in np.flatnonzero(fixed == 0).tolist():
            sides = [(slope_bound(network, _with(phases, k, unit, side)), k, unit, side) for side in (1, -1)]
            # The sum, not the larger one: where one phase hardly lowers the bound, the other should lower it much.
            total = sides[0][0] + sides[1][0]
            if total < worth:
                best, worth = sides, total
    return best


def slope_bound(network: Network, phases: Phases) -> float:
    """An upper bound of ||grad margin||_q at points with these phases: it is W_1^T h, with bounds on h, elementwise."""
    low = high = np.ones(1)
    for weight, fixed in zip(network.weights[:0:-1], phases[::-1], strict=True):
        positive, negative = np.maximum(weight, 0.0), np.minimum(weight, 0.0)
        low, high = low @ positive + high @ negative, high @ positive + low @ negative
        low = np.where(fixed > 0, low, np.where(fixed < 0, 0.0, np.minimum(low, 0.0)))
        high = np.where(fixed > 0, high, np.where(fixed < 0, 0.0, np.maximum(high, 0.0)))
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    weight = network.weights[0]
    q = dual_exponent(network.p)
    if q == 2.0:
        gram = weight @ weight.T
        squared = middle @ gram @ middle + 2.0 * half @ np.abs(gram @ middle) + half @ np.abs(gram) @ half
        return math.sqrt(max(0.0, float(squared)))
    return float(np.linalg.norm(np.abs(middle @ weight) + half @ np.abs(weight), q))
