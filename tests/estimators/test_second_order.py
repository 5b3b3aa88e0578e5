from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.estimators.second_order import largest_curvatures
from cleverscore.loading.zoo import shipped

FEW = {"blocks": 12, "block_size": 8}


class Quadratic(nn.Module):
    """Margins x^T A_j x + b_j x + c_j between class 0 and the classes after it."""

    def __init__(self, dim: int, *, classes: int = 3, seed: int = 0, matrices: torch.Tensor | None = None) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        half = torch.randn(classes - 1, dim, dim, generator=generator, dtype=torch.float64) / math.sqrt(dim)
        self.a = nn.Parameter(half + half.mT if matrices is None else matrices)
        self.b = nn.Parameter(torch.randn(classes - 1, dim, generator=generator, dtype=torch.float64))
        self.c = nn.Parameter(torch.full((classes - 1,), 4.0, dtype=torch.float64))

    def margins(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ni,kij,nj->nk", x, self.a, x) + x @ self.b.T + self.c

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(x[:, :1]), -self.margins(x)], 1)


def bound(model: Quadratic, x: torch.Tensor, k: int) -> float:
    """The smallest r with g - |grad| r - K r^2 / 2 = 0, from the matrix itself."""
    with torch.no_grad():
        g = float(model.margins(x[None])[0, k])
        slope = float((2.0 * model.a[k] @ x + model.b[k]).norm())
        curvature = -float(torch.linalg.eigvalsh(2.0 * model.a[k])[0])
    roots = np.roots([-curvature / 2.0, -slope, g])
    return min((float(root.real) for root in roots if abs(root.imag) < 1e-12 and root.real > 0), default=math.inf)


@pytest.mark.parametrize("dim", [1, 2, 7, 60])
def test_equals_the_closed_form_on_quadratic_margins(dim: int) -> None:
    model = Quadratic(dim)
    x = 0.1 * torch.randn(4, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert (model.margins(x) > 0).all()
    scores = cs.second_order_clever(cs.Classifier(model), x, targets="all", radius=50.0, **FEW)
    for row in scores.rows:
        assert row.value == pytest.approx(min(50.0, bound(model, x[row.input], row.target - 1)), rel=1e-4)
        assert row.low <= row.value <= row.high and row.method == "second-order"


@pytest.mark.parametrize("curvature", [-0.7, 0.0, 0.04, 3.0])
def test_is_the_exact_distance_where_curvature_is_the_same_in_all_directions(curvature: float) -> None:
    model = Quadratic(5, classes=2, matrices=curvature * torch.eye(5, dtype=torch.float64)[None])
    x = torch.zeros(1, 5, dtype=torch.float64)
    # Along the gradient g(r) = 4 - |b| r + curvature r^2; straight downhill is the shortest way.
    roots = np.roots([curvature, -float(model.b[0].detach().norm()), 4.0])
    real = [root.real for root in roots if abs(root.imag) < 1e-12 and root.real > 0]
    scores = cs.second_order_clever(cs.Classifier(model), x, radius=30.0, **FEW)
    assert scores.values[0] == pytest.approx(min([30.0, *real]), rel=1e-4)
    assert bool(scores[0].capped) == (not real)


def test_curvature_is_the_eigenvalue_of_the_full_hessian() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 40), nn.Softplus(), nn.Linear(40, 3)).double()
    points = torch.randn(6, 30, dtype=torch.float64)
    found = largest_curvatures(cs.Classifier(model), points, predicted=2, targets=(0, 1))
    for i, point in enumerate(points):
        for t in range(2):
            hessian = torch.autograd.functional.hessian(lambda x, t=t: model(x)[2] - model(x)[t], point)
            assert float(found[i, t]) == pytest.approx(-float(torch.linalg.eigvalsh(hessian)[0]), rel=1e-4)


def test_points_of_one_chunk_do_not_touch_each_other() -> None:
    """For x_0 < 0 the Hessian is 2 I, whose Krylov space ends at once; for x_0 > 0 it is not."""

    def model(x: torch.Tensor) -> torch.Tensor:
        weights = torch.arange(1.0, 9.0, dtype=x.dtype)
        margin = (x**2).sum(1) + x[:, 0].clamp_min(0.0) ** 3 * (weights * x**2).sum(1)
        return torch.stack([margin, torch.zeros_like(margin)], 1)

    points = torch.randn(8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    points[:, 0] = torch.tensor([-1.0, 1.0]).repeat(4)
    found = largest_curvatures(cs.Classifier(model), points, predicted=0, targets=(1,))[:, 0]
    alone = [float(largest_curvatures(cs.Classifier(model), x[None], predicted=0, targets=(1,))) for x in points]
    assert found.tolist() == pytest.approx(alone, rel=1e-10)
    for value, point in zip(found, points, strict=True):
        hessian = torch.autograd.functional.hessian(lambda x: model(x[None])[0, 0], point)
        assert float(value) == pytest.approx(-float(torch.linalg.eigvalsh(hessian)[0]), rel=1e-4)


def test_chunks_and_threads_change_nothing() -> None:
    classifier = cs.Classifier(shipped.network("mnist-mlp").double(), mean=0.5)
    images = cs.load_data("zoo:mnist")[0][:2]
    options = {"targets": "runner_up", "radius": 1.0, "blocks": 10, "block_size": 2}
    one = cs.second_order_clever(classifier, images, chunk_size=1, workers=1, **options)
    many = cs.second_order_clever(classifier, images, chunk_size=16, workers=2, **options)
    for a, b in zip(one.rows, many.rows, strict=True):
        assert a.maxima.tolist() == pytest.approx(b.maxima.tolist(), rel=1e-9)


def test_on_a_smooth_network_it_lies_below_a_crossing_found_by_descent() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 3)).double()
    x = torch.randn(5, 8, dtype=torch.float64)
    classifier = cs.Classifier(model)
    scores = cs.second_order_clever(classifier, x, radius=2.0, blocks=50, block_size=32)
    for i, score in enumerate(scores):
        point = x[i].clone()
        for _ in range(4000):  # steepest descent of the smallest margin gives some crossing, so an upper bound
            point.requires_grad_(True)
            logits = model(point)
            others = logits.clone()
            others[score.predicted] = -math.inf
            margin = logits[score.predicted] - others.max()
            if margin <= 0:
                break
            (gradient,) = torch.autograd.grad(margin, point)
            point = (point - 2e-3 * gradient / gradient.norm()).detach()
        assert score.value <= float((point.detach() - x[i]).norm()) + 1e-3
        assert score.value > 0


def test_networks_with_kinks_are_refused_and_affine_ones_are_not() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6)
    relu = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3))
    with pytest.raises(cs.CleverError, match="breakpoints"):
        cs.second_order_clever(cs.Classifier(relu), x, **FEW)
    with pytest.raises(cs.CleverError, match="breakpoints"):
        cs.second_order_clever(cs.load_model("zoo:mnist-cnn"), cs.load_data("zoo:mnist")[0][:1], **FEW)
    affine = cs.Classifier(nn.Linear(6, 3))
    scores = cs.second_order_clever(affine, x, **FEW)
    assert scores.values == pytest.approx(cs.clever(affine, x, blocks=12, block_size=8).values, rel=1e-5)


def test_twice_differentiable_is_asked_for_in_words() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, gradient):
            return gradient * 2.0 * ctx.saved_tensors[0]

    linear = nn.Linear(6, 3)
    for model in (lambda x: linear(Once.apply(x)), lambda x: linear(Once.apply(x)).tanh()):
        with pytest.raises(cs.CleverError, match="differentiated twice"):
            cs.second_order_clever(cs.Classifier(model), torch.randn(2, 6), **FEW)
