"""Second-order CLEVER: the margin's slope at the input and its largest downward curvature in the ball, p = 2.

Let g = f_c - f_j be the margin. By Taylor's theorem, for every x with ||x - x0||_2 = r inside the ball,
    g(x) >= g(x0) - ||grad g(x0)||_2 r - K r^2 / 2,   K = max over the ball of the largest eigenvalue of -Hessian(g),
so the class does not change to j before the right side reaches 0. Weng et al., "On extensions of CLEVER", 2018, have
the spectral norm of the Hessian for K. Only downward curvature brings the margin to 0 sooner, so the largest eigenvalue
of -Hessian(g), with its sign, is a valid bound, too, and never larger than the spectral norm. K is estimated like
CLEVER's constant: block maxima at sampled points, and the end-point of their tail.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cleverscore.errors import ModelError, SettingError
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.estimator import Order, Prepared
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.sampling.block_maxima import Request, sample
from cleverscore.estimators.sampling.chunk_size import resolved_chunk_size
from cleverscore.estimators.sampling.method import Method
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.inputs.balls import LpBall
from cleverscore.inputs.examples import Example
from cleverscore.models.classifier import Classifier
from cleverscore.models.input_box import Moves
from cleverscore.models.margin_gradients import CUT_OFF, margin_gradient_norms
from cleverscore.randomness import philox

if TYPE_CHECKING:
    from cleverscore.estimators.settings import Settings

STEPS = 40  # Lanczos steps at most; smooth networks need 5 to 20
# Lanczos steps end when the residual is at most this share of the largest absolute eigenvalue. The error of an
# eigenvalue is then at most residual^2 / (distance to the next eigenvalue), far below the error of the tail fit.
RESIDUAL = 1e-3
START_STREAM = 0x6C616E637A6F7321  # in the Philox key of the starting vector, where keys of points have the norm
GRAPHS = 4  # a graph of gradients needs about this many times the memory of a forward pass
SEGMENT = 16  # points with Hessians along a segment when smoothness is checked
# A network is refused if Hessians leave more than this share of the gradient's change along a segment unexplained. The
# share is 1 for a piecewise linear network, and a few per cent for a smooth one.
UNEXPLAINED = 0.5


@dataclass(frozen=True)
class SecondOrder(Method):
    """The method "second-order": it measures block maxima of curvatures, and the slope at the input.

    A point costs 5 to 20 Hessian-vector products per target. A network with breakpoints (ReLU, max pooling) is refused,
    because its Hessian does not show them. With region="box" points are clipped to the classifier's bounds, and the
    slope is the norm of only those gradient components along which the input can move; curvatures are the largest ones
    over all directions.
    """

    activity = "sampling curvatures"
    unused = ("tolerance",)

    def check(self, settings: Settings) -> None:
        """Raise a SettingError for norms other than l2."""
        super().check(settings)
        if settings.p != 2.0:
            raise SettingError(f"p={settings.p:g}: curvatures are eigenvalues, which belong to p = 2")

    def kind(self, classifier: Classifier, settings: Settings) -> type[Prepared]:
        """A class that uses the network as it is, and smaller chunks than other methods."""
        return _TwiceDifferentiable

    def measure(self, ready: Prepared, example: Example, budget: Budget) -> Measurements:
        """Draw all blocks of one example and compute its slope; the budget is not used."""
        settings, ball = ready.settings, self.ball_of(ready.settings)
        request = Request(
            example.x, example.input_id, example.predicted, example.targets, ball, range(settings.blocks),
            settings.block_size, settings.seed,
        )  # fmt: skip
        ((_, maxima),) = sample(
            ready.classifier, [request], chunk_size=ready.chunk_size, workers=ready.workers, measure=largest_curvatures
        )
        began = time.perf_counter()
        slopes = margin_gradient_norms(
            ready.classifier, example.x[None], predicted=example.predicted, targets=example.targets, q=2.0,
            moves=ball.moves(example.x, ready.classifier.bounds),
        )  # fmt: skip
        count = len(example.targets)
        return Measurements.of(
            example, maxima.values, (settings.block_size,) * count, maxima.seconds + time.perf_counter() - began,
            (StopReason.ALL_BLOCKS,) * count, slopes=tuple(slopes[0].double().tolist()),
        )  # fmt: skip


class _TwiceDifferentiable(Prepared):
    @classmethod
    def make(cls, order: Order, examples: Sequence[Example]) -> Prepared:
        """Raise a ModelError for networks that are not smooth, and choose a chunk size for graphs of gradients."""
        estimator, classifier, settings, chunk_size, workers = order
        _require_smooth(classifier, examples[0], estimator.ball_of(settings), settings.seed)
        if chunk_size is None:
            chunk_size = max(1, resolved_chunk_size(classifier, examples[0].x, None, workers=workers) // GRAPHS)
        chunk_size = resolved_chunk_size(classifier, examples[0].x, chunk_size, workers=workers)
        return cls(estimator, classifier, settings, chunk_size, workers)


def largest_curvatures(
    classifier: Classifier,
    points: torch.Tensor,
    *,
    predicted: int,
    targets: Sequence[int],
    q: float = 2.0,
    moves: Moves | None = None,
) -> torch.Tensor:
    """Largest eigenvalue of -Hessian(f_c - f_j) for every point and target: (n, *input_shape) -> (n, targets).

    c is `predicted`, j a target. `moves`, which components count for an input in its box, is not used: the largest
    eigenvalue over all directions bounds the curvature along those in the box.
    """
    if q != 2.0:
        raise SettingError(f"q={q:g}: curvatures are eigenvalues, which belong to p = 2")
    points = points.detach().requires_grad_(True)
    with torch.enable_grad():
        logits = classifier.logits(points)
    values = []
    for target in targets:
        values.append(_lanczos(_gradient(logits, points, predicted, target), points))
    return torch.stack(values, 1)


def _gradient(logits: torch.Tensor, points: torch.Tensor, predicted: int, target: int) -> torch.Tensor:
    """The gradient of the margin at every point (n, *input_shape), with a graph, so that it can be differentiated."""
    if not logits.requires_grad:
        raise ModelError(CUT_OFF)
    with torch.enable_grad():
        margin = (logits[:, predicted] - logits[:, target]).sum()
        (gradient,) = torch.autograd.grad(margin, points, create_graph=True, allow_unused=True)
    if gradient is None:
        raise ModelError(CUT_OFF)
    return gradient


def _hessian_product(gradient: torch.Tensor, points: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """The Hessian at each of n points times the vector for this point: (n, d), for vectors (n, d)."""
    if not gradient.requires_grad:  # the gradient does not depend on the points, so the Hessian is 0
        return torch.zeros_like(vectors)
    try:
        (product,) = torch.autograd.grad(
            gradient, points, vectors.reshape(points.shape).to(gradient.dtype), retain_graph=True, allow_unused=True
        )
    except RuntimeError as error:
        raise ModelError(
            f"the model cannot be differentiated twice ({str(error).splitlines()[0]}); use cs.clever"
        ) from error
    return torch.zeros_like(vectors) if product is None else product.flatten(1).to(vectors.dtype)


def _lanczos(gradient: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Largest eigenvalue of -Hessian at each of n points (n,), by Lanczos steps from one fixed random vector.

    Each point keeps the value of the step at which it converged, so the value does not depend on the other points of
    the chunk.
    """
    n, dim = len(points), points[0].numel()
    kind = torch.float64 if points.dtype == torch.float64 else torch.float32
    start = torch.from_numpy(philox((0, START_STREAM), (0, 0, 0, dim)).standard_normal(dim)).to(points.device, kind)
    vector = (start / start.norm()).expand(n, dim)
    basis: list[torch.Tensor] = []
    diagonal: list[torch.Tensor] = []
    beside: list[torch.Tensor] = []
    value = torch.zeros(n, dtype=torch.float64, device=points.device)
    open_ = torch.ones(n, dtype=torch.bool, device=points.device)
    alive = open_.clone()
    for step in range(min(dim, STEPS)):
        basis.append(vector)
        product = -_hessian_product(gradient, points, vector)
        alpha = (product * vector).sum(1).double()
        diagonal.append(alpha)
        for _ in range(2):  # orthogonal to the basis; once is not enough in float32
            for former in basis:
                product = product - (product * former).sum(1, keepdim=True) * former
        beta = product.norm(dim=1).double()
        matrix = torch.diag_embed(torch.stack(diagonal, 1))
        if beside:
            off = torch.diag_embed(torch.stack(beside, 1), 1)
            matrix = matrix + off + off.mT
        broken = ~torch.isfinite(matrix).all(2).all(1)
        matrix[broken] = 0.0
        values, vectors = torch.linalg.eigh(matrix)
        spectrum = values.abs().amax(1)
        alive = alive & (beta > 1e-6 * spectrum)  # else the basis spans an invariant subspace, and the value is exact
        settled = (beta * vectors[:, -1, -1].abs() <= RESIDUAL * spectrum) & (step + 1 >= min(3, dim))
        value = torch.where(open_, torch.where(broken, torch.nan, values[:, -1]), value)
        open_ = open_ & ~settled & alive & ~broken
        if not bool(open_.any()):
            break
        beside.append(torch.where(alive, beta, 0.0))
        vector = torch.where(alive[:, None], product / beta.to(kind)[:, None], 0.0)
    return value


def _require_smooth(classifier: Classifier, example: Example, ball: LpBall, seed: int) -> None:
    """Raise a ModelError for networks with breakpoints, which the Hessian does not show.

    In a smooth network the change of the gradient along a segment is the integral of the Hessian times the segment's
    direction. At a breakpoint the gradient jumps, so the two differ. The segment goes from the input to a random point
    of the ball.
    """
    end = ball.points(
        example.x, count=1, seed=seed, input_id=example.input_id, block=0, tile=0, bounds=classifier.bounds
    )
    shares = (torch.arange(SEGMENT, device=end.device, dtype=end.dtype) + 0.5) / SEGMENT
    shares = torch.cat([torch.tensor([0.0, 1.0]).to(shares), shares]).reshape(-1, *[1] * example.x.ndim)
    segment = end - example.x
    points = (example.x + shares * segment).detach().requires_grad_(True)
    with torch.enable_grad():
        logits = classifier.logits(points)
    gradient = _gradient(logits, points, example.predicted, example.targets[0])
    product = _hessian_product(gradient, points, segment.flatten(1).expand(len(points), -1))
    flat = gradient.detach().flatten(1)
    change = flat[1] - flat[0]
    unexplained = change - product[2:].mean(0)
    # Where the gradient changes by no more than rounding, there is no breakpoint.
    rounding = 1e-4 * float(flat.norm(dim=1).amax())
    if float(change.norm()) > rounding and float(unexplained.norm()) > UNEXPLAINED * float(change.norm()):
        raise ModelError(
            f"second derivatives explain {max(0.0, 1.0 - float(unexplained.norm() / change.norm())):.0%} of how the "
            "gradient changes in the ball: the network has breakpoints (ReLU, max pooling) or cannot be differentiated "
            "twice, and second-order CLEVER would be blind; use cs.clever"
        )
