from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cleverscore as cs
from cleverscore import errors
from cleverscore.ascent import Climbs, climb, climb_cost, largest_gradient_norms, random_starts
from cleverscore.gradients import margin_gradient_norms
from cleverscore.projections import onto_ball, steepest
from cleverscore.surrogates import SmoothGates, Softness
from tests.helpers import PlaneReLU, affine

NORMS = [1.0, 1.5, 2.0, 3.0, math.inf]


def network(activation: nn.Module, dim: int = 10, *, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(dim, 16), activation, nn.Linear(16, 16), activation, nn.Linear(16, 3)).double()


class Bounded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(0.0, 1.0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices gain nothing from threads, and lose much where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


PIECEWISE = [
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.LeakyReLU(0.2),
    nn.PReLU().double(),
    nn.ReLU6(),
    nn.Hardtanh(),
    nn.Hardsigmoid(),
    Bounded(),
]


# --- projections ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", NORMS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), radius=st.floats(0.01, 100.0))
def test_projected_points_lie_in_the_ball_and_points_of_the_ball_stay(p: float, seed: int, radius: float) -> None:
    offsets = torch.randn(6, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * radius
    radii = torch.full((6,), radius, dtype=torch.float64)
    moved = onto_ball(offsets, radii, p)
    lengths = torch.linalg.vector_norm(moved, p, dim=1)
    assert bool((lengths <= radius * (1 + 1e-9)).all())
    inside = torch.linalg.vector_norm(offsets, p, dim=1) <= radius
    assert torch.equal(moved[inside], offsets[inside])
    assert lengths[~inside].tolist() == pytest.approx([radius] * int((~inside).sum()))


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_the_projection_is_the_nearest_point(p: float) -> None:
    """<v - P v, y - P v> <= 0 for every y of the ball: the condition that singles out the nearest point."""
    generator = torch.Generator().manual_seed(1)
    v = torch.randn(1, 9, generator=generator, dtype=torch.float64) * 2.0
    projected = onto_ball(v, torch.ones(1, dtype=torch.float64), p)
    others = cs.LpBall(p, 1.0).offsets(dim=9, count=500, seed=0, input_id=0, block=0, tile=0).double()
    corners = torch.eye(9, dtype=torch.float64) if p == 1.0 else others.sign() if math.isinf(p) else others
    for y in torch.cat([others, corners, -corners]):
        assert float((v - projected)[0] @ (y - projected[0])) <= 1e-9


@pytest.mark.parametrize("p", NORMS)
def test_the_steepest_direction_has_length_one_and_gains_the_dual_norm(p: float) -> None:
    gradients = torch.randn(5, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    steps = steepest(gradients, p)
    assert torch.linalg.vector_norm(steps, p, dim=1).tolist() == pytest.approx([1.0] * 5)
    gains = (gradients * steps).sum(1)
    dual = torch.linalg.vector_norm(gradients, cs.LpBall(p, 1.0).q, dim=1)
    share = 0.5 if p == 1.0 else 1.0 - 1e-9  # several coordinates at once for p = 1
    assert bool((gains >= share * dual).all()) and bool((gains <= dual * (1 + 1e-9)).all())
    assert torch.equal(steepest(torch.zeros(1, 3), p), torch.zeros(1, 3))


# --- smooth gates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", PIECEWISE, ids=lambda module: type(module).__name__)
def test_gates_leave_values_and_gradients_and_give_a_second_derivative(activation: nn.Module) -> None:
    model = network(activation).requires_grad_(False)
    x = torch.randn(6, 10, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def gated_slopes() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        points = x.clone().requires_grad_(True)
        with SmoothGates():
            value = model(points)
        (slope,) = torch.autograd.grad(value[:, 0].sum(), points, create_graph=True)
        (second,) = torch.autograd.grad(slope.square().sum(), points)
        return value.detach(), slope.detach(), second

    gated = gated_slopes()
    points = x.clone().requires_grad_(True)
    value = model(points)
    (slope,) = torch.autograd.grad(value[:, 0].sum(), points)
    assert torch.equal(value, gated[0])
    assert torch.allclose(slope, gated[1], atol=1e-12)
    assert bool(gated[2].abs().sum(1).gt(0).all())


@pytest.mark.parametrize("activation", PIECEWISE, ids=lambda module: type(module).__name__)
def test_a_rounded_gate_has_the_values_slopes_and_curvature_of_softplus(activation: nn.Module) -> None:
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(6), dtype=torch.float64) * 3.0
    sharpness = torch.tensor([1.0, 2.0, 4.0, 4.0], dtype=torch.float64)
    rounded = torch.tensor([True, True, True, False])
    beta = (sharpness / z.std(1, correction=0))[:, None]
    slopes = {"LeakyReLU": ((0.0, 0.8),), "PReLU": ((0.0, 0.75),), "ReLU6": ((0.0, 1.0), (6.0, -1.0))}
    slopes |= {"Hardtanh": ((-1.0, 1.0), (1.0, -1.0)), "Hardsigmoid": ((-3.0, 1 / 6), (3.0, -1 / 6))}
    slopes |= {"Bounded": ((0.0, 1.0), (1.0, -1.0))}
    jumps = slopes.get(type(activation).__name__, ((0.0, 1.0),))

    def derivatives(value: torch.Tensor, points: torch.Tensor) -> list[torch.Tensor]:
        (slope,) = torch.autograd.grad(value.sum(), points, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), points)
        return [value.detach(), slope.detach(), curvature]

    points = z.clone().requires_grad_(True)
    with SmoothGates(Softness(sharpness, rounded)):
        found = derivatives(activation(points * 1.0), points)
    points = z.clone().requires_grad_(True)
    true = activation(points * 1.0)
    (true_slope,) = torch.autograd.grad(true.sum(), points)
    smooth = sum(jump * nn.functional.softplus(beta * (points - k)) / beta for k, jump in jumps)
    kinked = sum(jump * torch.relu(z - k) for k, jump in jumps)
    kinked_slope = sum(jump * (z > k).double() for k, jump in jumps)
    value, slope, curvature = derivatives(smooth, points)
    wanted = [value - kinked + true.detach(), slope - kinked_slope + true_slope, curvature]
    for part, other in zip(found, wanted, strict=True):
        assert torch.allclose(part[:3], other[:3], atol=1e-9)
    assert torch.equal(found[0][3], true.detach()[3])  # the last point sees the true network


def test_rows_of_one_point_share_its_softness() -> None:
    """Layers of a transformer turn each point into several rows."""
    z = torch.randn(6, 5, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    with SmoothGates(Softness(torch.tensor([2.0, 2.0]), torch.tensor([True, False]))):
        value = torch.relu(z)
    assert bool((value[:3] > torch.relu(z[:3])).all()) and torch.equal(value[3:], torch.relu(z[3:]))


@pytest.mark.parametrize("shape", [(9,), (3, 4, 4), (5, 6)], ids=["units", "images", "tokens"])
def test_moved_kinks_come_home_as_gates_sharpen(shape: tuple[int, ...]) -> None:
    z = torch.randn(4, *shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    rounded = torch.tensor([True, True, True, False])
    moves, patterns = torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.tensor([5, 5, 6, 5])

    def values(sharpness: float, rows: slice = slice(None), *, moved: bool = True) -> torch.Tensor:
        soft = Softness(sharpness, rounded[rows], *((moves[rows], patterns[rows]) if moved else ()))
        with SmoothGates(soft):
            return torch.relu(torch.relu(z[rows]) - 0.3)

    soft, sharp, plain = values(1.0), values(1e6), values(1.0, moved=False)
    true = torch.relu(torch.relu(z) - 0.3)
    assert torch.equal(soft[[0, 3]], plain[[0, 3]]) and torch.equal(soft[3], true[3])
    assert bool((soft[1:3] - plain[1:3]).abs().amax(dim=tuple(range(1, z.ndim))).gt(0.05).all())
    assert torch.allclose(sharp, true, atol=1e-4)
    assert torch.allclose(values(1.0, slice(1, 2)), soft[1:2])  # whatever other points there are
    again = Softness(1.0, torch.ones(2, dtype=torch.bool), torch.ones(2), torch.tensor([5, 6]))
    with SmoothGates(again):
        first, second = torch.relu(z[:1].expand(2, *shape))
    assert not torch.allclose(first, second)  # each pattern is a network of its own


@pytest.mark.parametrize("window", [(2,), (3, 2, 1), (2, 1), (3, 2, 0, 1, False, True), (2, 2, 0, 2)])
def test_max_pools_leave_values_and_gradients_and_follow_a_softmax(window: tuple) -> None:
    pool = nn.MaxPool2d(*window)
    z = torch.randn(3, 2, 8, 7, generator=torch.Generator().manual_seed(4), dtype=torch.float64)

    def slopes(gates: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        points = z.clone().requires_grad_(True)
        if gates:
            with SmoothGates(Softness(7.0)):
                value = pool(points)
        else:
            value = pool(points)
        weights = torch.arange(value.numel(), dtype=torch.float64).view_as(value)
        (slope,) = torch.autograd.grad((value * weights).sum(), points, create_graph=True)
        return points, value, slope

    _, plain_value, plain_slope = slopes(False)
    points, value, slope = slopes(True)
    assert torch.equal(value, plain_value) and torch.allclose(slope, plain_slope)
    above = torch.randn(z.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    (second,) = torch.autograd.grad((slope * above).sum(), points)
    # The same through an explicit softmax over every window: unfold pads with zeros, so shift z far below first.
    beta = (7.0 / z.flatten(1).std(1, correction=0)).view(-1, 1, 1, 1)
    free = z.clone().requires_grad_(True)
    size, stride, padding, dilation = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    high, wide = value.shape[2:]
    total = torch.zeros((), dtype=torch.float64)
    weights = torch.arange(value.numel(), dtype=torch.float64).view_as(value)
    for i in range(high):
        for j in range(wide):
            places = [
                (i * stride - padding + a * dilation, j * stride - padding + b * dilation)
                for a in range(size)
                for b in range(size)
            ]
            places = [(a, b) for a, b in places if 0 <= a < 8 and 0 <= b < 7]
            rows, columns = [a for a, _ in places], [b for _, b in places]
            shares = torch.softmax(beta[..., 0] * free[:, :, rows, columns], -1)
            total = total + (shares * above[:, :, rows, columns]).sum(-1).mul(weights[:, :, i, j]).sum()
    (expected,) = torch.autograd.grad(total, free)
    assert torch.allclose(second, expected, atol=1e-8)


def test_a_convolution_and_a_soft_plus_keep_their_second_derivatives() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1), nn.Softplus(), nn.Flatten(), nn.Linear(27, 2)).double()
    model.requires_grad_(False)
    x = torch.randn(4, 2, 5, 5, dtype=torch.float64)

    def second(gates: bool) -> torch.Tensor:
        points = x.clone().requires_grad_(True)
        if gates:
            with SmoothGates(Softness(1e6)):
                value = model(points)
        else:
            value = model(points)
        (slope,) = torch.autograd.grad(value[:, 0].sum(), points, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), points)[0]

    assert torch.allclose(second(True), second(False), atol=1e-12)


def test_a_sharp_softplus_is_softened_and_a_guard_is_no_gate() -> None:
    z = torch.randn(1, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    spread = float(z.detach().std(correction=0))
    with SmoothGates(Softness(5.0)):
        value = nn.functional.softplus(z, beta=1000.0)
        guarded = z.clamp(min=1e-12)
    (slope,) = torch.autograd.grad(value.sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), z)
    gate = torch.sigmoid(5.0 / spread * z)
    assert torch.allclose(second, 5.0 / spread * gate * (1 - gate))
    (slope,) = torch.autograd.grad(guarded.sum(), z, create_graph=True)
    assert not slope.requires_grad or not bool(torch.autograd.grad(slope.sum(), z, materialize_grads=True)[0].any())


# --- climbs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_steepest_cell_of_a_plane_network_is_found(p: float, seed: int) -> None:
    """The exact largest norm of all cells of at least three hundredths of the ball, at every radius."""
    plane = PlaneReLU(seed=seed)
    x0 = np.array([0.3, -0.2])
    for radius in (0.2, 0.7, 1.5):
        values, probabilities = plane.distribution(x0, radius, p)
        found = largest_gradient_norms(
            plane.classifier, torch.from_numpy(x0), predicted=0, targets=[1], ball=cs.LpBall(p, radius)
        )
        assert found.norms[0] <= values.max() * (1 + 1e-9)
        assert found.norms[0] >= values[probabilities > 3e-2].max() * (1 - 1e-9)


def test_a_smooth_maximum_is_found_where_calculus_says() -> None:
    """g = sum_i tanh(w_i . x) along an axis: the norm is largest at the origin's distance that the ball allows."""
    model = nn.Sequential(nn.Linear(3, 1), nn.Tanh(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3.0, 4.0, 0.0]]))
        model[0].bias.fill_(2.0)
        model[2].weight.copy_(torch.tensor([[1.0], [0.0]]))
    x = torch.zeros(3, dtype=torch.float64)
    for radius in (0.1, 0.3, 1.0):
        found = largest_gradient_norms(cs.Classifier(model), x, predicted=0, targets=[1], ball=cs.LpBall(2, radius))
        z = max(0.0, 2.0 - 5.0 * radius)  # the nearest to 0 that the ball reaches
        assert found.norms[0] == pytest.approx(5.0 / math.cosh(z) ** 2, rel=1e-4)
        assert found.settled[0] and found.moved[0] and found.gradients[0] <= 6000


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("region", ["ball", "box"])
@pytest.mark.parametrize("rounded", [None, (0.0, 2.0), (1.0, 4.0)])
def test_climbs_stay_in_ball_and_box_and_their_norms_are_the_true_ones(
    p: float, region: str, rounded: tuple[float, float] | None
) -> None:
    classifier = cs.Classifier(network(nn.ReLU()), bounds=(0.0, 1.0))
    x = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    count, radius = 12, 0.6
    box = None if region == "ball" else (0.0, 1.0)
    ball = cs.LpBall(p, radius, region)
    starts = random_starts(ball, dim=10, count=count, seed=0, input_id=0, batch=0).double()
    climbs = Climbs(
        x.expand(count, 10), torch.zeros(count, dtype=torch.long), torch.ones(count, dtype=torch.long),
        torch.full((count,), radius, dtype=torch.float64), starts * radius,
        None if rounded is None else torch.tensor(rounded, dtype=torch.float64).repeat(count // 2),
    )  # fmt: skip
    found = climb(classifier, climbs, p=p, steps=12, bounds=box)
    costs = [climb_cost(12, rounded=start > 0.0) for start in rounded or (0.0, 0.0)]
    assert found.gradients.tolist() == costs * (count // 2)
    assert bool((torch.linalg.vector_norm(found.offsets, p, dim=1) <= radius * (1 + 1e-9)).all())
    points = x + found.offsets
    if box is not None:
        assert bool(((points >= -1e-12) & (points <= 1 + 1e-12)).all())
    true = margin_gradient_norms(classifier, points, predicted=0, targets=(1,), q=ball.q)[:, 0]
    assert torch.allclose(found.norms, true, rtol=1e-9)
    first = margin_gradient_norms(classifier, x + starts * radius, predicted=0, targets=(1,), q=ball.q)[:, 0]
    assert found.norms.mean() > first.mean() * 1.02  # it does climb
    assert climb_cost(12) == 37


def test_ascent_beats_many_more_random_points() -> None:
    """64 inputs: what sampling leaves behind."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 60), nn.Softplus(), nn.Linear(60, 60), nn.Softplus(), nn.Linear(60, 3))
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.mul_(3.0)
    classifier, x, ball = cs.Classifier(model), torch.rand(64), cs.LpBall(2, 3.0)
    sampled = margin_gradient_norms(
        classifier,
        ball.points(x, count=5_000, seed=0, input_id=0, block=0, tile=0),
        predicted=0,
        targets=(1, 2),
        q=2.0,
    ).amax(0)
    found = largest_gradient_norms(classifier, x, predicted=0, targets=[1, 2], ball=ball)
    assert bool((torch.from_numpy(found.norms) > 1.1 * sampled).all())
    again = largest_gradient_norms(classifier, x, predicted=0, targets=[2], ball=ball)
    assert again.norms[0] == pytest.approx(found.norms[1], rel=1e-4)  # whatever other targets there are


def rough_network(seed: int) -> nn.Sequential:
    """64 inputs, random weights: many maxima."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 3))
    for layer in model[::2]:
        nn.init.normal_(layer.weight, 0.0, 1.6 / math.sqrt(layer.in_features))
        nn.init.normal_(layer.bias, 0.0, 0.5)
    return model


def test_climbs_through_a_rounded_network_end_higher_where_there_are_many_maxima() -> None:
    gains = []
    for seed in range(2, 6):
        model = rough_network(seed)
        count, radius = 12, 2.0
        starts = random_starts(cs.LpBall(2, radius), dim=64, count=count, seed=0, input_id=0, batch=0) * radius
        best = []
        for rounded in (0.0, 2.0):
            climbs = Climbs(
                torch.full((count, 64), 0.5), torch.zeros(count, dtype=torch.long), torch.ones(count, dtype=torch.long),
                torch.full((count,), radius), starts, torch.full((count,), rounded),
            )  # fmt: skip
            best.append(float(climb(cs.Classifier(model), climbs, p=2.0, steps=38).norms.max()))
        gains.append(best[1] / best[0])
    assert np.mean(gains) > 1.01


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_kinks_moved_for_each_climb_find_more_for_the_same_work(p: float) -> None:
    gains = []
    for seed in range(2, 6):
        model = rough_network(seed)
        count, radius = 12, 2.0 if p == 2.0 else 0.25
        starts = random_starts(cs.LpBall(p, radius), dim=64, count=count, seed=0, input_id=0, batch=0) * radius
        climbs = Climbs(
            torch.rand(64).expand(count, 64), torch.zeros(count, dtype=torch.long), torch.ones(count, dtype=torch.long),
            torch.full((count,), radius), starts, rounded=torch.ones(count),
        )  # fmt: skip
        moved = replace(climbs, moves=torch.ones(count), patterns=torch.arange(count))
        best = [float(climb(cs.Classifier(model), way, p=p, steps=40).norms.max()) for way in (climbs, moved)]
        gains.append(best[1] / best[0])
    assert np.mean(gains) > 1.02 and min(gains) > 0.98


def test_an_affine_network_has_no_direction_and_its_exact_norm() -> None:
    classifier = affine(4, 3)
    difference = (classifier.module.weight[0] - classifier.module.weight[2]).numpy()
    found = largest_gradient_norms(
        classifier, torch.zeros(4, dtype=torch.float64), predicted=0, targets=[2], ball=cs.LpBall(2, 1.0)
    )
    assert not found.moved[0] and found.norms[0] == pytest.approx(np.linalg.norm(difference))


def test_a_broken_gradient_is_never_hidden_by_a_larger_one() -> None:
    classifier = cs.Classifier(lambda x: torch.stack([x.sum(1).sqrt() * 3.0, x[:, 0].square()], 1))
    found = largest_gradient_norms(classifier, torch.full((3,), 0.1), predicted=0, targets=[1], ball=cs.LpBall(2, 1.0))
    assert not np.isfinite(found.norms[0])


def test_clipping_needs_a_box_and_cut_off_gradients_are_refused() -> None:
    ball = cs.LpBall(2, 1.0, "box")
    with pytest.raises(cs.CleverError, match="bounds"):
        largest_gradient_norms(affine(4), torch.zeros(4).double(), predicted=0, targets=[1], ball=ball)
    weight = torch.ones(1, 2, requires_grad=True)
    cut = cs.Classifier(lambda x: x.detach() @ torch.ones(4, 1) * weight)
    with pytest.raises(cs.CleverError, match="cut off"):
        largest_gradient_norms(cut, torch.zeros(4), predicted=0, targets=[1], ball=cs.LpBall(2, 1.0))


def test_what_cannot_be_climbed_is_refused_in_a_sentence() -> None:
    model = network(nn.ReLU())
    classifier, x = cs.Classifier(model), torch.zeros(10, dtype=torch.float64)

    def climbed(*, of: Any = classifier, at: Any = x, **options: Any) -> None:
        largest_gradient_norms(of, at, ball=cs.LpBall(2, 0.1), **{"predicted": 0, "targets": [1], **options})

    with pytest.raises(errors.ModelError, match="no Classifier"):
        climbed(of=model)
    for wrong in (x[None], x.long().numpy()):
        with pytest.raises(errors.InputError):
            climbed(at=wrong)
    for targets in (3, [], [0], [99], [-1]):
        with pytest.raises(errors.TargetError):
            climbed(targets=targets)
    with pytest.raises(errors.SettingError, match="most_batches"):
        climbed(most_batches=0)
