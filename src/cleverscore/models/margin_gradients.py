"""Margin-gradient norms ||grad(f_c - f_j)(x)||_q: one forward pass for all targets. The hot path."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from cleverscore.errors import ModelError
from cleverscore.models.classifier import Classifier
from cleverscore.models.input_box import Moves

# Squares of float32 gradients below this underflow; such norms, and overflown ones, are computed again in double.
SMALLEST_TRUSTED = 1e-15
CUT_OFF = "the model's outputs are cut off from its inputs (detach, no_grad or numpy inside?); CLEVER needs gradients"


def dual_norms(gradients: torch.Tensor, q: float) -> torch.Tensor:
    """||g||_q of each row (n, ...) -> (n,), in float32 at least.

    abs().amax() and abs().sum() are several times faster than `vector_norm` for q = inf and 1.
    """
    flat = gradients.flatten(1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    if math.isinf(q):
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

    One forward pass, then one vector-Jacobian product with e_c - e_j per target through the same graph. Batched
    products (`is_grads_batched`, vmap) need several times the memory and are slower on convolutions. With `moves`, only
    components count along which the input can move inside its box.
    """
    gradients = margin_gradients(classifier, points, predicted=predicted, targets=targets)
    return torch.stack([_counted_norms(gradient, q, moves) for gradient in gradients], 1)


def margin_gradients(
    classifier: Classifier, points: torch.Tensor, *, predicted: int, targets: Sequence[int]
) -> Iterator[torch.Tensor]:
    """grad(f_c - f_j)(x) at every point (n, *input_shape), target by target."""
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
    """The gradient of direction . logits; `keep` retains the graph for further gradients."""
    (gradient,) = torch.autograd.grad(logits, points, direction, retain_graph=keep, allow_unused=True)
    if gradient is None:  # a graph that leads to weights only
        raise ModelError(CUT_OFF)
    return gradient


def _counted_norms(gradient: torch.Tensor, q: float, moves: Moves | None) -> torch.Tensor:
    """Norms of the gradients, of the counted components only if `moves` is given."""
    if moves is None:
        return dual_norms(gradient, q)
    norms = dual_norms(moves.masked(gradient), q)
    # An infinite component must show also where it does not count: 0 * inf is NaN.
    return norms + 0.0 * gradient.flatten(1).sum(1, dtype=norms.dtype)
