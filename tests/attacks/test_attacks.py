"""Attacks: closed forms and exact minima first, then foolbox itself, then what must hold for each of them."""

from __future__ import annotations

import builtins
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import nn

import cleverscore as cs
from cleverscore.attacks import attack as attacks_module
from cleverscore.attacks.attack import ATTACKS
from cleverscore.attacks.criterion import ANY, make_criterion
from cleverscore.attacks.foolbox_adapter import EPSILONS, load_foolbox
from cleverscore.attacks.refine import distances, refined
from cleverscore.estimators.ascent.half_space import nearest_in_half_space
from tests.exact_cases import minimum_distortion
from tests.helpers import affine, affine_distance

NORMS = (1.0, 2.0, math.inf)
FIELDS = {1.0: "l1", 2.0: "l2", math.inf: "linf"}


def network(
    dim: int = 6, classes: int = 3, *, seed: int = 0, bounds: tuple[float, float] = (0.0, 1.0)
) -> cs.Classifier:
    """A ReLU network of 2 x 20 units, trained for a moment so that its classes have regions of some size."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(dim, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, classes))
    x = torch.rand(256, dim)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :classes].argmax(1)).backward()
        optimiser.step()
    return cs.Classifier(model.eval(), bounds=bounds)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Networks of twenty units are slower on two threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def relu() -> cs.Classifier:
    return network()


def inputs(count: int, dim: int = 6, *, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(count, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def exact_affine(classifier: cs.Classifier, x: torch.Tensor, p: float) -> np.ndarray:
    logits = classifier(x)
    return np.array(
        [
            min(affine_distance(classifier, row, c, j, p) for j in range(logits.shape[1]) if j != c)
            for row, c in zip(x, logits.argmax(1).tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("p", [*NORMS, 1.5])
def test_best_attack_on_affine_classifiers_is_the_distance(p: float) -> None:
    classifier = affine(40, 4)
    x = inputs(6, 40, dtype=torch.float64)
    best = cs.best_attack(classifier, x, p=p, preset="default")
    ratio = best.distortion / exact_affine(classifier, x, p)
    assert (ratio >= 1.0 - 1e-9).all()
    assert (ratio <= 1.0 + 3e-4).all()  # a descent goes a ten-thousandth beyond the boundary


def exact_targeted(classifier: cs.Classifier, x: torch.Tensor, target: int, p: float) -> float:
    """min ||z - x||_p over the wedge f_target >= f_j, by linear programming, unbounded inputs."""
    model = classifier.module
    w, b = model.weight.detach().numpy(), model.bias.detach().numpy()
    others = [j for j in range(len(b)) if j != target]
    d, centre = w.shape[1], x.numpy()
    wedge, room = w[others] - w[target], b[target] - b[others] - (w[others] - w[target]) @ centre
    if math.isinf(p):  # v = (move, eps): |move_i| <= eps
        sides = np.block([[np.eye(d), -np.ones((d, 1))], [-np.eye(d), -np.ones((d, 1))]])
        rows = np.vstack([np.hstack([wedge, np.zeros((len(others), 1))]), sides])
        cost = np.r_[np.zeros(d), 1.0]
    else:  # v = (move, sizes): |move_i| <= sizes_i
        sides = np.block([[np.eye(d), -np.eye(d)], [-np.eye(d), -np.eye(d)]])
        rows = np.vstack([np.hstack([wedge, np.zeros((len(others), d))]), sides])
        cost = np.r_[np.zeros(d), np.ones(d)]
    solved = linprog(cost, rows, np.r_[room, np.zeros(2 * d)], bounds=[(None, None)] * len(cost))
    return float(solved.fun)


@pytest.mark.parametrize("p", [1.0, math.inf])
def test_targeted_best_attack_on_affine_classifiers(p: float) -> None:
    classifier = affine(8, 3)
    x = inputs(8, 8, dtype=torch.float64)
    target = classifier(x).argmin(1).tolist()
    best = cs.best_attack(classifier, x, p=p, targets=target)
    np.testing.assert_array_equal(best.found, target)
    ratio = best.distortion / [exact_targeted(classifier, row, t, p) for row, t in zip(x, target, strict=True)]
    assert (ratio >= 1.0 - 1e-9).all()
    assert (ratio <= 1.05).all()


def test_best_linf_attack_is_the_exact_minimum_of_a_small_network(relu: cs.Classifier) -> None:
    x = inputs(20)
    best = cs.best_attack(relu, x, p="inf")
    assert best.success.all()
    exact = [
        minimum_distortion(relu.module, row, min(1.0, 1.01 * size), (0.0, 1.0))
        for row, size in zip(x, best.distortion, strict=True)
    ]
    ratio = best.distortion / np.array(exact)
    assert (ratio >= 1.0 - 1e-3).all()  # the programme's switches are whole numbers to a tolerance only
    assert np.median(ratio) <= 1.01
    assert (ratio <= 1.05).mean() >= 0.9


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("targeted", [False, True])
def test_every_attack_keeps_its_promises(relu: cs.Classifier, name: str, targeted: bool) -> None:
    x = inputs(5)
    logits = relu(x)
    targets = logits.argmin(1).tolist() if targeted else None
    for p in ATTACKS[name]:
        attacked = cs.attack(relu, x, name, p=p, targets=targets, preset="quick")
        assert isinstance(attacked, cs.Attacked)
        assert attacked.attack == name
        assert attacked.p == p
        assert attacked.success.mean() >= 0.8
        adversarial = attacked.adversarial
        assert adversarial.shape == x.shape
        assert float(adversarial.min()) >= 0.0
        assert float(adversarial.max()) <= 1.0
        classes = relu(adversarial).argmax(1).numpy()
        np.testing.assert_array_equal(attacked.found, classes)
        reached = classes == np.array(targets) if targeted else classes != logits.argmax(1).numpy()
        np.testing.assert_array_equal(attacked.success, reached)
        offsets = (adversarial.double() - x.double())[torch.from_numpy(attacked.success)].numpy()
        for norm, values in ((1, attacked.l1), (2, attacked.l2), (np.inf, attacked.linf)):
            np.testing.assert_allclose(values[attacked.success], np.linalg.norm(offsets, norm, axis=1), rtol=1e-12)
            assert np.isinf(values[~attacked.success]).all()


@pytest.mark.parametrize("name", ["cw", "ddn", "fmn", "ead"])
def test_foolbox_called_directly_gives_the_same(relu: cs.Classifier, name: str) -> None:
    foolbox = load_foolbox()
    x = inputs(4)
    method = {
        "cw": foolbox.attacks.L2CarliniWagnerAttack(5, 100, 0.01, 0.0, 0.01),
        "ddn": foolbox.attacks.DDNAttack(steps=50),
        "fmn": foolbox.attacks.LInfFMNAttack(steps=50),
        "ead": foolbox.attacks.EADAttack(5, 100, 0.01, 0.0, 0.01, 0.01, "L1"),
    }[name]
    criterion = foolbox.Misclassification(relu(x).argmax(1))
    expected = method.run(foolbox.PyTorchModel(relu.module, bounds=(0.0, 1.0), device="cpu"), x, criterion)
    ours = cs.attack(relu, x, name, preset="quick", chunk_size=4)
    assert ours.success.all()
    torch.testing.assert_close(ours.adversarial, expected, rtol=0.0, atol=2e-6)


def test_papers_ifgsm_is_a_plain_loop(relu: cs.Classifier) -> None:
    x = inputs(6)
    predicted = relu(x).argmax(1)
    best, smallest = x.clone(), torch.full((6,), math.inf)
    for epsilon in (0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0):
        y = x.clone()
        for _ in range(50):
            y.requires_grad_(True)
            loss = nn.functional.cross_entropy(relu(y).double(), predicted, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, y)
            y = (y.detach() + epsilon / 50 * gradient.sign()).clamp(0.0, 1.0)
        sizes = (y - x).abs().amax(1)
        better = (relu(y).argmax(1) != predicted) & (sizes < smallest)
        best[better], smallest[better] = y[better], sizes[better]
    attacked = cs.attack(relu, x, "ifgsm")
    assert attacked.p == math.inf
    assert attacked.success.all()
    torch.testing.assert_close(attacked.adversarial, best, rtol=0.0, atol=1e-5)
    np.testing.assert_allclose(attacked.linf, smallest.numpy(), rtol=1e-4)


def test_ifgsm_sees_through_saturated_logits(relu: cs.Classifier) -> None:
    x = torch.rand(8, 6, generator=torch.Generator().manual_seed(3))
    plain = cs.attack(relu, x, "ifgsm")
    steep = cs.Classifier(nn.Sequential(relu.module, Times(1e4)), bounds=(0.0, 1.0))
    assert nn.functional.softmax(steep(x), 1).max(1).values.min() == 1.0  # nothing left of the other classes
    found = cs.attack(steep, x, "ifgsm")
    assert found.success.all() and found.linf == pytest.approx(plain.linf, rel=0.5)


@pytest.mark.parametrize("scale", [1.0, 8.0, 30.0])
def test_ifgsm_pushes_the_predicted_class_down(scale: float) -> None:
    """All logits rise along x, the predicted one most: only its own gradient shows the way, which is down."""
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight.copy_(scale * torch.tensor([1.0, 0.02, 0.01])[:, None].expand(3, 4))
        layer.bias.copy_(scale * torch.tensor([-0.4, 0.0, 0.0]))
    classifier, x = cs.Classifier(layer, bounds=(0.0, 1.0)), torch.full((1, 4), 0.9)
    found = cs.attack(classifier, x, "ifgsm")
    nearest = 0.9 - 0.4 / (4 * 0.98)  # where logits 0 and 1 meet
    assert found.success.all() and nearest <= found.linf[0] <= 0.8 + 1e-6


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


def test_the_papers_numbers() -> None:
    """CW: 9 searches of 1000 iterations from a constant of 0.01, rate 0.01; I-FGSM: 50 iterations, eight epsilons."""
    from cleverscore.attacks.foolbox_adapter import _searching
    from cleverscore.attacks.presets import PRESETS

    cw = _searching(load_foolbox(), "cw", PRESETS["paper"]["cw"])
    assert (cw.binary_search_steps, cw.steps, cw.initial_const, cw.confidence, cw.stepsize) == (9, 1000, 0.01, 0, 0.01)
    assert PRESETS["paper"]["ifgsm"].iterations == 50
    assert len(EPSILONS) == 8
    assert not any(effort.refine for name, effort in PRESETS["paper"].items() if name != "descent")


@pytest.mark.parametrize("name", ["cw", "ifgsm", "ddn", "fmn"])
def test_the_units_of_the_input_do_not_matter(relu: cs.Classifier, name: str) -> None:
    x = inputs(4)
    grey = cs.Classifier(relu.module, bounds=(-100.0, 155.0), mean=-100.0, std=255.0)
    one = cs.attack(relu, x, name, preset="quick")
    other = cs.attack(grey, x * 255.0 - 100.0, name, preset="quick")
    np.testing.assert_allclose(other.l2, 255.0 * one.l2, rtol=0.02)


def test_l2_fmn_projects_where_foolbox_does_not(relu: cs.Classifier) -> None:
    x = inputs(10)
    fmn = cs.attack(relu, x, "fmn", p=2, iterations=200)
    best = cs.best_attack(relu, x, "descent", p=2)
    assert fmn.success.all()
    assert np.median(fmn.l2 / best.distortion) < 1.02
    foolbox = load_foolbox()
    model = foolbox.PyTorchModel(relu.module, bounds=(0.0, 1.0), device="cpu")
    theirs = foolbox.attacks.L2FMNAttack(steps=200).run(model, x, foolbox.Misclassification(relu(x).argmax(1)))
    good = relu(theirs).argmax(1) != relu(x).argmax(1)
    theirs_l2 = torch.where(good, distances(x, theirs, 2.0), math.inf).numpy()
    assert np.median(fmn.l2) < np.median(theirs_l2)


def test_single_samples_and_batches_agree(relu: cs.Classifier) -> None:
    x = inputs(3)
    for name in ("fmn", "ddn", "descent"):
        for p in ATTACKS[name]:
            together = cs.attack(relu, x, name, p=p, preset="quick")
            for i in range(3):
                alone = cs.attack(relu, x[i : i + 1], name, p=p, preset="quick")
                assert alone.success.all()
                np.testing.assert_allclose(alone.l2, together.l2[i : i + 1], rtol=0.02)


def test_the_same_seed_gives_the_same_attack(relu: cs.Classifier) -> None:
    one, other = (cs.best_attack(relu, inputs(4), p=2, seed=3, preset="quick") for _ in range(2))
    torch.testing.assert_close(one.adversarial, other.adversarial, rtol=0.0, atol=0.0)


def test_chunks_cover_all_inputs(relu: cs.Classifier) -> None:
    x = inputs(5)
    one = cs.attack(relu, x, "fmn", preset="quick", chunk_size=2)
    other = cs.attack(relu, x, "fmn", preset="quick", chunk_size=5)
    np.testing.assert_allclose(one.linf, other.linf, rtol=1e-3)


def test_a_lie_is_a_failure(relu: cs.Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that returns points of the same class, or none at all, has not succeeded."""
    x = inputs(3)
    monkeypatch.setattr(attacks_module, "run", lambda criterion, *args, **kwargs: criterion.x + 1e-7)
    for preset in ("paper", "default"):
        attacked = cs.attack(relu, x, "cw", preset=preset)
        assert not attacked.success.any()
        assert torch.equal(attacked.adversarial, x)
        assert np.isinf([attacked.l1, attacked.l2, attacked.linf]).all()
        np.testing.assert_array_equal(attacked.found, relu(x).argmax(1).numpy())


def constant_classifier() -> cs.Classifier:
    """Class 1 everywhere in the box, with a little slope so that gradients exist."""
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.mul_(1e-3)
        model.bias.copy_(torch.tensor([0.0, 5.0, 0.0]))
    return cs.Classifier(model, bounds=(0.0, 1.0))


@pytest.mark.parametrize("name", ATTACKS)
def test_where_nothing_can_be_found(name: str) -> None:
    x = inputs(3)
    attacked = cs.attack(constant_classifier(), x, name, preset="quick")
    assert not attacked.success.any()
    assert torch.equal(attacked.adversarial, x)
    assert np.isinf(attacked.l2).all()
    best = cs.best_attack(constant_classifier(), x, [name], p=2, preset="quick")
    assert best.names == ("", "", "")
    assert np.isinf(best.distortion).all()
    assert not best.success.any()
    assert torch.equal(best.adversarial, x)


def test_the_black_image_of_a_failed_search_is_no_success() -> None:
    """CW returns zeros where it found nothing; here zeros happen to have another class."""

    def model(x: torch.Tensor) -> torch.Tensor:
        black = (x.amax(1) < 0.01).to(x)
        return torch.stack([1.0 - 5.0 * black + 0.0 * x.sum(1), -1.0 + 1e-6 * x.sum(1)], 1)

    classifier = cs.Classifier(model, bounds=(0.0, 1.0))
    assert classifier(torch.zeros(1, 6)).argmax(1).item() == 1
    attacked = cs.attack(classifier, inputs(2) * 0.5 + 0.5, "cw", preset="quick", iterations=5)
    assert not attacked.success.any()


@pytest.mark.parametrize("name", ATTACKS)
def test_without_gradients_there_is_no_nan(relu: cs.Classifier, name: str) -> None:
    """Rounding shatters the gradient: an attack may fail, and says so."""
    classifier = cs.Classifier(lambda x: relu.module(torch.round(4.0 * x) / 4.0), bounds=(0.0, 1.0))
    attacked = cs.attack(classifier, inputs(3), name, preset="quick")
    assert torch.isfinite(attacked.adversarial).all()
    assert not np.isnan(attacked.l2).any()
    np.testing.assert_array_equal(np.isinf(attacked.l2), ~attacked.success)


def test_nan_is_no_success(relu: cs.Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks_module, "run", lambda criterion, *args, **kwargs: criterion.x * math.nan)
    attacked = cs.attack(relu, inputs(6), "cw")
    assert not attacked.success.any()
    assert torch.equal(attacked.adversarial, inputs(6))


def test_best_attack_takes_the_smallest_of_each_input(relu: cs.Classifier) -> None:
    x = inputs(6)
    best = cs.best_attack(relu, x, ["cw", "ifgsm", "fmn"], p="inf", preset="quick")
    assert [each.attack for each in best.attacks] == ["cw", "ifgsm", "fmn"]
    assert [each.p for each in best.attacks] == [2.0, math.inf, math.inf]  # CW's linf column is that of its l2 examples
    np.testing.assert_allclose(best.distortion, np.min([each.linf for each in best.attacks], 0))
    for i, name in enumerate(best.names):
        winner = next(each for each in best.attacks if each.attack == name)
        assert winner.linf[i] == best.distortion[i]
        assert torch.equal(best.adversarial[i], winner.adversarial[i])
        assert best.found[i] == winner.found[i]
    assert best.seconds >= max(each.seconds for each in best.attacks)


def test_refining_only_tightens(relu: cs.Classifier) -> None:
    x = inputs(8)
    rough = cs.attack(relu, x, "ifgsm")
    criterion = make_criterion(relu, x, targets=None, box=relu.bounds, seed=0)
    for p in (*NORMS, 3.0):
        better = refined(criterion, rough.adversarial, p=p, steps=40)
        assert (distances(x, better, p) <= distances(x, rough.adversarial, p)).all()
        assert (distances(x, better, p) < 0.95 * distances(x, rough.adversarial, p)).any()
        assert (relu(better).argmax(1) != relu(x).argmax(1)).all()


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, math.inf])
def test_nearest_point_of_a_half_space_in_a_box(p: float) -> None:
    """Against a general solver: min ||z - x||_p with w . z <= b inside the box."""
    x = inputs(4, 5)
    generator = torch.Generator().manual_seed(2)
    w = torch.randn(4, 5, generator=generator)
    # So far that some coordinates reach the box's edge, and not farther than the best corner.
    corner = torch.where(w > 0, -x, 1.0 - x)
    margins = -0.6 * (w * corner).sum(1)
    z = nearest_in_half_space(x, x, margins, w, p=p, low=torch.zeros(1), high=torch.ones(1))
    assert ((z >= 0.0) & (z <= 1.0)).all()
    reached = margins + (w * (z - x)).sum(1)
    torch.testing.assert_close(reached, torch.zeros(4), rtol=0.0, atol=1e-5)
    for i in range(4):
        slope, centre = w[i].double().numpy(), x[i].double().numpy()
        constraint = {"type": "ineq", "fun": lambda v: -(float(margins[i]) + slope @ (v - centre))}  # noqa: B023
        if p in (1.0, math.inf):  # smooth stand-ins would be solved badly: compare with many feasible points instead
            best = min(_feasible_sizes(slope, centre, float(margins[i]), p))
            assert float(distances(x[i : i + 1], z[i : i + 1], p)) <= best * (1 + 1e-6)
        else:
            solved = minimize(
                lambda v: (np.abs(v - centre) ** p).sum(),  # noqa: B023
                centre + 0.7 * corner[i].double().numpy(),
                bounds=[(0.0, 1.0)] * 5,
                constraints=[constraint],
                options={"maxiter": 500, "ftol": 1e-14},
            )
            assert float(distances(x[i : i + 1], z[i : i + 1], p)) == pytest.approx(solved.fun ** (1 / p), rel=1e-4)


def _feasible_sizes(slope: np.ndarray, centre: np.ndarray, margin: float, p: float) -> list[float]:
    generator = np.random.default_rng(0)
    sizes = []
    for _ in range(4000):
        ceiling = generator.random() * 1.5
        move = np.minimum(generator.random(5) * ceiling, np.where(slope > 0, centre, 1 - centre)) * -np.sign(slope)
        if margin + slope @ move <= 0:
            sizes.append(float(np.linalg.norm(move, p)))
    return sizes


def test_margins_and_their_gradients(relu: cs.Classifier) -> None:
    """Against autograd of the margins, and of the same with T log sum exp(f / T) for the maximum, T the margin."""
    x = inputs(6)
    for targets in (None, relu(x).argmin(1).tolist()):
        criterion = make_criterion(relu, x, targets=targets, box=None, seed=0)
        points = x.clone().requires_grad_(True)
        expected = criterion.margins(points)
        (slopes,) = torch.autograd.grad(expected.sum(), points)
        for sharpness in (math.inf, 1e4):
            margins, gradients = criterion.smooth_margins_and_gradients(x, sharpness=sharpness)
            torch.testing.assert_close(margins, expected.detach())
            torch.testing.assert_close(gradients, slopes)
        logits = relu.logits(points)
        others = logits.scatter(1, criterion.classes[:, None], -math.inf)
        own = logits.gather(1, criterion.classes[:, None])[:, 0]
        smooth = margins * torch.logsumexp(others / margins[:, None], 1)
        (slopes,) = torch.autograd.grad((smooth - own if criterion.targeted else own - smooth).sum(), points)
        _margins, gradients = criterion.smooth_margins_and_gradients(x)
        torch.testing.assert_close(gradients, slopes, rtol=1e-3, atol=1e-4)


def test_margins_towards_one_class(relu: cs.Classifier) -> None:
    x, rows = inputs(6), torch.arange(6)
    logits = relu(x)
    rivals = logits.argmin(1)
    criterion = make_criterion(relu, x, targets=None, box=None, seed=0)
    margins, gradients = criterion.smooth_margins_and_gradients(x, torch.where(rows == 0, ANY, rivals))
    torch.testing.assert_close(margins[1:], (logits.amax(1) - logits[rows, rivals])[1:], rtol=1e-5, atol=1e-4)
    assert margins[0] < logits[0].amax() - logits[0].amin()
    points = x.clone().requires_grad_(True)
    values = relu.logits(points)
    (slopes,) = torch.autograd.grad((values[rows, logits.argmax(1)] - values[rows, rivals]).sum(), points)
    torch.testing.assert_close(gradients[1:], slopes[1:])


@pytest.mark.parametrize("name", ["descent", "fmn", "ifgsm"])
@pytest.mark.parametrize("p", NORMS)
def test_the_ball_is_never_worse_than_the_box(relu: cs.Classifier, name: str, p: float) -> None:
    x = (3.0 * inputs(12) - 1.0).clamp(0.0, 1.0)  # many values at the box's sides
    box = cs.best_attack(relu, x, name, p=p, preset="quick", region="box")
    ball = cs.best_attack(relu, x, name, p=p, preset="quick", region="ball")
    default = cs.best_attack(relu, x, name, p=p, preset="quick")
    np.testing.assert_array_equal(default.distortion, box.distortion)
    assert (ball.distortion <= box.distortion).all()
    assert ((box.adversarial >= 0.0) & (box.adversarial <= 1.0)).all()
    if name == "descent":
        assert ((ball.adversarial < 0.0) | (ball.adversarial > 1.0)).any()
        free = cs.Classifier(relu.module)
        anywhere = cs.best_attack(free, x, name, p=p, preset="quick")
        assert np.median(anywhere.distortion / ball.distortion) == pytest.approx(1.0, abs=0.01)
        with pytest.raises(cs.CleverError, match="needs the bounds"):
            cs.best_attack(free, x, name, p=p, region="box")


class Step(nn.Module):
    """Two classes that differ only beyond a far step of the mean: no gradient leads there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = torch.relu(20.0 * (x.flatten(1).mean(1) - 0.8))
        return torch.stack([2.0 * torch.ones_like(up), up], 1)


@pytest.mark.parametrize("p", NORMS)
def test_flat_inputs_are_attacked_from_afar(p: float) -> None:
    """Class 1 begins where the mean is 0.9; an input with mean m is (0.9 - m) * (16, 4, 1) away in l1, l2, linf."""
    classifier = cs.Classifier(Step(), bounds=(0.0, 1.0))
    x = 0.2 + 0.2 * torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    best = cs.best_attack(classifier, x, p=p)
    assert best.success.all()
    exact = (0.9 - x.flatten(1).mean(1)).numpy() * 16 ** (1.0 / p)
    np.testing.assert_allclose(best.distortion, exact, rtol=0.1 if math.isinf(p) else 0.01)
    far = cs.best_attack(classifier, torch.cat([x, torch.full((1, 1, 4, 4), 0.95)]), p=p, targets=[1] * 5 + [0])
    assert far.success.all()


def test_an_input_is_attacked_alike_in_every_batch(relu: cs.Classifier) -> None:
    x = inputs(7)
    for p in NORMS:
        together = cs.best_attack(relu, x, p=p, preset="quick", workers=2)
        alone = [cs.best_attack(relu, x[i : i + 1], p=p, preset="quick", workers=1).distortion[0] for i in range(7)]
        np.testing.assert_allclose(together.distortion, alone, rtol=1e-3)


def test_longer_presets_are_nearer() -> None:
    """On a saturated network, which hides near boundaries; each preset has room above the next."""
    torch.manual_seed(4)
    x = torch.rand(400, 12)
    y = torch.nn.functional.one_hot((x[:, :3].sum(1) * 2).long() % 3, 3).float()
    model = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(500):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    classifier = cs.Classifier(model.eval(), bounds=(0.0, 1.0))
    quick, default, long = (cs.best_attack(classifier, x[:40], p=2, preset=k) for k in ("quick", "default", "long"))
    assert quick.success.all()
    assert default.distortion.mean() <= 1.001 * quick.distortion.mean()
    assert long.distortion.mean() <= 1.001 * default.distortion.mean()
    assert np.median(default.distortion / long.distortion) < 1.005


def test_misclassified_inputs_leave_the_predicted_class(relu: cs.Classifier) -> None:
    """Labels play no part: distance is to the border of the class that the model sees."""
    x = inputs(4)
    predicted = relu(x).argmax(1).numpy()
    attacked = cs.attack(relu, x, "fmn", preset="quick")
    assert (attacked.found != predicted).all()
    assert (attacked.linf > 0.0).all()


def test_precision_of_the_model_is_kept() -> None:
    classifier = cs.Classifier(network().module.double(), bounds=(0.0, 1.0))
    attacked = cs.attack(classifier, inputs(2, dtype=torch.float64), "fmn", preset="quick")
    assert attacked.adversarial.dtype == torch.float64
    assert attacked.success.all()


def test_images_of_the_shipped_network(mnist: tuple) -> None:
    classifier = cs.load_model("zoo:mnist-cnn")
    images = mnist[0][:3]
    quick = cs.best_attack(classifier, images, ["fmn"], p="inf", preset="quick")
    assert quick.success.all()
    assert (quick.distortion < 0.3).all()
    assert quick.adversarial.shape == images.shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "pgd"}, "choose one of descent, cw"),
        ({"preset": "slow"}, "choose one of quick"),
        ({"targets": "all"}, "one target per input"),
        ({"targets": [0]}, "1 lists for 2 inputs"),
        ({"targets": [[0, 1], 2]}, "one class number per input"),
        ({"targets": [99, 99]}, "not a class"),
        ({"iterations": 0}, "at least 1"),
        ({"learning_rate": -1.0}, "positive"),
        ({"seed": -1}, "whole number"),
        ({"p": 0.5}, "below 1"),
        ({"chunk_size": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_done_is_said(relu: cs.Classifier, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.CleverError, match=message):
        cs.attack(relu, inputs(2), **arguments)


def test_no_attack_at_all_is_refused(relu: cs.Classifier) -> None:
    with pytest.raises(cs.CleverError, match="at least one"):
        cs.best_attack(relu, inputs(2), [])


def test_without_foolbox_the_message_says_what_to_install(relu: cs.Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "foolbox":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "foolbox", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(cs.CleverError, match=r"cleverscore\[attacks\]"):
        cs.attack(relu, inputs(1), "fmn")


def test_an_unlikely_class_with_a_steep_gradient_is_found_without_being_named() -> None:
    """Class 2 is the least likely at the input, and wins within a ball of radius .21 whose centre is .3 away."""

    def logits(x: torch.Tensor) -> torch.Tensor:
        center = 0.3 * torch.eye(10)[0].to(x)
        bump = 60.0 * torch.exp(-((x - center) ** 2).sum(1) / 0.02) - 6.0
        others = torch.stack([1.0 - 0.2 * x[:, 1], 0.0 * bump, bump], 1)
        return torch.cat([others, x[:, 2:6] * 0.2 - torch.tensor([3.0, 2.0, 0.1, 0.0]).to(x)], 1)

    classifier, x = cs.Classifier(logits), torch.zeros(1, 10)
    named = cs.best_attack(classifier, x, p=2, targets=[2]).distortion
    assert cs.best_attack(classifier, x, p=2).distortion == pytest.approx(named, rel=0.01)
    assert named == pytest.approx(0.0927, rel=0.01)


class Disc(nn.Module):
    """Class 1 outside the unit disc."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outside = (x**2).sum(1) - 1.0
        return torch.stack([torch.zeros_like(outside), outside], 1)


@pytest.mark.parametrize("first", [0.9, 0.9999, 0.99999])
def test_an_input_next_to_the_boundary_is_moved_across_it(first: float) -> None:
    """The logits there are so small that a tie looked like a success, and was refused afterwards."""
    attacked = cs.best_attack(cs.Classifier(Disc(), bounds=(-2.0, 2.0)), torch.tensor([[first, 0.0]]), p=2)
    assert attacked.distortion[0] == pytest.approx(1.0 - first, rel=0.1)


class Polytope(nn.Module):
    """Class 1 where all of some affine functions are positive: no gradient at the input points into it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.normals = torch.randn(30, 40, generator=generator) + 0.3
        self.shifts = torch.rand(30, generator=generator) + 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        least = (x @ self.normals.T - self.shifts).amin(1)
        return torch.stack([torch.zeros_like(least), least], 1)


@pytest.mark.parametrize("p", [2, "inf"])
def test_a_longer_preset_is_never_worse(p: Any) -> None:
    for seed in range(2):
        classifier = cs.Classifier(Polytope(seed), bounds=(-50.0, 50.0))
        found = [
            float(cs.best_attack(classifier, torch.zeros(1, 40), p=p, preset=preset).distortion[0])
            for preset in ("quick", "default", "long")
        ]
        assert found == sorted(found, reverse=True)
        assert math.isfinite(found[-1])
