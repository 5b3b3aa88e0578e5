"""Certified radii: exact where the truth is known, sound everywhere else."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import nn
from torch.nn import functional

import cleverscore as cs
from cleverscore.certificates import relaxations
from cleverscore.certificates.closed_forms import OneHiddenLayer
from cleverscore.certificates.crown import Region
from cleverscore.certificates.crown_radius import make_bounder
from cleverscore.certificates.linear_layers import Convolution
from cleverscore.certificates.max_pool import MaxPool
from cleverscore.certificates.operator_norms import operator_norm
from cleverscore.certificates.radius_search import RadiusSearch, largest_radii
from cleverscore.certificates.tracing import trace
from cleverscore.errors import CertificateError, MissingExtraError, SettingError
from tests.helpers import affine, affine_distance

NORMS = [1.0, 2.0, math.inf]


class Residual(nn.Module):
    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, stride=stride, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.short = nn.Conv2d(channels, channels, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.second(functional.relu(self.norm(self.first(x))))
        return functional.relu(inside + self.short(x))


class Functional(nn.Module):
    """Everything said with functions, methods and operators; two branches side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 3, padding=1, dilation=1), nn.Conv2d(2, 3, 1, groups=1)
        self.last = nn.Linear(6 * 9, 4)
        self.register_buffer("weight", torch.linspace(0.5, 1.5, 6).view(6, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([torch.sigmoid(self.a(x)), functional.leaky_relu(self.b(2.0 * x - 1.0), 0.2)], dim=1)
        pooled = functional.max_pool2d(both * self.weight, 3, stride=2, padding=1)
        return self.last(pooled.view(x.size(0), -1)) / 2.0


def mlp(activation: nn.Module) -> nn.Module:
    again = copy.deepcopy(activation)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(72, 16), activation, nn.Linear(16, 12), again, nn.Dropout(), nn.Linear(12, 4)
    )


NETWORKS = {
    "relu": lambda: mlp(nn.ReLU()),
    "leaky": lambda: mlp(nn.LeakyReLU(0.1)),
    "bounded": lambda: mlp(nn.Hardtanh(0.0, 0.4)),
    "softplus": lambda: mlp(nn.Softplus(beta=10.0)),
    "tanh": lambda: mlp(nn.Tanh()),
    "sigmoid": lambda: mlp(nn.Sigmoid()),
    "max pooling": lambda: nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(5, 4)
    ),
    "strides": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU6(),
        nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=2),
        nn.ELU(),
        nn.AvgPool2d(2, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ),
    "residual": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        Residual(4),
        Residual(4, 2),
        nn.AvgPool2d(3),
        nn.Flatten(),
        nn.Linear(4, 4),
    ),
    "functional": Functional,
}


def network(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> cs.Classifier:
    """A random network with batch statistics that are not trivial, biased towards decisions that can change."""
    torch.manual_seed(seed)
    model = NETWORKS[name]()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.uniform_(-0.2, 0.2)
            layer.running_var.uniform_(0.5, 2.0)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.weight.data *= 2.0
    return cs.Classifier(model.eval().to(dtype), bounds=(0.0, 1.0), mean=0.4, std=0.8)


def inputs(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(count, 2, 6, 6, generator=torch.Generator().manual_seed(1)).to(dtype)


def in_ball(offsets: torch.Tensor, radius: float, p: float) -> torch.Tensor:
    """Offsets moved into the ball along the shortest way (p = 2, inf) or by scaling (p = 1)."""
    if math.isinf(p):
        return offsets.clamp(-radius, radius)
    norms = torch.linalg.vector_norm(offsets, p, dim=1, keepdim=True)
    return offsets * (radius / norms.clamp_min(1e-30)).clamp_max(1.0)


def attacked(classifier: cs.Classifier, x: torch.Tensor, radius: float, p: float, steps: int = 20) -> torch.Tensor:
    """Projected steepest descent on each margin inside B_p(x, radius): (targets, *shape)."""
    predicted = int(classifier.logits(x[None]).argmax())
    others = [j for j in range(classifier.logits(x[None]).shape[1]) if j != predicted]
    offsets = torch.zeros(len(others), x.numel(), dtype=x.dtype)
    for _ in range(steps):
        points = (x.flatten() + offsets).requires_grad_(True)
        logits = classifier.logits(points.view(-1, *x.shape))
        rows = torch.arange(len(others))
        (gradient,) = torch.autograd.grad((logits[:, predicted] - logits[rows, others]).sum(), points)
        if math.isinf(p):
            direction = gradient.sign()
        elif p == 2.0:
            direction = gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-30)
        else:
            direction = functional.one_hot(gradient.abs().argmax(1), x.numel()) * gradient.sign()
        offsets = in_ball(offsets - 0.3 * radius * direction, radius, p)
    return (x.flatten() + offsets).view(-1, *x.shape)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_point_inside_a_certified_radius_changes_the_class(name: str) -> None:
    """10,000 uniform points, half of them pushed to the surface, and an attack, for 20 inputs."""
    p = NORMS[list(NETWORKS).index(name) % 3]
    classifier, x = network(name), inputs(20)
    found = cs.certify(classifier, x, p=p)
    assert (found.radius > 0).mean() > 0.8
    generator = torch.Generator().manual_seed(0)
    ball = cs.LpBall(p, 1.0)
    unit = torch.cat([ball.offsets(dim=72, count=256, seed=0, input_id=0, block=0, tile=tile) for tile in range(40)])
    unit = unit[torch.randperm(len(unit), generator=generator)][:10_000].float()
    unit[:5000] /= torch.linalg.vector_norm(unit[:5000], p, dim=1, keepdim=True)
    with torch.no_grad():
        predicted = classifier(x).argmax(1)
    for i in range(20):
        radius = float(found.radius[i])
        with torch.no_grad():
            points = x[i] + radius * unit.view(-1, 2, 6, 6)
            assert bool((classifier.logits(points).argmax(1) == predicted[i]).all())
        worst = attacked(classifier, x[i], radius, p)
        assert bool((classifier(worst).argmax(1) == predicted[i]).all())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("p", NORMS)
def test_bounds_lie_below_every_margin_also_where_balls_are_large(name: str, p: float) -> None:
    """Tighter than the class: the bound itself against the smallest margin found, at twice the radius."""
    classifier, x = network(name, dtype=torch.float64), inputs(4, torch.float64)
    graph = trace(classifier, (2, 6, 6), torch.float64)
    bounder = make_bounder(classifier, graph, (2, 6, 6))
    radius = 2.0 * torch.from_numpy(cs.certify(classifier, x, p=p).radius) + 1e-3
    logits = classifier(x)
    predicted = logits.argmax(1)
    rows = functional.one_hot(predicted, 4)[:, None] - torch.eye(4, dtype=torch.int64)
    owner = torch.arange(4).repeat_interleave(4)
    q = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[p]
    bounds = bounder.margins(Region(x, radius, q), rows.flatten(0, 1).double(), owner).view(4, 4)
    for i in range(4):
        worst = classifier(attacked(classifier, x[i], float(radius[i]), p)).detach()
        margins = worst[:, predicted[i], None] - worst
        assert bool((bounds[i] <= margins.amin(0) + 1e-9).all())
    # At radius 0 the lines are exact, so all of the graph is checked against the model itself.
    exact = bounder.margins(Region(x, torch.zeros_like(radius), q), rows.flatten(0, 1).double(), owner).view(4, 4)
    assert torch.allclose(exact, (logits.gather(1, predicted[:, None]) - logits).detach(), atol=1e-9)


def test_single_precision_is_close_to_double() -> None:
    for name in ("max pooling", "strides", "residual", "functional"):
        single = cs.certify(network(name), inputs(4), p="inf", precision=1e-5).radius
        double = cs.certify(network(name, dtype=torch.float64), inputs(4).double(), p="inf", precision=1e-5).radius
        assert np.allclose(single, double, rtol=1e-3)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
@pytest.mark.parametrize("method", ["crown", "norm-product"])
def test_affine_classifiers_are_exact(p: float, method: str) -> None:
    classifier, x = affine(), torch.rand(5, 6, dtype=torch.float64)
    found = cs.certify(classifier, x, p=p, targets="all", limit=1e6, method=method)
    predicted = classifier(x).argmax(1).tolist()
    for i in range(5):
        for j, radius in zip(found.targets[i], found.per_target[i], strict=True):
            assert radius == pytest.approx(affine_distance(classifier, x[i], predicted[i], j, p), rel=1e-6)
        assert found.radius[i] == found.per_target[i].min()


def test_affine_graphs_of_many_layers_are_exact() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.BatchNorm2d(3), nn.AvgPool2d(3, 1), nn.Flatten(), nn.Linear(3, 4)
    ).double()
    classifier, x = cs.Classifier(model.eval(), std=[0.5, 2.0]), inputs(3, torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda z: classifier(z[None])[0], x[0]).flatten(1)
    logits = classifier(x).detach()
    for p, q in ((1.0, math.inf), (2.0, 2.0), (math.inf, 1.0)):
        found = cs.certify(classifier, x, p=p, targets="all", limit=1e6)
        for i in range(3):
            c = int(logits[i].argmax())
            want = [
                float((logits[i, c] - logits[i, j]) / torch.linalg.vector_norm(jacobian[c] - jacobian[j], q))
                for j in found.targets[i]
            ]
            assert np.allclose(found.per_target[i], want, rtol=1e-6)


def test_first_layers_are_exact_up_to_the_padding() -> None:
    """Row norms of a padded convolution: places in the padding carry nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 25, 2)
    ).double()
    classifier = cs.Classifier(model)
    graph = trace(classifier, (2, 8, 8), torch.float64)
    matrix = torch.autograd.functional.jacobian(model[0], torch.zeros(1, 2, 8, 8, dtype=torch.float64)).view(75, 128)
    for q in (1.0, 2.0, math.inf):
        norms = make_bounder(classifier, graph, (2, 8, 8)).norms(1, q)
        assert torch.allclose(norms[0], torch.linalg.vector_norm(matrix, q, dim=1))


def textbook(
    weights: list[np.ndarray], biases: list[np.ndarray], x: np.ndarray, radius: float, row: np.ndarray, q: float
) -> tuple[float, int]:
    """CROWN's lower bound of row . f over a ball, neuron by neuron, and how many ReLUs are not settled there."""

    def lower(layer: int, coefficients: np.ndarray, known: list[tuple[np.ndarray, np.ndarray]]) -> float:
        constant = 0.0
        for k in range(layer, 0, -1):
            constant += coefficients @ biases[k]
            coefficients = coefficients @ weights[k]
            for i, (a, low, high) in enumerate(zip(coefficients, *known[k - 1], strict=True)):
                if high <= 0:
                    coefficients[i] = 0.0
                elif low < 0 and a < 0:
                    coefficients[i] = a * high / (high - low)
                    constant -= a * high * low / (high - low)
                elif low < 0:
                    coefficients[i] = a if high > -low else 0.0
        constant += coefficients @ biases[0]
        coefficients = coefficients @ weights[0]
        return coefficients @ x + constant - radius * np.linalg.norm(coefficients, q)

    known: list[tuple[np.ndarray, np.ndarray]] = []
    for layer in range(len(weights) - 1):
        eye = np.eye(len(weights[layer]))
        lows, highs = ([sign * lower(layer, sign * e, known) for e in eye] for sign in (1.0, -1.0))
        known.append((np.array(lows), np.array(highs)))
    return lower(len(weights) - 1, row, known), sum(int(((low < 0) & (high > 0)).sum()) for low, high in known)


@pytest.mark.parametrize(("p", "q", "radii"), [
    (1.0, math.inf, [0.2, 0.3]), (2.0, 2.0, [0.2, 0.4]), (math.inf, 1.0, [0.06, 0.12])
])  # fmt: skip
def test_relu_networks_equal_the_textbook_recursion(p: float, q: float, radii: list[float]) -> None:
    """The textbook bounds everything by lines alone; intervals, used here as well, are wider unless balls are large."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(8, 14), nn.ReLU(), nn.Linear(14, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3)
    ).double()
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    for layer in layers:
        layer.weight.data *= 2.0
    weights = [layer.weight.detach().numpy() for layer in layers]
    biases = [layer.bias.detach().numpy() for layer in layers]
    classifier, x = cs.Classifier(model), torch.randn(8, 8, dtype=torch.float64)
    graph = trace(classifier, (8,), torch.float64)
    bounder, owner = make_bounder(classifier, graph, (8,)), torch.arange(8)
    rows = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64).expand(8, -1)
    for radius in radii:
        ball = Region(x, torch.full((8,), radius, dtype=torch.float64), q)
        found = bounder.margins(ball, rows, owner).numpy()
        want, loose = zip(
            *(textbook(weights, biases, point, radius, rows[0].numpy(), q) for point in x.numpy()), strict=True
        )
        assert sum(loose) > 20
        assert found == pytest.approx(np.array(want), rel=1e-5, abs=1e-5)


ACTIVATIONS = {
    "relu": relaxations.relu(),
    "leaky": relaxations.leaky_relu(0.3),
    "elu": relaxations.elu(0.7),
    "softplus": relaxations.softplus(3.0),
    "clamp": relaxations.Clamp(-0.5, 1.0),
    "half-open clamp": relaxations.Clamp(-math.inf, 0.3),
    "tanh": relaxations.Tanh(),
    "sigmoid": relaxations.Tanh(0.5, 0.5, 0.5),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_lines_enclose_activations(name: str) -> None:
    f = ACTIVATIONS[name]
    generator = torch.Generator().manual_seed(0)
    ends = 3.0 * torch.randn(2, 4000, dtype=torch.float64, generator=generator)
    ends[1, :1000] = ends[0, :1000] + 1e-3 * ends[1, :1000]
    ends[1, 1000:1200] = ends[0, 1000:1200]
    low, high = ends.amin(0), ends.amax(0)
    x = low + torch.linspace(0, 1, 401, dtype=torch.float64)[:, None] * (high - low)
    lines = f.lines(low, high)
    assert bool((lines.slope_low * x + lines.shift_low <= f(x) + 1e-12).all())
    assert bool((lines.slope_high * x + lines.shift_high >= f(x) - 1e-12).all())
    # Not just sound: somewhere each line touches the function.
    room = getattr(f, "room", 0.0) + 1e-5
    assert bool(((f(x) - lines.slope_low * x - lines.shift_low).amin(0) <= room + 1e-3 * (high - low)).all())
    assert bool(((lines.slope_high * x + lines.shift_high - f(x)).amin(0) <= room + 1e-3 * (high - low)).all())
    least, most = f.slopes(low, high)
    rises = (f(x[1:]) - f(x[:-1])) / (x[1:] - x[:-1]).clamp_min(1e-30)
    wide = high - low > 1e-2
    assert bool((rises >= least - 1e-8)[:, wide].all()) and bool((rises <= most + 1e-8)[:, wide].all())
    assert float(most.max()) <= f.lipschitz + 1e-12


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [(2, 2, 0, 1), (3, 2, 1, 1), (3, 1, 1, 2)])
def test_planes_enclose_maximum_pooling(kernel: int, stride: int, padding: int, dilation: int) -> None:
    generator = torch.Generator().manual_seed(0)
    pool = MaxPool((2, 7, 7), (kernel,) * 2, (stride,) * 2, (padding,) * 2, (dilation,) * 2)
    ends = torch.randn(2, 3, 2, 7, 7, dtype=torch.float64, generator=generator)
    low, high = ends.amin(0), ends.amax(0)
    planes = pool.planes(low, high)
    share = torch.rand(2000, *low.shape, dtype=torch.float64, generator=generator)
    share[:1000] = share[:1000].round()
    for t in share:
        x = low + t * (high - low)
        patches = pool.patches(x)
        patches = torch.where(patches.isinf(), 0.0, patches)
        assert bool(((planes.below * patches).sum(0) <= pool(x) + 1e-12).all())
        assert bool(((planes.above * patches).sum(0) + planes.shift >= pool(x) - 1e-12).all())


@pytest.mark.parametrize("p", NORMS)
def test_local_lipschitz_of_one_unit_is_exact(p: float) -> None:
    """f_0 - f_1 = d softplus(u x + b): its largest slope within r is |d| sigmoid(beta (u x0 + b + r ||u||)) ||u||."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 1), nn.Softplus(beta=4.0), nn.Linear(1, 2)).double()
    x = torch.randn(6, 5, dtype=torch.float64)
    found = cs.certify(cs.Classifier(model), x, p=p, method="local-lipschitz", precision=1e-8, limit=1e3)
    u, d = model[0].weight[0].detach(), float((model[2].weight[0] - model[2].weight[1]).detach())
    norm = float(torch.linalg.vector_norm(u, {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[p]))
    for i in range(6):
        margin = float((model(x[i])[0] - model(x[i])[1]).abs().detach())
        inside = float(model[0](x[i]).detach())
        root = brentq(
            lambda r, m=margin, z=inside: m - r * abs(d) * norm / (1.0 + math.exp(-4.0 * (z + r * norm))),
            0.0,
            1e3,
            rtol=1e-12,
        )
        assert found.radius[i] == pytest.approx(root, rel=1e-6)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize(
    "activation", [nn.Softplus(beta=4.0), nn.Tanh(), nn.Sigmoid()], ids=["softplus", "tanh", "sigmoid"]
)
def test_local_lipschitz_bounds_every_gradient(p: float, activation: nn.Module) -> None:
    """Units that look the same way with opposite signs: slopes cancel at some points of the ball, not at others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), activation, nn.Linear(2, 2)).double()
    model[0].weight.data[1] = model[0].weight.data[0]
    model[0].bias.data = torch.tensor([0.0, 2.0], dtype=torch.float64)
    model[2].weight.data = torch.tensor([[1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    q = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[p]
    hidden = OneHiddenLayer(trace(cs.Classifier(model), (3,), torch.float64), "model", q)
    x = -model[0].weight.data[:1] / model[0].weight.data[0].square().sum()
    for radius in (0.1, 1.0, 5.0):
        points = x + radius * cs.LpBall(p, 1.0).offsets(dim=3, count=256, seed=0, input_id=0, block=0, tile=0).double()
        points.requires_grad_(True)
        (gradient,) = torch.autograd.grad(model(points)[:, 0].sum(), points)
        bound = hidden.gradient(torch.tensor([1.0, -1.0], dtype=torch.float64), hidden.inside(x), radius)
        assert float(torch.linalg.vector_norm(gradient, q, dim=1).max()) <= bound


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("activation", [nn.Softplus(beta=10.0), nn.Tanh(), nn.ReLU()], ids=["softplus", "tanh", "relu"])
def test_closed_forms_are_sound_and_ordered(p: float, activation: nn.Module) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 20), activation, nn.Linear(20, 4)).double()
    classifier, x = cs.Classifier(model, mean=0.4, std=0.5), inputs(6, torch.float64)
    predicted = classifier(x).argmax(1)
    local = cs.certify(classifier, x, p=p, method="local-lipschitz")
    product = cs.certify(classifier, x, p=p, method="norm-product")
    assert np.all(product.radius > 0) and np.all(product.radius <= local.radius)
    for i in range(6):
        worst = attacked(classifier, x[i], float(local.radius[i]), p)
        assert bool((classifier(worst).argmax(1) == predicted[i]).all())


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 2)])
def test_operator_norms_bound_convolutions(stride: int, padding: int, dilation: int, groups: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 4 // groups, 3, 3, dtype=torch.float64)
    layer = Convolution(
        weight, None, (4, 9, 9), stride=(stride,) * 2, padding=(padding,) * 2, dilation=(dilation,) * 2, groups=groups
    )
    matrix = layer.forward(torch.eye(4 * 81, dtype=torch.float64).view(-1, 4, 9, 9)).flatten(1).T
    for p in NORMS:
        exact = float(torch.linalg.matrix_norm(matrix, p if math.isinf(p) else int(p)))
        bound = operator_norm(layer, p)
        assert exact <= bound <= exact * (1.0 + (1e-9 if p != 2.0 else 0.35))


def test_norm_product_of_a_deep_network_is_sound() -> None:
    for name in ("max pooling", "residual", "functional"):
        classifier, x = network(name), inputs(5)
        predicted = classifier(x).argmax(1)
        for p in NORMS:
            found = cs.certify(classifier, x, p=p, method="norm-product")
            assert np.all(found.radius > 0)
            for i in range(5):
                worst = attacked(classifier, x[i], float(found.radius[i]), p)
                assert bool((classifier(worst).argmax(1) == predicted[i]).all())


@pytest.mark.parametrize("name", ["zoo:mnist-mlp", "zoo:mnist-cnn"])
def test_shipped_networks_certify_below_an_attack(name: str, mnist: tuple) -> None:
    classifier, x = cs.load_model(name), mnist[0][:2]
    found = cs.certify(classifier, x, p="inf", precision=0.3)
    assert np.all(found.radius > 0.01)
    for i, image in enumerate(torch.from_numpy(x)):
        predicted = int(classifier(image[None]).argmax())
        for radius, changed in ((float(found.radius[i]), False), (0.2, True)):
            worst = classifier(attacked(classifier, image, radius, math.inf)).argmax(1)
            assert bool((worst != predicted).any()) is changed


def test_every_target_has_its_own_radius_and_the_smallest_is_untargeted() -> None:
    classifier, x = network("tanh", dtype=torch.float64), inputs(3, torch.float64)
    each = cs.certify(classifier, x, targets="all", precision=1e-5)
    smallest = cs.certify(classifier, x, precision=1e-5)
    assert np.allclose(each.radius, smallest.radius, rtol=3e-5)
    for some, all_ in zip(smallest.per_target, each.per_target, strict=True):
        assert np.all(some <= all_ * (1 + 3e-5)) and np.all(some >= some.min())
    runner_up = cs.certify(classifier, x, targets="runner_up", precision=1e-5)
    for i in range(3):
        place = each.targets[i].index(runner_up.targets[i][0])
        assert runner_up.radius[i] == pytest.approx(each.per_target[i][place], rel=3e-5)


def test_the_box_only_helps_and_is_sound() -> None:
    classifier, x = network("max pooling"), inputs(6).round()
    ball = cs.certify(classifier, x, p="inf")
    box = cs.certify(classifier, x, p="inf", region="box")
    assert np.all(box.radius >= ball.radius * (1 - 2e-3)) and np.any(box.radius > 1.2 * ball.radius)
    predicted = classifier(x).argmax(1)
    for i in range(6):
        offsets = attacked(classifier, x[i], float(box.radius[i]), math.inf)
        assert bool((classifier(offsets.clamp(0.0, 1.0)).argmax(1) == predicted[i]).all())


def test_the_limit_ends_the_search() -> None:
    found = cs.certify(network("relu"), inputs(3), limit=1e-4)
    assert found.radius.tolist() == [1e-4] * 3


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.GELU())
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(72, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = self.gate(x.flatten(1))
        return value * torch.sigmoid(value)


class Rounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(72, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.div(self.body(x), 0.5, rounding_mode="floor"))


def test_what_cannot_be_certified_is_named() -> None:
    with pytest.raises(CertificateError, match=r"'div' \(div\).*rounds"):
        cs.certify(cs.Classifier(Rounded()), inputs(2))
    with pytest.raises(CertificateError, match=r"layer 'body\.2' \(GELU\)"):
        cs.certify(cs.Classifier(Odd()), inputs(2))
    with pytest.raises(CertificateError, match=r"'mul' \(mul\).*both depend"):
        cs.certify(cs.Classifier(Product()), inputs(2))
    with pytest.raises(CertificateError, match="traced"):
        cs.certify(cs.Classifier(lambda x: x[:, 0, 0] if x.sum() > -1e9 else x[:, 1, 0]), inputs(2))
    with pytest.raises(CertificateError, match="layer '4'"):
        cs.certify(network("relu"), inputs(2), method="local-lipschitz")
    with pytest.raises(MissingExtraError, match="auto_LiRPA"):
        cs.certify(network("relu"), inputs(2), method="auto-lirpa")
    for wrong in ({"method": "x"}, {"limit": 0.0}, {"precision": 2.0}, {"region": "x"}, {"region": "box"}):
        with pytest.raises(SettingError):
            cs.certify(network("relu"), inputs(2), **wrong)


def test_probabilities_are_certified_through_their_logits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 9), nn.ReLU(), nn.Linear(9, 4))
    logits = cs.certify(cs.Classifier(model), inputs(3))
    wrapped = cs.Classifier(nn.Sequential(model, nn.Softmax(1)), outputs="probabilities")
    assert np.array_equal(cs.certify(wrapped, inputs(3)).radius, logits.radius)


def test_searches_end_for_curves_that_no_power_fits() -> None:
    curves = [lambda r: 1.0 - r, lambda r: 1.0 - math.floor(10 * r) / 7, lambda r: math.inf if r < 0.3 else -math.inf]
    roots = [1.0, 0.7, 0.3]
    searches = [RadiusSearch(np.array([1.0]), np.array([guess]), 5.0, 1e-4) for guess in (1.0, 0.01, 100.0)]
    checkpoints = []

    def evaluate(some: list[int], radii: np.ndarray) -> list[np.ndarray]:
        checkpoints.append(len(some))
        return [np.array([curves[i](radius)]) for i, radius in zip(some, radii, strict=True)]

    largest_radii(searches, evaluate, together=2)
    for track, root in zip(searches, roots, strict=True):
        assert track.low <= root + 1e-12 and track.low >= root * (1 - 2e-4)
    assert max(checkpoints) == 2
