"""Exact answers: closed forms first, then two independent searches against each other, then against what is found."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.exact import (
    dense_multistart_distortion,
    dense_multistart_lipschitz,
    exact_local_lipschitz,
    exact_minimum_distortion,
)
from cleverscore.exact.branch_and_bound import cell, half_spaces, slope_bound
from cleverscore.exact.min_distortion import SEARCH
from cleverscore.exact.mip import encode, slope_terms
from cleverscore.exact.polyhedron import nearest
from cleverscore.exact.relu_network import bounds, read
from cleverscore.inputs.balls import LpBall
from cleverscore.models.margin_gradients import margin_gradient_norms
from cleverscore.norms import dual_exponent
from tests.helpers import PlaneReLU, affine, affine_distance, exact_distortion, trained_relu_network

NORMS = (1.0, 2.0, math.inf)
SEARCHES = [(1.0, "program"), (1.0, "branching"), (2.0, "branching"), (math.inf, "program"), (math.inf, "branching")]


@pytest.mark.parametrize("p", NORMS)
def test_affine_networks_have_closed_forms(p: float) -> None:
    classifier = affine()
    x = torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    predicted = int(classifier(x[None]).argmax())
    distances = {j: affine_distance(classifier, x, predicted, j, p) for j in range(4) if j != predicted}
    found = exact_minimum_distortion(classifier, x, p=p)
    assert found.value == pytest.approx(min(distances.values()), rel=1e-6) and found.closed
    assert distances[found.target] == min(distances.values())
    for j, distance in distances.items():
        assert exact_minimum_distortion(classifier, x, p=p, targets=[[j]]).value == pytest.approx(distance, rel=1e-6)
        rows = classifier.module.weight
        slope = torch.linalg.vector_norm(rows[predicted] - rows[j], dual_exponent(p))
        constant = exact_local_lipschitz(classifier, x, p=p, radius=0.3, target=j)
        assert constant.value == constant.high == pytest.approx(float(slope), rel=1e-12)


@pytest.mark.parametrize(("p", "search"), SEARCHES)
@pytest.mark.parametrize("seed", range(3))
def test_lipschitz_constants_of_the_plane(p: float, search: str, seed: int) -> None:
    """Theorem D.1's cells, cut exactly: the largest value among them is the constant."""
    network = PlaneReLU(units=12, seed=seed)
    x0 = np.random.default_rng(seed).normal(size=2) * 0.5
    x = torch.tensor(x0)
    target = 1 - int(network.classifier(x[None]).argmax())
    for radius in (0.2, 0.8, 2.0):
        values, _ = network.distribution(x0, radius, p)
        found = exact_local_lipschitz(network.classifier, x, p=p, radius=radius, target=target, search=search)
        assert found.value == pytest.approx(values[-1], rel=1e-9)
        assert found.closed and found.low <= found.value <= found.high
        assert float(torch.linalg.vector_norm(found.point - x, p)) <= radius * (1.0 + 1e-9)
        # the point lies inside the cell: autograd says the same
        there = margin_gradient_norms(
            network.classifier, found.point[None], predicted=1 - target, targets=[target], q=dual_exponent(p)
        )
        assert float(there[0, 0]) == pytest.approx(values[-1], rel=1e-9)


@pytest.mark.parametrize(("p", "search"), SEARCHES)
@pytest.mark.parametrize("seed", range(3))
def test_distortions_of_the_plane_agree_with_a_grid(p: float, search: str, seed: int) -> None:
    network = PlaneReLU(units=12, seed=seed)
    x0 = np.random.default_rng(seed + 5).normal(size=2) * 0.5
    x = torch.tensor(x0)
    found = exact_minimum_distortion(network.classifier, x, p=p, search=search)
    assert found.closed
    reach = 1.5 * found.value
    axis = torch.linspace(-reach, reach, 801, dtype=torch.float64)
    offsets = torch.cartesian_prod(axis, axis)
    logits = network.classifier(x + offsets)
    own, other = 1 - found.target, found.target
    flipped = logits[:, other] >= logits[:, own]
    nearest_on_grid = float(torch.linalg.vector_norm(offsets[flipped], p, dim=1).min())
    step = 2.0 * reach / 800 * 2.0 ** (1.0 / p if math.isfinite(p) else 0.0)
    assert found.low <= nearest_on_grid <= found.value + step
    there = network.classifier(found.point[None])[0]
    assert float(there[other] - there[own]) >= -1e-12
    assert float(torch.linalg.vector_norm(found.point - x, p)) == pytest.approx(found.value, rel=1e-12)


@pytest.mark.parametrize("p", NORMS)
def test_nothing_is_nearer_than_the_exact_distortion(p: float) -> None:
    """Two hidden layers: the point flips the class, a dense attack ends above it, and not far above."""
    classifier, x, labels = trained_relu_network()
    for i in (3, 9, 18):
        found = exact_distortion(i, p)
        assert found.closed
        logits = classifier(found.point[None])[0]
        assert float(logits[found.target] - logits[labels[i]]) >= -1e-12
        attack = dense_multistart_distortion(
            classifier, x[i], p=p, targets=[[found.target]], count=16, steps=30, accuracy=1e-3
        )
        assert found.low <= attack.value <= 1.02 * found.value
        # and no random point of the ball below it is adversarial
        ball = LpBall(p, found.low)
        points = ball.points(x[i], count=256, seed=0, input_id=0, block=0, tile=0)
        assert bool((classifier(points).argmax(1) == labels[i]).all())


@pytest.mark.parametrize("p", [1.0, math.inf])
def test_program_and_branching_agree(p: float) -> None:
    classifier, x, _ = trained_relu_network()
    for i in (3, 12):
        exact = exact_distortion(i, p)
        branched = exact_minimum_distortion(classifier, x[i], p=p, targets=[[exact.target]], search="branching")
        assert branched.closed and branched.value == pytest.approx(exact.value, rel=3e-5)
        constants = [
            exact_local_lipschitz(classifier, x[i], p=p, radius=0.7 * exact.value, target=exact.target, search=search)
            for search in ("program", "branching")
        ]
        assert all(constant.closed for constant in constants)
        assert constants[0].value == pytest.approx(constants[1].value, rel=3e-5)


@pytest.mark.parametrize(("p", "search"), SEARCHES)
def test_searches_need_no_good_start(p: float, search: str) -> None:
    """From a ball twice too large, without the attack: the search itself finds the nearest point."""
    classifier, x, labels = trained_relu_network()
    exact = exact_distortion(3, p)
    margin = read(classifier, x[3], p).margin(int(labels[3]), exact.target)
    low, point = SEARCH[search](margin, 2.0 * exact.value, seconds=60.0)
    assert point is not None and np.linalg.norm(point, p) == pytest.approx(exact.value, rel=3e-5)
    assert low == pytest.approx(exact.value, rel=3e-5)


@pytest.mark.parametrize("p", NORMS)
def test_sampled_gradients_stay_below_the_exact_constant(p: float) -> None:
    classifier, x, labels = trained_relu_network()
    for i in (3, 9):
        found = exact_distortion(i, p)
        constant = exact_local_lipschitz(classifier, x[i], p=p, radius=found.value, target=found.target)
        points = LpBall(p, found.value).points(x[i], count=256, seed=0, input_id=0, block=0, tile=0)
        norms = margin_gradient_norms(
            classifier, points, predicted=int(labels[i]), targets=[found.target], q=dual_exponent(p)
        )
        assert float(norms.max()) <= constant.high * (1.0 + 1e-9)
        logits = classifier(x[i : i + 1])[0]
        margin = float(logits[labels[i]] - logits[found.target])
        assert margin / constant.high <= found.value  # Theorem 3.2 of the paper


def test_preprocessing_is_part_of_the_network() -> None:
    """A score in input units: standardising by 1/4 makes every distance four times smaller."""
    inner, x, _ = trained_relu_network()
    outer = cs.Classifier(inner.module, mean=0.5, std=0.25)
    pixel = x[3] * 0.25 + 0.5
    for p in NORMS:
        plain = exact_distortion(3, p)
        scaled = exact_minimum_distortion(outer, pixel, p=p)
        assert scaled.value == pytest.approx(0.25 * plain.value, rel=3e-5)
        radius = 0.5 * plain.value
        steep = exact_local_lipschitz(outer, pixel, p=p, radius=0.25 * radius, target=plain.target)
        flat = exact_local_lipschitz(inner, x[3], p=p, radius=radius, target=plain.target)
        assert steep.value == pytest.approx(4.0 * flat.value, rel=3e-5)


def test_many_inputs_are_searched_in_the_row_space() -> None:
    """784 inputs and 8 units in l2: the answer is that of the 8-dimensional network, and the point is the full one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    classifier = cs.Classifier(model)
    x = torch.rand(1, 28, 28, dtype=torch.float64)
    found = exact_minimum_distortion(classifier, x, p=2)
    assert found.closed and found.point.shape == x.shape
    logits, own = classifier(found.point[None])[0], int(classifier(x[None]).argmax())
    assert abs(float(logits[found.target] - logits[own])) < 1e-9
    attack = dense_multistart_distortion(classifier, x, p=2, accuracy=1e-3)
    assert found.low <= attack.value <= 1.01 * found.value


@pytest.mark.parametrize("p", NORMS)
def test_dense_multistart_finds_the_maximum_of_a_smooth_plane(p: float) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 10), nn.Softplus(beta=5.0), nn.Linear(10, 2)).double()
    classifier = cs.Classifier(model)
    x = torch.zeros(2, dtype=torch.float64)
    target = 1 - int(classifier(x[None]).argmax())
    found = dense_multistart_lipschitz(classifier, x, p=p, radius=2.0, target=target, count=32, steps=30)
    axis = torch.linspace(-2.0, 2.0, 201, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    grid = grid[torch.linalg.vector_norm(grid, p, dim=1) <= 2.0]
    norms = margin_gradient_norms(classifier, grid, predicted=1 - target, targets=[target], q=dual_exponent(p))
    best = float(norms.max())
    assert best * (1.0 - 1e-9) <= found.value <= 1.02 * best
    assert float(torch.linalg.vector_norm(found.point, p)) <= 2.0 * (1.0 + 1e-12)
    there = margin_gradient_norms(
        classifier, found.point[None], predicted=1 - target, targets=[target], q=dual_exponent(p)
    )
    assert float(there[0, 0]) == pytest.approx(found.value, rel=1e-9)
    assert not found.closed  # nothing is proved


@pytest.mark.parametrize("p", NORMS)
def test_bounds_enclose_every_unit(p: float) -> None:
    classifier, x, labels = trained_relu_network()
    network = read(classifier, x[0], p).margin(int(labels[0]), (int(labels[0]) + 1) % 5).at(0.5)
    known = bounds(network)
    points = LpBall(p, 1.0).offsets(dim=network.dim, count=256, seed=0, input_id=0, block=0, tile=0).double().numpy()
    for k, z in enumerate(network.layers(points)):
        assert np.all(z >= known.low[k] - 1e-9) and np.all(z <= known.high[k] + 1e-9)
        for (matrix, offset), sign in ((known.lower[k], 1.0), (known.upper[k], -1.0)):
            assert np.all(sign * (z - points @ matrix.T - offset) >= -1e-9)


@pytest.mark.parametrize("p", NORMS)
def test_half_spaces_hold_every_point_of_their_phases(p: float) -> None:
    """Phases of a few units of a point, the others unknown: the point must satisfy what follows from them."""
    classifier, x, labels = trained_relu_network()
    network = read(classifier, x[0], p).margin(int(labels[0]), (int(labels[0]) + 1) % 5).at(1.0)
    generator = np.random.default_rng(0)
    for point in (
        LpBall(p, 1.0).offsets(dim=network.dim, count=64, seed=1, input_id=0, block=0, tile=0).double().numpy()
    ):
        phases = tuple(
            (phase * (generator.random(len(phase)) < 0.3)).astype(np.int8) for phase in network.phases(point)
        )
        known = bounds(network, phases)
        rows, offsets = half_spaces(phases, known)
        assert known.possible and np.all(rows @ point + offsets >= -1e-9)
        margin, slope = network.layers(point[None])[-1][0, 0], cell(network, network.phases(point))[2]
        assert known.low[-1][0] - 1e-9 <= margin <= known.high[-1][0] + 1e-9
        assert np.linalg.norm(slope, dual_exponent(p)) <= slope_bound(network, known.phases) + 1e-9


@pytest.mark.parametrize("p", [1.0, math.inf])
def test_every_point_of_the_ball_solves_the_program(p: float) -> None:
    """Outputs, phases and backward factors of true points satisfy every row: the program excludes nothing."""
    classifier, x, labels = trained_relu_network()
    network = read(classifier, x[0], p).margin(int(labels[0]), (int(labels[0]) + 1) % 5).at(1.0)
    known = bounds(network)
    encoding = encode(network, known)
    places, constants, low, high = slope_terms(network, encoding)
    program = encoding.program
    for point in LpBall(p, 1.0).offsets(dim=network.dim, count=64, seed=2, input_id=0, block=0, tile=0).double():
        d = point.numpy()
        values = np.zeros(len(program.low))
        values[encoding.inputs] = d if math.isinf(p) else np.r_[np.maximum(d, 0.0), np.maximum(-d, 0.0)]
        hidden = network.layers(d[None])[:-1]
        for z, outputs, phases in zip(hidden, encoding.outputs, encoding.phases, strict=True):
            values[outputs[outputs >= 0]] = np.maximum(z[0], 0.0)[outputs >= 0]
            values[phases[phases >= 0]] = (z[0] > 0.0)[phases >= 0]
        last = network.weights[-1][0] * (hidden[1][0] > 0.0)
        first = (last @ network.weights[1]) * (hidden[0][0] > 0.0)
        # Factors of the last hidden layer come before those of the first one, unit by unit, where not constant.
        free = encoding.phases[1] >= 0
        values[places[places >= 0].min() - free.sum() : places[places >= 0].min()] = last[free]
        values[places[places >= 0]] = first[places >= 0]
        assert np.all(values >= np.array(program.low) - 1e-9) and np.all(values <= np.array(program.high) + 1e-9)
        sums = np.array([row @ values[where] for where, row in program.rows])
        assert np.all(sums >= np.array(program.floors) - 1e-9) and np.all(sums <= np.array(program.caps) + 1e-9)
        assert np.all(first[places < 0] == pytest.approx(constants[places < 0]))
        assert np.all(first >= low - 1e-9) and np.all(first <= high + 1e-9)


@pytest.mark.parametrize("p", NORMS)
def test_nearest_point_of_a_polyhedron(p: float) -> None:
    """A corner: x >= 1 and y >= 2, then an empty set."""
    rows, offsets = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([-1.0, -2.0])
    point = nearest(rows, offsets, p)
    assert point is not None and np.linalg.norm(point, p) == pytest.approx(np.linalg.norm([1.0, 2.0], p))
    assert nearest(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([-1.0, -1.0]), p) is None


def test_what_has_no_exact_answer_is_refused() -> None:
    smooth = cs.Classifier(nn.Sequential(nn.Linear(2, 4), nn.Softplus(), nn.Linear(4, 2)))
    relu = cs.Classifier(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)))
    x = torch.zeros(2)
    target = 1 - int(relu(x[None]).argmax())
    with pytest.raises(cs.CleverError, match="Softplus"):
        exact_minimum_distortion(smooth, x, p=2)
    with pytest.raises(cs.CleverError, match="p=3"):
        exact_minimum_distortion(relu, x, p=3)
    with pytest.raises(cs.CleverError, match="not linear"):
        exact_local_lipschitz(relu, x, p=2, radius=1.0, target=target, search="program")
    with pytest.raises(cs.CleverError, match="radius"):
        exact_local_lipschitz(relu, x, p=2, radius=0.0, target=target)
    with pytest.raises(cs.CleverError, match="predicted class"):
        exact_local_lipschitz(relu, x, p=2, radius=1.0, target=1 - target)
    rounded = cs.Classifier(relu.module, transform=cs.transforms.bit_depth(3), bounds=(0.0, 1.0))
    with pytest.raises(cs.CleverError, match="transform"):
        exact_minimum_distortion(rounded, x, p=2)


def test_running_out_of_time_leaves_a_true_interval() -> None:
    classifier, x, _ = trained_relu_network()
    for p in NORMS:
        exact = exact_distortion(18, p)
        hasty = exact_minimum_distortion(classifier, x[18], p=p, targets=[[exact.target]], seconds=0.0)
        assert not hasty.closed and 0.0 < hasty.low <= exact.value * (1.0 + 1e-4) and hasty.high >= exact.low
        constant = exact_local_lipschitz(classifier, x[18], p=p, radius=2.0, target=exact.target, seconds=0.0)
        assert not constant.closed and 0.0 < constant.low < constant.high < math.inf
