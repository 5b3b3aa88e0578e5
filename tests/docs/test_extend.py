"""Estimators, attacks, balls and tail models of the user's own, held against closed forms."""

from __future__ import annotations

import csv
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import blocks
import numpy as np
import pytest
import torch

import cleverscore as cs
from cleverscore.errors import InputError, SettingError
from cleverscore.estimators.methods import METHODS
from cleverscore.estimators.settings import Settings
from cleverscore.inputs.balls import Draw, LpBall
from cleverscore.runs.results import StudyConfig, stored_scores
from cleverscore.runs.study import Study


def affine(bounds: tuple[float, float] | None = (-9.0, 9.0)) -> tuple[cs.Classifier, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(5, 3)
    layer.weight.data = torch.randn(3, 5, generator=generator)
    layer.bias.data = torch.randn(3, generator=generator)
    return cs.Classifier(layer, bounds=bounds), torch.rand(4, 5, generator=generator)


def curved() -> tuple[cs.Classifier, torch.Tensor]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3))
    return cs.Classifier(model, bounds=(0.0, 1.0)), torch.rand(3, 6)


def project(goal: cs.Criterion, *, p: float, seed: int) -> torch.Tensor:
    """One step of a linear model, which is exact for an affine classifier against its nearest class."""
    margins, gradients = goal.margins_and_gradients(goal.x)
    steps = (margins + 1e-4) / gradients.flatten(1).square().sum(1)
    return goal.x - steps.reshape(goal.column) * gradients


def distance(classifier: cs.Classifier, images: torch.Tensor) -> np.ndarray:
    return cs.clever(classifier, images, p=2, radius=50.0).values


def test_an_attack_of_ones_own_reaches_the_exact_distance() -> None:
    classifier, images = affine()
    attacked = cs.attack(classifier, images, project, p=2, preset="default")
    assert attacked.attack == "project" and attacked.success.all() and attacked.p == 2.0
    exact = distance(classifier, images)
    assert (attacked.l2 >= exact * (1 - 1e-5)).all()
    # The class that is nearest by logits need not be the nearest one.
    assert np.isclose(attacked.l2, exact, rtol=1e-2).any()


def test_own_attacks_stand_beside_names() -> None:
    classifier, images = affine()
    best = cs.best_attack(classifier, images, [project, "ddn"], p=2, preset="quick")
    assert set(best.names) <= {"project", "ddn"} and len(best.attacks) == 2
    alone = cs.best_attack(classifier, images, project, p=2)
    assert set(alone.names) == {"project"}
    scores = cs.clever(classifier, images, p=2, radius=50.0)
    bracket = cs.bracket(classifier, images, scores, attacks=[project], certificate=None)
    assert set(bracket.attack) == {"project"} and bracket.consistent.all()
    targeted = cs.clever(classifier, images, p=2, radius=50.0, targets="all")
    assert cs.bracket(classifier, images, targeted, attacks=[project], certificate=None).consistent.all()


def test_nothing_about_an_own_attack_is_trusted() -> None:
    classifier, images = affine(bounds=(0.0, 1.0))

    def outside(goal: cs.Criterion, *, p: float, seed: int) -> torch.Tensor:
        return goal.x + 100.0 * torch.randn(goal.x.shape)

    attacked = cs.attack(classifier, images, outside)
    assert attacked.adversarial.min() >= 0.0 and attacked.adversarial.max() <= 1.0
    again = cs.attack(classifier, images, outside)
    assert torch.equal(attacked.adversarial, again.adversarial)  # torch's generator is seeded

    def lazy(goal: cs.Criterion, *, p: float, seed: int) -> torch.Tensor:
        return goal.x

    assert not cs.attack(classifier, images, lazy).success.any()
    with pytest.raises(SettingError, match=r"short gave \(1, 5\)"):
        cs.attack(classifier, images, named("short", lambda goal, **_: goal.x[:1]))
    with pytest.raises(SettingError, match="numbers gave list"):
        cs.attack(classifier, images, named("numbers", lambda goal, **_: []))
    with pytest.raises(SettingError, match="by name"):
        cs.attack(classifier, images, lazy, iterations=3)
    with pytest.raises(SettingError, match="function"):
        cs.attack(classifier, images, 3)  # type: ignore[arg-type]
    scores = cs.clever(classifier, images, p=2)
    for attacks in ([named("ddn", lazy)], [lazy, named("lazy", project)]):
        with pytest.raises(SettingError, match="rename"):
            cs.bracket(classifier, images, scores, attacks=attacks, certificate=None)


def named(name: str, function: Any) -> Any:
    def wrapped(goal: cs.Criterion, **options: Any) -> Any:
        return function(goal, **options)

    wrapped.__name__ = name
    return wrapped


class Sphere(LpBall):
    def draw(self, *, dim: int, count: int, seed: int, input_id: int, block: int, tile: int) -> Draw:
        normal = self.stream(seed, input_id, block, tile).standard_normal((count, dim), dtype=np.float32)
        directions = torch.from_numpy(normal)
        return Draw(directions, self.radius / directions.norm(dim=1, keepdim=True))


class InsideBox(LpBall):
    seen: list[torch.Tensor] = []  # noqa: RUF012

    def points(self, x: torch.Tensor, *, bounds: Any = None, out: Any = None, count: int, **place: int) -> torch.Tensor:
        low, high = (x - self.radius).clamp(*bounds), (x + self.radius).clamp(*bounds)
        shares = self.stream(**place).random((count, *x.shape), dtype=np.float32)
        drawn = torch.lerp(low, high, torch.from_numpy(shares))
        self.seen.append(drawn)
        return drawn


def test_a_ball_of_ones_own_is_sampled() -> None:
    classifier, images = curved()
    on_sphere = cs.Method("sphere", ball=Sphere, radius=1.0)
    scores = cs.clever(classifier, images, p=2, method=on_sphere, blocks=30, block_size=32)
    assert {row.method for row in scores.rows} == {"sphere"} and scores[0].radius == 1.0
    same = cs.clever(classifier, images, p=2, method=on_sphere, blocks=30, block_size=32, chunk_size=7, workers=1)
    assert np.allclose(scores.values, same.values, rtol=1e-5)
    ball = cs.clever(classifier, images, p=2, radius=1.0, blocks=30, block_size=32)
    assert not np.allclose(scores.values, ball.values, rtol=1e-5)
    adaptive = cs.clever(classifier, images, p=2, method=on_sphere, blocks=64, block_size=32, tolerance=0.0)
    assert adaptive.values.shape == (3,)
    assert cs.estimate(classifier, images, method=on_sphere, blocks=10, block_size=8).gradients == 10 * 8 * 6


def test_a_ball_may_use_the_input_and_the_box() -> None:
    classifier, images = curved()
    InsideBox.seen.clear()
    method = cs.Method("inside", ball=InsideBox, radius=0.3)
    scores = cs.clever(classifier, images, p="inf", method=method, blocks=20, block_size=16, workers=1)
    assert scores.values.shape == (3,) and InsideBox.seen
    every = torch.cat([drawn.reshape(-1) for drawn in InsideBox.seen])
    assert every.min() >= 0.0 and every.max() <= 1.0
    whole = cs.clever(classifier, images, p="inf", radius=0.3, blocks=20, block_size=16)
    assert not np.allclose(scores.values, whole.values, rtol=1e-4)


class Wrong(LpBall):
    def points(self, x: torch.Tensor, *, count: int, **_: Any) -> torch.Tensor:
        return x[None]


def test_points_of_the_wrong_shape_are_refused() -> None:
    classifier, images = curved()
    with pytest.raises(SettingError, match=r"Wrong\.points gave shape"):
        cs.clever(classifier, images, method=cs.Method("wrong", ball=Wrong), blocks=12, block_size=8)


def test_methods_are_checked() -> None:
    assert Settings(p=2.0, method=METHODS["paper"]).rule == Settings(p=2.0, method="paper").rule
    with pytest.raises(SettingError, match="built-in"):
        Settings(p=2.0, method=cs.Method("paper", radius=1.0))
    with pytest.raises(SettingError, match=r"cs\.Method"):
        Settings(p=2.0, method="fancy")
    with pytest.raises(SettingError, match=r"cs\.Method"):
        Settings(p=2.0, method=3)  # type: ignore[arg-type]


def highest(maxima: np.ndarray, level: float) -> cs.tails.Endpoints:
    top = maxima.max(1)
    return cs.tails.Endpoints(1.5 * top, top, 3.0 * top)


def test_a_tail_model_of_ones_own_gives_the_end_point() -> None:
    classifier, images = curved()
    own = cs.Method("highest", tail=highest, radius=50.0)
    scores = cs.clever(classifier, images, p=2, method=own, blocks=30, block_size=32)
    for row in scores.rows:
        assert row.outcome is cs.FitOutcome.CUSTOM_MODEL and row.method == "highest"
        assert np.isclose(row.lipschitz, 1.5 * row.fit.sample_max)
        assert np.isclose(row.value, row.margin / row.lipschitz) and np.isnan(row.fit.shape) and np.isnan(row.ks_pvalue)
        assert np.isclose(row.low, row.value / 2.0) and np.isclose(row.high, row.value * 1.5)
    assert "custom_model" in str(scores) and len(scores.to_frame()) == 9
    assert cs.plots.tail(scores[0]) is not None
    with pytest.raises(InputError, match="highest"):
        cs.plots.convergence(scores[0])
    for early in ({"tolerance": 0.05}, {"budget": 1000}):
        with pytest.raises(SettingError, match="tail model of its own"):
            cs.clever(classifier, images, method=own, **early)


def test_samples_without_a_tail_never_reach_the_model() -> None:
    seen = []

    def watching(maxima: np.ndarray, level: float) -> cs.tails.Endpoints:
        seen.append(maxima.shape)
        assert level == 0.9
        return cs.tails.Endpoints(np.zeros(len(maxima)))  # below all that was seen

    good = 2.0 - np.random.default_rng(0).weibull(3.0, size=50)
    rows = np.stack([good, np.full(50, 1.0), np.zeros(50), np.full(50, np.nan), good + 1.0])
    fits, limits = cs.tails.fit_own(rows, watching, level=0.9)
    assert seen == [(2, 50)]
    assert [str(o) for o in fits.outcome] == ["custom_model", "constant", "zero", "not_finite", "custom_model"]
    assert fits.location[0] == good.max() and fits.location[1] == 1.0  # lifted to what was seen
    assert np.isnan(limits.low[0]) and limits.low[1] == limits.high[1] == 1.0
    single, _ = cs.tails.fit_own(good, watching, level=0.9)
    assert single[()].location == good.max()


@pytest.mark.parametrize("location", [np.zeros((2, 2)), np.array([np.nan]), np.array([np.inf])])
def test_end_points_are_checked(location: np.ndarray) -> None:
    good = 2.0 - np.random.default_rng(0).weibull(3.0, size=(1, 50))
    with pytest.raises(SettingError, match="tail model gave"):
        cs.tails.fit_own(good, lambda maxima, level: cs.tails.Endpoints(location))


PAGE = Path(__file__).parents[2] / "docs" / "extend.md"


@pytest.fixture
def first_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that docs/extend.md writes, in the current folder."""
    (source,) = re.findall(r"write_text\(\'\'\'\n(.*?)\'\'\'\)", PAGE.read_text(), re.DOTALL)
    (tmp_path / "first_order.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("first_order", None)
    yield importlib.import_module("first_order")
    sys.modules.pop("first_order", None)


def test_an_estimator_of_ones_own_is_scored_stored_resumed_and_reported(
    first_order: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, images = cs.load_model("zoo:mnist-mlp"), cs.load_data("zoo:mnist")[0][:3]
    scores = cs.clever(classifier, images, p=2, method=first_order.FirstOrder(), progress=False)
    assert {score.method for score in scores.rows} == {"first-order"} and (scores.values > 0.0).all()
    assert cs.estimate(classifier, images, method=first_order.FirstOrder()).gradients == 3 * 9

    measured: list[int] = []
    measure = first_order.FirstOrder.measure

    def watched(self: Any, ready: Any, example: Any, budget: Any) -> Any:
        if len(measured) == 2:
            raise RuntimeError("the power is gone")
        measured.append(example.input_id)
        return measure(self, ready, example, budget)

    monkeypatch.setattr(first_order.FirstOrder, "measure", watched)
    command = "cleverscore score zoo:mnist-mlp zoo:mnist --limit 3 --method first_order:FirstOrder --out run"
    command += " --shard-seconds 1e-9"
    with pytest.raises(RuntimeError, match="power"):
        blocks.run_command(command)
    measured.clear()
    blocks.run_command(command)
    assert measured == [2]  # the others were stored

    monkeypatch.delattr(first_order, "FirstOrder")  # what is read needs no estimator
    shown = blocks.run_command("cleverscore show run")
    assert all(f"{value:.4g}" in shown for value in scores.values)
    blocks.run_command("cleverscore export run --out rows.csv")
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    smallest = [float(row["score"]) for row in rows if row["target_kind"] == "untargeted"]
    assert smallest == scores.values.tolist() and {row["method"] for row in rows} == {"first-order"}
    blocks.run_command("cleverscore report run --out report.html")
    assert "method first-order" in (tmp_path / "report.html").read_text()
    blocks.run_command("cleverscore export run --format card --out card.md")
    assert "method first-order" in (tmp_path / "card.md").read_text()


@pytest.mark.parametrize(
    ("address", "words"),
    [("no_such_module:Thing", "cannot be imported"), ("math:Thing", "cannot be imported"), ("math:pi", "not a cs.Est")],
)
def test_addresses_of_estimators_are_checked(address: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Settings(p=2.0, method=address)


@pytest.mark.parametrize("method", ["slope", "second-order"])
def test_every_built_in_method_can_be_stored(method: str, tmp_path: Path) -> None:
    """Blocks of slopes and of curvatures give the same scores from a run as at once."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    classifier, images = cs.Classifier(model), torch.rand(2, 6)
    config = StudyConfig("model", "data", method=method, blocks=12, block_size=8)
    study = Study(config, classifier, images.numpy(), None, [0, 1])
    with study.open_store(tmp_path) as store:
        study.run(store, workers=1)
        stored = stored_scores(store)
    at_once = cs.clever(classifier, images, method=method, blocks=12, block_size=8, workers=1, progress=False)
    one, other = ([score.row() | {"seconds": 0} for score in scores.rows] for scores in (stored, at_once))
    assert repr(one) == repr(other)  # NaN is not equal to itself
