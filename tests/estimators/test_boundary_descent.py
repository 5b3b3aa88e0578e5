"""The nearest crossing: closed forms and brute force first, then what must hold for every row."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import nn

from cleverscore.estimators.ascent.boundary_descent import NEAR, descend
from cleverscore.estimators.ascent.half_space import nearest_in_half_space
from cleverscore.norms import dual_exponent

NORMS = (1.0, 1.5, 2.0, math.inf)


def affine(dim: int, rows: int, *, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, Callable]:
    """Inputs, slopes and the margin w . z - b of each row, 60% of the way to the box's best corner from zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, dim, generator=generator, dtype=torch.float64)
    w = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    margins = -0.6 * (w * torch.where(w > 0, -x, 1.0 - x)).sum(1)
    x, w, margins = x.to(dtype), w.to(dtype), margins.to(dtype)
    return x, w, lambda z: (margins + (w * (z - x)).sum(1), w)


def distance_in_box(w: np.ndarray, x: np.ndarray, margin: float, p: float) -> float:
    """min ||z - x||_p with margin + w . (z - x) <= 0 in [0, 1]^d, by a general solver."""
    d = len(w)
    room = np.where(w > 0, x, 1.0 - x)
    if p == 1.0:
        return float(
            linprog(np.ones(d), -np.abs(w)[None], [-margin], bounds=list(zip(0 * room, room, strict=True))).fun
        )
    if math.isinf(p):
        rows = np.vstack([np.r_[-np.abs(w), 0.0], np.hstack([np.eye(d), -np.ones((d, 1))])])
        sides = [*zip(0 * room, room, strict=True), (0.0, None)]
        return float(linprog(np.r_[np.zeros(d), 1.0], rows, np.r_[-margin, np.zeros(d)], bounds=sides).fun)
    solved = minimize(
        lambda moves: (moves**p).sum(),
        0.8 * room,
        bounds=list(zip(0 * room, room, strict=True)),
        constraints=[{"type": "ineq", "fun": lambda moves: np.abs(w) @ moves - margin}],
        options={"maxiter": 1000, "ftol": 1e-15},
    )
    return float(solved.fun ** (1 / p))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", NORMS)
def test_affine_margins_without_a_box(p: float, dtype: torch.dtype) -> None:
    x, w, function = affine(50, 20, dtype=dtype)
    distances, points = descend(function, x, x, p=p, steps=20)
    exact = function(x)[0] / torch.linalg.vector_norm(w, dual_exponent(p), dim=1)
    torch.testing.assert_close(distances, exact, rtol=3e-4, atol=0.0)
    assert (distances >= exact * (1 - 1e-5)).all()
    assert (function(points)[0] <= 0).all()
    torch.testing.assert_close(torch.linalg.vector_norm(points - x, p, dim=1), distances)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", NORMS)
def test_affine_margins_in_a_box(p: float, dtype: torch.dtype) -> None:
    x, w, function = affine(12, 8, dtype=dtype)
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    distances, points = descend(function, x, x, p=p, steps=40, low=zero, high=one)
    assert ((points >= 0) & (points <= 1)).all()
    assert (function(points)[0] <= 0).all()
    margins = function(x)[0]
    exact = [distance_in_box(*(v[i].double().numpy() for v in (w, x)), float(margins[i]), p) for i in range(len(x))]
    np.testing.assert_allclose(distances.double().numpy(), exact, rtol=1e-3)


def relu_margin(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A ReLU network with several pieces in the plane."""
    generator = torch.Generator().manual_seed(5)
    w1, b1 = torch.randn(12, 2, generator=generator), torch.randn(12, generator=generator)
    w2 = torch.randn(12, generator=generator)
    z = z.detach().requires_grad_(True)
    with torch.enable_grad():
        margins = torch.relu(z @ w1.T + b1) @ w2
        (gradients,) = torch.autograd.grad(margins.sum(), z)
    return margins.detach(), gradients


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("boxed", [False, True])
def test_a_relu_network_in_the_plane_against_brute_force(p: float, boxed: bool) -> None:
    side = torch.linspace(-3, 3, 601)
    grid = torch.cartesian_prod(side, side)
    beyond = grid[relu_margin(grid)[0] <= 0]
    if boxed:
        beyond = beyond[(beyond.abs() <= 1.5).all(1)]
    x = torch.rand(200, 2, generator=torch.Generator().manual_seed(1)) * 3 - 1.5
    x = x[relu_margin(x)[0] > 0.05]
    assert len(x) > 20
    count = 8
    generator = torch.Generator().manual_seed(2)
    starts = torch.cat([x, x.repeat(count - 1, 1) + torch.randn(len(x) * (count - 1), 2, generator=generator)])
    box = {"low": torch.tensor(-1.5), "high": torch.tensor(1.5)} if boxed else {}
    distances, _ = descend(relu_margin, x.repeat(count, 1), starts, p=p, steps=60, **box)
    found = distances.view(count, -1).amin(0)
    exact = torch.cdist(x, beyond, p=p).amin(1)
    assert (found >= exact - 0.02).all()  # the grid is exact to its spacing
    assert (found <= exact + 0.02).float().mean() >= 0.95  # a descent ends in one of several basins
    assert (found <= 1.1 * exact + 0.02).all()


@pytest.mark.parametrize("p", NORMS)
def test_rows_do_not_know_of_each_other(p: float) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(30, 2, generator=generator) * 3 - 1.5
    starts = x + 0.1 * torch.randn(30, 2, generator=generator)
    box = {"low": torch.tensor(-2.0), "high": torch.tensor(2.0)}
    together, points = descend(relu_margin, x, starts, p=p, steps=30, **box)
    for rows in (slice(0, 1), slice(7, 12)):
        alone, places = descend(relu_margin, x[rows], starts[rows], p=p, steps=30, **box)
        torch.testing.assert_close(alone, together[rows], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(places, points[rows], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("p", NORMS)
def test_a_flat_start_meets_nothing(p: float) -> None:
    x = torch.rand(3, 1, 4, 4)

    def flat(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        assert torch.isfinite(z).all()
        return torch.ones(len(z)), torch.zeros_like(z)

    def undefined(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((len(z),), math.nan), torch.full_like(z, math.nan)

    for function in (flat, undefined):
        for box in ({}, {"low": torch.tensor(0.0), "high": torch.tensor(1.0)}):
            for starts in (x, x + 0.1):
                distances, points = descend(function, x, starts, p=p, steps=12, **box)
                assert torch.isinf(distances).all()
                assert torch.equal(points, x)


@pytest.mark.parametrize("steps", [1, 2, 3, 20])
def test_it_takes_as_many_gradients_as_it_was_given(steps: int) -> None:
    x, _w, function = affine(6, 4, dtype=torch.float32)
    calls = []

    def counted(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(len(z))
        return function(z)

    descend(counted, x, x, p=2.0, steps=steps)
    assert calls == [4] * steps


def test_a_start_beyond_the_boundary_is_brought_near() -> None:
    x, w, function = affine(20, 5, dtype=torch.float32)
    distances, _ = descend(function, x, x - 50 * w, p=2.0, steps=20)
    torch.testing.assert_close(distances, function(x)[0] / w.norm(dim=1), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("p", NORMS)
def test_where_the_box_is_too_small_the_best_corner_is_taken(p: float) -> None:
    x, w, _ = affine(6, 3, dtype=torch.float64)
    z = nearest_in_half_space(
        x, x, torch.full((3,), 1e3).double(), w, p=p, low=torch.tensor(0.0), high=torch.tensor(1.0)
    )
    torch.testing.assert_close(z, (w < 0).double(), rtol=0.0, atol=1e-9)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_refined_crossings_are_nearer_and_still_crossings(p: float) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)).double()
    x = torch.randn(6, 30, dtype=torch.float64)
    sign = model(x).detach().sign()[:, 0]

    def margins_and_gradients(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        points = points.detach().requires_grad_(True)
        with torch.enable_grad():
            margins = sign * model(points)[:, 0]
            (gradients,) = torch.autograd.grad(margins.sum(), points)
        return margins.detach(), gradients

    sizes, points = descend(margins_and_gradients, x, x, p=p, steps=40)
    finer, nearer = descend(margins_and_gradients, x, points, p=p, steps=60, schedule=NEAR)
    assert torch.isfinite(sizes).all() and (finer <= sizes * (1 + 1e-9)).all() and (finer < sizes).any()
    assert (margins_and_gradients(nearer)[0] <= 0.0).all()
    torch.testing.assert_close(torch.linalg.vector_norm(nearer - x, p, dim=1), finer)
