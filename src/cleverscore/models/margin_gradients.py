"""Norms of margin gradients, ||grad(f_c - f_j)(x)||_q, from one forward pass for all targets: the hot path."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from cleverscore.errors import ModelError
from cleverscore.models.classifier import Classifier
from cleverscore.models.input_box import Moves

# Norms below this may be wrong in float32, because squares of small numbers underflow; such norms, and those that are
# not finite, are computed again in double.
SMALLEST_TRUSTED = 1e-15
CUT_OFF = "the model's outputs are cut off from its inputs (detach, no_grad or numpy inside?); CLEVER needs gradients"


def dual_norms(gradients: torch.Tensor, q: float) -> torch.Tensor:
    """||g||_q of each gradient g (n, ...): (n,), in float32, or in float64 for gradients in float64."""
    flat = gradients.flatten(1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    if math.isinf(q):  # for q = inf and q = 1, several times faster than `vector_norm`
        return flat.abs().amax(1)
    if q == 1.0:
        return flat.abs().sum(1)
    norms: torch.Tensor = torch.linalg.vector_norm(flat, q, dim=1)
    doubtful = (norms < SMALLEST_TRUSTED) | ~torch.isfinite(norms)
    if bool(doubtful.any()):
        rows = flat[doubtful].double()
        largest = rows.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        norms[doubtful] = (torch.linalg.vector_norm(rows / largest, q, dim=1) * largest[:, 0]).to(norms.dtype)
    return norms


def margin_gradient_norms(
    classifier: Classifier,
    points: torch.Tensor,
    *,
    predicted: int,
    targets: Sequence[int],
    q: float,
    moves: Moves | None = None,
) -> torch.Tensor:
    """||grad(f_c - f_j)(x)||_q for every point and target: (n, *input_shape) -> (n, targets).

    c is `predicted`, j a target. With `moves`, gradient components along which the input cannot move inside its box are
    set to 0. Takes one forward pass, then one vector-Jacobian product with e_c - e_j per target through the same graph.
    Batched products (`is_grads_batched`, vmap) would need several times the memory and are slower on convolutions.
    """
    gradients = margin_gradients(classifier, points, predicted=predicted, targets=targets)
    return torch.stack([_counted_norms(gradient, q, moves) for gradient in gradients], 1)


def margin_gradients(
    classifier: Classifier, points: torch.Tensor, *, predicted: int, targets: Sequence[int]
) -> Iterator[torch.Tensor]:
    """For one target j after the other, grad(f_c - f_j) at every point: (n, *input_shape) each; c is `predicted`."""
    points, logits = _with_graph(classifier, points)
    direction = torch.zeros_like(logits)
    direction[:, predicted] = 1.0
    for position, target in enumerate(targets):
        direction[:, target] = -1.0
        yield _gradient_along(logits, points, direction, keep=position + 1 < len(targets))
        direction[:, target] = 0.0


def _with_graph(classifier: Classifier, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    points = points.detach().requires_grad_(True)
    with torch.enable_grad():
        logits = classifier.logits(points)
    if not logits.requires_grad:
        raise ModelError(CUT_OFF)
    return points, logits


def _gradient_along(
    logits: torch.Tensor, points: torch.Tensor, direction: torch.Tensor, *, keep: bool = False
) -> torch.Tensor:
    """The gradient of <direction, logits> at every point (n, *input_shape); `keep` keeps the graph for another call."""
    (gradient,) = torch.autograd.grad(logits, points, direction, retain_graph=keep, allow_unused=True)
    if gradient is None:  # the logits depend on weights that require gradients, but not on the points
        raise ModelError(CUT_OFF)
    return gradient


def _counted_norms(gradient: torch.Tensor, q: float, moves: Moves | None) -> torch.Tensor:
    """Norms (n,) of the gradients; with `moves`, of their counted components only."""
    if moves is None:
        return dual_norms(gradient, q)
    norms = dual_norms(moves.masked(gradient), q)
    # If a component is NaN or infinite, the norm becomes NaN (0 * inf is NaN), also if the component does not count.
    return norms + 0.0 * gradient.flatten(1).sum(1, dtype=norms.dtype)
