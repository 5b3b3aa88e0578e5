"""The largest gradient norm in a ball by projected ascent: L = max ||grad g(x)||_q over B_p(x0, r), g = f_c - f_j.

A climb starts at a random point of the ball and takes steps x <- P(x + r (1 - k/K) v_k), where v_k is the direction of
unit length that is steepest for an average of the gradients of ||grad g||_q so far (second derivatives by autograd,
through smooth gates in piecewise linear networks), and P brings points back into the ball. Some climbs go through a
rounded network, each with its kinks moved in another way, whose kinks sharpen and come home as it goes. Every point at
which the true network was asked counts, with the norm that it has there. What is found is a lower bound of L.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.balls import LpBall
from cleverscore.classifier import Classifier
from cleverscore.errors import InputError, ModelError, SettingError
from cleverscore.gradients import CUT_OFF, dual_norms
from cleverscore.projections import onto_ball, steepest
from cleverscore.surrogates import SmoothGates, Softness
from cleverscore.targets import checked_classes

Array = npt.NDArray[np.float64]

# Chosen on random and trained networks with 64 to 784 inputs, apart from those that docs/sharp.md reports on.
STEPS, STARTS = 40, 8  # of the first batch
STARTS_IN_FEW_DIMENSIONS = 24  # pieces of a small ReLU network are many, and its gradients cheap
# Each further batch begins where the best climbs so far ended, with gates less soft, and shorter steps.
AGAIN_STEPS, AGAIN_ROUNDED, AGAIN_REACH = 26, 4.0, 0.6
MORE_STARTS, MORE_STARTS_IN_FEW_DIMENSIONS = 4, 8
RISE, CALM = 0.01, 3  # so many batches in a row that raise the best by less end the ascent
MOST_BATCHES = 4
MOMENTUM = 0.8
FIRST_SHARPNESS, LAST_SHARPNESS = 4.0, 25.0  # gates: soft first, to see far, then nearly the true ones
# Rounded networks: how sharp they begin and end, and how far their kinks are moved, in widths of a gate. The true norm
# is looked up in the last part of the way.
ROUNDED, LAST_ROUNDED, LOOK_FROM = 1.0, 50.0, 0.9
MOVES, MOVES_IN_FEW_DIMENSIONS = 1.0, 2.0
# A direction costs two forward and two backward passes: twice a gradient by the count of operations. The rest of the
# charge is for gates and step; measured, a step costs 2.0 gradients on the MNIST MLP and 3.0 to 3.5 on the CNN.
STEP_COST = 3
# A random start is the best of a few points. In few dimensions chance sees most of the ball, and its many small pieces.
CANDIDATES, CANDIDATES_IN_FEW_DIMENSIONS, FEW_DIMENSIONS = 8, 64, 16
# How torch says that a layer has a gradient, but that the gradient has none.
NO_SECOND_DERIVATIVE = ("not implemented", "once_differentiable")
START_BLOCK = 2**41  # random starts come from blocks far from those that are sampled


@dataclass(frozen=True)
class Climbs:
    """Climbs that run side by side, each with its own centre, classes, ball and start.

    centers     (n, *input_shape).
    radii       (n,).
    starts      (n, d), offsets from the centres.
    rounded     (n,), the sharpness with which a climb through a rounded network begins, 0 for the true one; None: all.
    moves       (n,), how far kinks are moved there, in widths of a gate, and
    patterns    (n,), by which random numbers; None: not at all.
    """

    centers: torch.Tensor
    predicted: torch.Tensor
    targets: torch.Tensor
    radii: torch.Tensor
    starts: torch.Tensor
    rounded: torch.Tensor | None = None
    moves: torch.Tensor | None = None
    patterns: torch.Tensor | None = None

    def at(self, rows: torch.Tensor, starts: torch.Tensor | None = None) -> Climbs:
        """Some of the climbs, in the true network."""
        begin = self.starts[rows] if starts is None else starts
        return Climbs(self.centers[rows], self.predicted[rows], self.targets[rows], self.radii[rows], begin)


@dataclass(frozen=True)
class Summit:
    """What climbs found: the largest norm of each (NaN or infinite where a gradient was), where, and whether it moved.

    norms       (n,).
    offsets     (n, d).
    moved       (n,): false where no step had a direction.
    gradients   (n,), what each climb cost, in gradients.
    """

    norms: torch.Tensor
    offsets: torch.Tensor
    moved: torch.Tensor
    gradients: torch.Tensor


def climb_cost(steps: int, *, rounded: bool = False) -> int:
    """Gradient equivalents of one climb: its steps, the norm at its end, and those looked up on a rounded way.

    >>> climb_cost(38), climb_cost(38, rounded=True)
    (115, 118)
    """
    looked_up = sum(step >= LOOK_FROM * steps for step in range(steps)) if rounded else 0
    return STEP_COST * steps + 1 + looked_up


def climb(
    classifier: Classifier,
    climbs: Climbs,
    *,
    p: float,
    steps: int,
    reach: float = 1.0,
    bounds: tuple[float, float] | None = None,
) -> Summit:
    """Run all climbs for `steps` steps, the first of which is `reach` radii long.

    With `bounds` every point is kept inside the box as well.
    """
    q = LpBall(p, 1.0).q
    shape = climbs.centers.shape
    centers = climbs.centers.flatten(1)
    offsets = inside_box(onto_ball(climbs.starts, climbs.radii, p), centers, bounds)
    momentum = torch.zeros_like(offsets)
    moved = torch.zeros(len(offsets), dtype=torch.bool, device=offsets.device)
    norms, places = torch.zeros_like(climbs.radii), offsets
    away = torch.zeros_like(climbs.radii) if climbs.rounded is None else climbs.rounded
    rounded = away > 0.0
    first = torch.where(rounded, away, FIRST_SHARPNESS)
    last = torch.where(rounded, LAST_ROUNDED, LAST_SHARPNESS)
    elsewhere = rounded.nonzero()[:, 0]
    for step in range(steps + 1):
        share = step / max(steps, 1)
        points = (centers + offsets).view(shape)
        if step == steps:
            found, ways = _look(classifier, climbs, points, q, None)
        elif not len(elsewhere):
            sharpness = FIRST_SHARPNESS * (LAST_SHARPNESS / FIRST_SHARPNESS) ** share
            found, ways = _look(classifier, climbs, points, q, Softness(sharpness))
        else:
            soft = Softness(first * (last / first) ** share, rounded, climbs.moves, climbs.patterns)
            found, ways = _look(classifier, climbs, points, q, soft)
            if step >= LOOK_FROM * steps:
                found[elsewhere] = _look(classifier, climbs.at(elsewhere), points[elsewhere], q, None)[0]
            else:  # norms of another network do not count, but what is broken there is broken
                found[rounded & torch.isfinite(found)] = 0.0
        places = torch.where((found > norms)[:, None], offsets, places)
        norms = torch.maximum(norms, found)  # keeps NaN: a broken gradient is reported, never passed over
        if ways is None:
            break
        slope = torch.linalg.vector_norm(ways, dim=1, keepdim=True)
        moved |= slope[:, 0] > 0.0
        momentum = MOMENTUM * momentum + ways / torch.where(slope > 0.0, slope, 1.0)
        length = reach * (1.0 - share) * climbs.radii[:, None]
        offsets = inside_box(onto_ball(offsets + length * steepest(momentum, p), climbs.radii, p), centers, bounds)
    cost = torch.where(rounded, climb_cost(steps, rounded=True), climb_cost(steps))
    return Summit(norms, places, moved, cost)


def _look(
    classifier: Classifier, climbs: Climbs, points: torch.Tensor, q: float, soft: Softness | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Norms at points, and the gradients of the norms unless `soft` is None."""
    points = points.detach().requires_grad_(True)
    with torch.enable_grad():
        if soft is None:
            logits = classifier.logits(points)
        else:
            with SmoothGates(soft):
                logits = classifier.logits(points)
        if not logits.requires_grad:
            raise ModelError(CUT_OFF)
        margins = logits.gather(1, climbs.predicted[:, None]) - logits.gather(1, climbs.targets[:, None])
        (gradients,) = torch.autograd.grad(margins.sum(), points, create_graph=soft is not None, allow_unused=True)
        if gradients is None:  # a graph that leads to weights only
            raise ModelError(CUT_OFF)
        found = dual_norms(gradients.detach(), q)
        if soft is None:
            return found, None
        if not gradients.requires_grad:  # an affine function
            return found, torch.zeros_like(climbs.starts)
        smooth = _smooth_norm(gradients.flatten(1), q).sum()
        try:
            (ways,) = torch.autograd.grad(smooth, points, materialize_grads=True)
        except RuntimeError as error:
            if not any(phrase in str(error) for phrase in NO_SECOND_DERIVATIVE):
                raise
            return found, torch.zeros_like(climbs.starts)
    return found, ways.flatten(1).nan_to_num(0.0, 0.0, 0.0).to(climbs.starts.dtype)


def _smooth_norm(gradients: torch.Tensor, q: float) -> torch.Tensor:
    """||g||_q per row, scaled to a largest entry of 1 so that nothing under- or overflows on the way back."""
    if gradients.dtype in (torch.float16, torch.bfloat16):
        gradients = gradients.float()
    scaled = gradients / gradients.detach().abs().amax(1, keepdim=True).clamp_min(torch.finfo(gradients.dtype).tiny)
    if math.isinf(q):
        return scaled.abs().amax(1)
    if q == 1.0:
        return scaled.abs().sum(1)
    return torch.linalg.vector_norm(scaled, q, dim=1)  # type: ignore[no-any-return]


def inside_box(offsets: torch.Tensor, centers: torch.Tensor, bounds: tuple[float, float] | None) -> torch.Tensor:
    """Clip points to the box: no coordinate grows by that, so they stay in the ball."""
    return offsets if bounds is None else (centers + offsets).clamp(*bounds) - centers


def candidates(dim: int) -> int:
    """Of how many random points a start is the best."""
    return CANDIDATES_IN_FEW_DIMENSIONS if dim <= FEW_DIMENSIONS else CANDIDATES


def best_starts(
    classifier: Classifier,
    climbs: Climbs,
    offers: Sequence[torch.Tensor],
    *,
    p: float,
    chunk_size: int,
    bounds: tuple[float, float] | None = None,
) -> torch.Tensor:
    """Of the offsets (k, d) offered to each climb, the one with the largest norm: (climbs, d).

    A climb with a single offer costs nothing.
    """
    chosen = torch.stack([offer[0] for offer in offers])
    open_climbs = [i for i, offer in enumerate(offers) if len(offer) > 1]
    q = LpBall(p, 1.0).q
    places = [(i, k) for i in open_climbs for k in range(len(offers[i]))]
    found: dict[int, list[float]] = {i: [] for i in open_climbs}
    for first in range(0, len(places), chunk_size):
        part = places[first : first + chunk_size]
        rows = torch.tensor([i for i, _ in part], device=chosen.device)
        some = climbs.at(rows, torch.stack([offers[i][k] for i, k in part]))
        centers = some.centers.flatten(1)
        points = centers + inside_box(onto_ball(some.starts, some.radii, p), centers, bounds)
        norms = _look(classifier, some, points.view(some.centers.shape), q, None)[0].tolist()
        for (i, _), norm in zip(part, norms, strict=True):
            found[i].append(norm)
    for i, norms in found.items():
        # A broken norm is taken at once, so that the climb meets it and reports it.
        chosen[i] = offers[i][max(range(len(norms)), key=lambda k: norms[k] if math.isfinite(norms[k]) else math.inf)]
    return chosen


def random_starts(ball: LpBall, *, dim: int, count: int, seed: int, input_id: int, batch: int) -> torch.Tensor:
    """Offsets (count, dim), uniform in the ball of radius 1 of the same norm, from (seed, id, norm, batch) alone.

    In few dimensions every other one is a corner instead, or a point of the surface: there small networks hide pieces
    that uniform points miss.
    """
    unit = LpBall(ball.p, 1.0)
    drawn = unit.offsets(dim=dim, count=count, seed=seed, input_id=input_id, block=START_BLOCK + batch, tile=0)
    if dim <= FEW_DIMENSIONS:
        drawn[1::2] = _extreme(drawn[1::2], ball.p)
    return drawn


def _extreme(offsets: torch.Tensor, p: float) -> torch.Tensor:
    """Corners of the unit ball, or points of its surface where it has none, in about these directions."""
    if math.isinf(p):
        return torch.where(offsets < 0.0, -1.0, 1.0)
    if p == 1.0:
        largest = offsets.abs().argmax(1, keepdim=True)
        return torch.zeros_like(offsets).scatter(1, largest, offsets.gather(1, largest).sign())
    length: torch.Tensor = torch.linalg.vector_norm(offsets, p, dim=1, keepdim=True)
    return offsets / length.clamp_min(1e-12)


def box_for(ball: LpBall, classifier: Classifier) -> tuple[float, float] | None:
    """The box that an ascent must stay in, if any."""
    if ball.region == "ball":
        return None
    if classifier.bounds is None:
        raise SettingError("region='box' needs the bounds of valid inputs; give the classifier bounds=(low, high)")
    return classifier.bounds


@dataclass(frozen=True)
class Ascent:
    """The largest gradient norms found in one ball around one input.

    norms       (targets,), each a lower bound of the local Lipschitz constant.
    gradients   (targets,), what they cost in gradients.
    settled     (targets,): whether the last three batches raised the best by less than 1% each, or nothing leads up.
    moved       (targets,): false where no climb ever had a direction, so that only random points are behind the norm.
    """

    norms: Array
    gradients: npt.NDArray[np.int64]
    settled: npt.NDArray[np.bool_]
    moved: npt.NDArray[np.bool_]


def _through_rounded(
    x: torch.Tensor, predicted: int, targets: Sequence[int], starts: torch.Tensor, radius: float, done: int
) -> Climbs:
    """Climbs from starts (targets, count, d), after `done` others of each target, with kinks moved in new ways.

    The very first keeps its kinks in their places.
    """
    _, count, dim = starts.shape
    chosen = torch.tensor(targets, device=x.device).repeat_interleave(count)
    each = torch.ones(len(chosen), device=x.device, dtype=x.dtype)
    patterns = torch.arange(done, done + count, device=x.device).repeat(len(targets))
    return Climbs(
        centers=x.expand(len(chosen), *x.shape),
        predicted=torch.full_like(chosen, predicted),
        targets=chosen,
        radii=radius * each,
        starts=starts.reshape(-1, dim),
        rounded=(AGAIN_ROUNDED if done else ROUNDED) * each,
        moves=(MOVES_IN_FEW_DIMENSIONS if dim <= FEW_DIMENSIONS else MOVES) * each * (patterns > 0),
        patterns=patterns,
    )


def _check(
    classifier: Classifier, x: torch.Tensor, predicted: int, targets: Sequence[int], input_id: int, most_batches: int
) -> None:
    if not isinstance(classifier, Classifier):
        raise ModelError(f"{type(classifier).__name__} is no Classifier; give cs.Classifier(model)")
    if not x.is_floating_point():
        raise InputError(f"x is of {x.dtype}; give one input of floats, such as images[0]")
    if most_batches < 1:
        raise SettingError(f"most_batches={most_batches}: give 1 or more")
    with torch.no_grad():
        logits = classifier.logits(x[None])
    if logits.ndim != 2:
        raise InputError(
            f"x has the shape {tuple(x.shape)}, for which the model gives no row of logits; give one input"
        )
    checked_classes(targets, predicted=predicted, num_classes=logits.shape[1], input_id=input_id)


def largest_gradient_norms(
    classifier: Classifier,
    x: torch.Tensor | npt.NDArray[np.floating[Any]],
    *,
    predicted: int,
    targets: Sequence[int],
    ball: LpBall,
    seed: int = 0,
    input_id: int = 0,
    most_batches: int = MOST_BATCHES,
) -> Ascent:
    """max ||grad(f_c - f_j)||_q over B_p(x, radius) for each target j of one input x (*input_shape).

    The first batch has 8 climbs through rounded networks (one from the input itself, with all kinks in their places),
    each further one 4, from the best places so far: three of them, or with a larger `most_batches` as many as it takes
    until three in a row raise the best by less than 1%. Up to 16 dimensions the first has 24, and further ones 8.

    Rounding depends a little on how many targets climb together, and a climb can make much of it: with float32 a
    target's norm may differ by a fraction of a percent from what it is alone.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> found = largest_gradient_norms(Classifier(model), torch.zeros(2), predicted=0, targets=[1], ball=LpBall(2, 1.0))
    >>> found.norms.shape, bool(found.moved[0])
    ((1,), True)
    """
    x = torch.as_tensor(x)
    _check(classifier, x, predicted, targets, input_id, most_batches)
    dim, box, few = x.numel(), box_for(ball, classifier), x.numel() <= FEW_DIMENSIONS
    norms = torch.empty(len(targets), 0, device=x.device, dtype=x.dtype)
    places = torch.empty(len(targets), 0, dim, device=x.device, dtype=x.dtype)
    gradients = np.zeros(len(targets), dtype=np.int64)
    moved, calm = np.zeros(len(targets), dtype=bool), np.zeros(len(targets), dtype=np.int64)
    done = 0
    for batch in range(most_batches):
        rows = np.flatnonzero(calm < CALM)
        if not len(rows):
            break
        at = torch.from_numpy(rows).to(x.device)
        if batch == 0:
            count = STARTS_IN_FEW_DIMENSIONS if few else STARTS
            drawn = random_starts(ball, dim=dim, count=count, seed=seed, input_id=input_id, batch=batch) * ball.radius
            drawn[0] = 0.0
            starts = drawn.to(x.device, x.dtype).expand(len(rows), count, dim)
        else:
            count = MORE_STARTS_IN_FEW_DIMENSIONS if few else MORE_STARTS
            best = norms[at].topk(count, dim=1).indices
            starts = places[at].gather(1, best[:, :, None].expand(-1, -1, dim))
        climbs = _through_rounded(x, predicted, [targets[int(t)] for t in rows], starts, ball.radius, done)
        steps, reach = (AGAIN_STEPS, AGAIN_REACH) if batch else (STEPS, 1.0)
        summit = climb(classifier, climbs, p=ball.p, steps=steps, reach=reach, bounds=box)
        more_norms = summit.norms.new_full((len(targets), count), -math.inf)
        more_places = summit.offsets.new_zeros(len(targets), count, dim)
        more_norms[at], more_places[at] = summit.norms.view(-1, count), summit.offsets.view(-1, count, dim)
        before = norms.amax(1) if batch else torch.full_like(more_norms[:, 0], -math.inf)
        norms, places = torch.cat([norms, more_norms], 1), torch.cat([places, more_places], 1)
        raised = (norms.amax(1) > before * (1.0 + RISE)).cpu().numpy()
        calm[rows] = np.where(raised[rows] | (batch == 0), 0, calm[rows] + 1)
        moved[rows] |= summit.moved.view(-1, count).any(1).cpu().numpy()
        calm[rows[~moved[rows]]] = CALM  # nothing leads up
        gradients[rows] += summit.gradients.view(-1, count).sum(1).cpu().numpy()
        done += count
    return Ascent(norms.double().amax(1).cpu().numpy(), gradients, calm >= CALM, moved)
