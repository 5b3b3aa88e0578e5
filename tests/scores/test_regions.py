"""region="box": only moves that keep the input in the box count, for scores and for certificates."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.estimators.sampling import sampler
from cleverscore.inputs.balls import LpBall, ReleasedCodeBall
from cleverscore.models.input_box import Moves
from cleverscore.models.margin_gradients import margin_gradient_norms
from cleverscore.norms import dual_exponent
from cleverscore.runs.store import Store
from tests.helpers import cleverscore

NORMS = [1.0, 2.0, math.inf]
FEW = {"blocks": 24, "block_size": 32, "progress": False}
BOUNDS = (0.0, 1.0)


def network(dim: int = 12, classes: int = 4, *, bounds: tuple[float, float] | None = BOUNDS) -> cs.Classifier:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(dim, 20), nn.Softplus(), nn.Linear(20, classes)).double()
    with torch.no_grad():
        model[0].weight.mul_(3.0)
    return cs.Classifier(model, bounds=bounds)


def black_and_white(count: int, dim: int = 12) -> torch.Tensor:
    """Inputs with a third of their coordinates at each bound, and a third between."""
    x = torch.rand(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return torch.where(x < 1 / 3, 0.0, torch.where(x > 2 / 3, 1.0, x))


def affine_classifier(dim: int = 6) -> tuple[cs.Classifier, torch.Tensor]:
    """f_0 - f_1 = 12 + w . x, and w."""
    model = nn.Linear(dim, 2).double()
    w = torch.tensor([1.0, -2.0, 3.0, -4.0, 0.5, -0.25][:dim], dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.stack([w, torch.zeros_like(w)]))
        model.bias.copy_(torch.tensor([12.0, 0.0]))
    return cs.Classifier(model, bounds=BOUNDS), w


def dense_norm(gradient: torch.Tensor, x: torch.Tensor, q: float) -> float:
    """The masked norm, one component at a time."""
    kept = []
    for g, value in zip(gradient.flatten().tolist(), x.flatten().tolist(), strict=True):
        can_rise, can_fall = value < BOUNDS[1], value > BOUNDS[0]
        kept.append(abs(g) if (g < 0 and can_rise) or (g > 0 and can_fall) else 0.0)
    return float(np.linalg.norm(kept, q))


@pytest.mark.parametrize("p", [*NORMS, 1.5])
@pytest.mark.parametrize("law", [LpBall, ReleasedCodeBall])
def test_maxima_are_those_of_a_plain_loop_over_clipped_points(p: float, law: type[LpBall]) -> None:
    classifier, x = network(), black_and_white(2)
    method = cs.Method("plain", ball=law, radius=0.7)
    scores = cs.clever(classifier, x, p=p, targets="all", method=method, region="box", **FEW)
    ball = law(p, 0.7, "box")
    for row in scores.rows:
        for block in (0, 5):
            points = ball.points(x[row.input], count=32, seed=0, input_id=row.input, block=block, tile=0, bounds=BOUNDS)
            assert float(points.min()) >= 0.0 and float(points.max()) <= 1.0
            points.requires_grad_(True)
            logits = classifier.logits(points)
            (gradients,) = torch.autograd.grad((logits[:, row.predicted] - logits[:, row.target]).sum(), points)
            largest = max(dense_norm(g, x[row.input], dual_exponent(p)) for g in gradients)
            assert row.maxima[block] == pytest.approx(largest, rel=1e-9)


@pytest.mark.parametrize("p", NORMS)
def test_an_affine_classifier_at_a_corner_has_the_masked_norm(p: float) -> None:
    classifier, w = affine_classifier()
    corner = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5, 0.5], dtype=torch.float64)
    middle = torch.full((6,), 0.5, dtype=torch.float64)
    box = cs.clever(classifier, torch.stack([corner, middle]), p=p, radius=50.0, region="box", progress=False)
    ball = cs.clever(classifier, torch.stack([corner, middle]), p=p, radius=50.0, progress=False)
    margin = 12.0 + float(w @ corner)
    kept = torch.tensor([0.0, -2.0, 3.0, 0.0, 0.5, -0.25])  # 1 at low cannot fall, -4 at high cannot rise
    assert box[0].value == pytest.approx(margin / np.linalg.norm(kept, dual_exponent(p)), rel=1e-6)
    assert box[0].value > ball[0].value
    assert box[1].value == ball[1].value  # away from the bounds every move is valid at first


def test_the_score_of_an_affine_classifier_is_at_most_the_distance_in_the_box() -> None:
    classifier, w = affine_classifier()
    with torch.no_grad():
        classifier.module.bias.copy_(torch.tensor([5.0, 0.0]))
    x = torch.tensor([[0.0, 0.2, 1.0, 0.1, 0.5, 1.0], [0.9, 0.0, 0.3, 0.2, 1.0, 0.0]], dtype=torch.float64)
    scores = cs.clever(classifier, x, p="inf", region="box", progress=False)
    for score, point in zip(scores, x, strict=True):
        room = torch.where(w > 0, point, 1.0 - point)
        radii = np.linspace(0.0, 1.0, 10_001)
        margins = 5.0 + float(w @ point) - np.array([float((w.abs() * room.clamp_max(r)).sum()) for r in radii])
        distance = radii[margins <= 0][0] if (margins <= 0).any() else math.inf
        assert score.value <= distance


def test_where_no_valid_move_lowers_the_margin_the_score_is_the_radius() -> None:
    classifier, w = affine_classifier()
    with pytest.warns(cs.CleverWarning, match="zero"):
        scores = cs.clever(classifier, (w < 0).double()[None], region="box", radius=3.0, progress=False)
    assert scores[0].value == 3.0 and scores[0].outcome is cs.FitOutcome.ZERO


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("options", [{}, {"tolerance": 0.05, "block_size": 256}])
def test_scores_in_the_box_are_not_below_those_in_the_ball(p: float, options: dict) -> None:
    classifier, x = network(), black_and_white(6)
    settings = {**FEW, "p": p, "radius": 0.8, "penalty": 0.1, **options}  # fits to few blocks are steadier with it
    ball = cs.clever(classifier, x, **settings)
    box = cs.clever(classifier, x, region="box", **settings)
    assert (box.values >= ball.values * (1 - 1e-6)).all() and (box.values > 1.02 * ball.values).any()


@pytest.mark.parametrize("p", NORMS)
def test_the_released_code_draws_the_same_points_in_either_region(p: float) -> None:
    """So every block maximum in the box is at most that in the ball; the fit to few blocks is not as orderly."""
    classifier, x = network(), black_and_white(6)
    settings = {**FEW, "p": p, "targets": "all", "method": "released-code"}
    ball, box = (cs.clever(classifier, x, region=region, **settings).rows for region in ("ball", "box"))
    pairs = [(np.asarray(one.maxima), np.asarray(other.maxima)) for one, other in zip(box, ball, strict=True)]
    assert all((one <= other * (1 + 1e-12)).all() for one, other in pairs)
    assert any(one.mean() < 0.99 * other.mean() for one, other in pairs)


@pytest.mark.parametrize("p", NORMS)
def test_no_valid_input_nearer_than_the_score_has_another_class(p: float) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 3)).double()
    classifier, x = cs.Classifier(model, bounds=BOUNDS), black_and_white(5)
    scores = cs.clever(classifier, x, p=p, region="box", **FEW)
    for score, point in zip(scores, x, strict=True):
        drawn = LpBall(p, score.value, "box").points(
            point, count=4000, seed=1, input_id=0, block=0, tile=0, bounds=BOUNDS
        )
        assert bool((classifier(drawn).argmax(1) == score.predicted).all())


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("q", [1.0, 2.0, math.inf])
def test_a_broken_component_shows_also_where_it_does_not_count(broken: float, q: float) -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x[:, :2].clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return torch.full((len(gradient), 3), broken)

    classifier = cs.Classifier(lambda x: Broken.apply(x), bounds=BOUNDS)
    for corner in (torch.zeros(3), torch.ones(3)):
        moves = Moves.of(corner, BOUNDS)
        norms = margin_gradient_norms(classifier, corner[None], predicted=0, targets=(1,), q=q, moves=moves)
        assert not bool(torch.isfinite(norms).any())


def test_an_input_away_from_the_bounds_has_no_mask() -> None:
    assert Moves.of(torch.full((4,), 0.5), BOUNDS) is None
    assert Moves.of(torch.zeros(4), None) is None
    assert LpBall(2.0, 1.0).moves(torch.zeros(4), BOUNDS) is None


def test_the_gradient_that_autograd_gives_is_not_changed() -> None:
    """The gradient of an identity is the direction itself, which serves the next target as well."""
    x = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    moves = Moves.of(x, BOUNDS)
    norms = margin_gradient_norms(
        cs.Classifier(nn.Identity(), bounds=BOUNDS), x[None], predicted=1, targets=(0, 2), q=1.0, moves=moves
    )
    assert norms.tolist() == [[2.0, 2.0]]


def test_many_classes_are_compared_by_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random projections know whole gradients only; with them a target that the box hides would beat the nearest."""
    monkeypatch.setattr(sampler, "sketched_norms", lambda *_, **__: pytest.fail("sketched in the box"))
    classifier, x = network(classes=150), black_and_white(2)
    settings = {"p": 2, "region": "box", "radius": 0.8, "blocks": 40, "block_size": 64, "progress": False}
    full = cs.clever(classifier, x, **settings)
    quick = cs.clever(classifier, x, tolerance=0.0, **settings)
    assert [score.target for score in quick] == [score.target for score in full]
    assert quick.values == pytest.approx(full.values)


def test_second_order_masks_the_slope() -> None:
    """Margin 2 + x_0 + x_1^2 - x_2, at a corner where x_0 cannot fall and x_2 can rise."""

    def logits(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([2.0 + x[:, 0] + x[:, 1].square() - x[:, 2], 0.0 * x[:, 0]], 1)

    classifier, x = cs.Classifier(logits, bounds=BOUNDS), torch.zeros(1, 3, dtype=torch.float64)
    few = {"blocks": 12, "block_size": 4}
    # -Hessian is diag(0, -2, 0), so K = 0: the score is margin / slope.
    assert cs.second_order_clever(classifier, x, **few).values == pytest.approx([2.0 / math.sqrt(2.0)])
    assert cs.second_order_clever(classifier, x, region="box", **few).values == pytest.approx([2.0])


def test_slopes_are_between_valid_points() -> None:
    steep = cs.Classifier(
        lambda x: torch.stack([3.0 + 9.0 * (x[:, 0] - 1.0).relu() + x[:, 0], x[:, 1]], 1), bounds=BOUNDS
    )
    x = torch.full((1, 2), 0.5, dtype=torch.float64)
    few = {"p": 2, "radius": 2.0, "blocks": 12, "block_size": 32}
    assert cs.clever(steep, x, method="slope", **few)[0].lipschitz > 3.0
    assert cs.clever(steep, x, method="slope", region="box", **few)[0].lipschitz <= math.sqrt(2.0) * (1 + 1e-9)


@pytest.mark.parametrize(
    "call",
    [
        lambda c, x, **o: cs.clever(c, x, progress=False, **o),
        lambda c, x, **o: cs.clever(c, x, method="released-code", progress=False, **o),
        lambda c, x, **o: cs.decide(c, x, at_least=0.1, **o),
        lambda c, x, **o: cs.second_order_clever(c, x, **o),
        lambda c, x, **o: cs.clever(c, x, method="slope", **o),
        lambda c, x, **o: cs.certify(c, x, p="inf", **o),
        lambda c, x, **o: cs.bracket(c, x, cs.clever(c, x, blocks=2, block_size=2, progress=False), attacks=[], **o),
    ],
)
def test_errors_name_the_way_out(call: object) -> None:
    x = black_and_white(1)
    for model in (network(bounds=None), cs.Classifier(affine_classifier()[0].module)):
        inputs = x[:, :6] if isinstance(model.module, nn.Linear) else x
        with pytest.raises(cs.errors.SettingError, match=r"region='box' needs the bounds.*bounds=\(0\.0, 1\.0\)"):
            call(model, inputs, region="box")
        with pytest.raises(cs.errors.SettingError, match="region='clip': choose one of 'ball', 'box'"):
            call(model, inputs, region="clip")


def test_brackets_certify_the_region_of_the_scores_where_they_can() -> None:
    classifier, x = network(), black_and_white(3)
    for p, region in ((math.inf, "box"), (2.0, "ball")):
        scores = cs.clever(classifier, x, p=p, region="box", **FEW)
        found = cs.bracket(classifier, x, scores, attacks=[], region="box")
        expected = cs.certify(classifier, x, p=p, region=region).radius
        assert found.lower == pytest.approx(expected)
    assert (cs.certify(classifier, x, p="inf").radius < cs.certify(classifier, x, p="inf", region="box").radius).all()


def test_a_run_keeps_its_region(tmp_path: Path) -> None:
    few = [
        "--preset",
        "paper",
        "--blocks",
        "12",
        "--block-size",
        "8",
        "--limit",
        "2",
        "--norm",
        "inf",
        "--targets",
        "runner_up",
    ]
    model = ["score", "zoo:mnist-mlp", "zoo:mnist"]
    box, ball = tmp_path / "box", tmp_path / "ball"
    done = cleverscore(*model, *few, "--region", "box", "--certify", "crown", "--out", box)
    assert done.returncode == 0, done.stderr
    with Store.open(box) as store:
        assert store.meta["config"]["region"] == "box"
        proved = sorted(record.radius for record in store.below())
    images, _ = cs.load_data("zoo:mnist")
    radii = cs.certify(cs.load_model("zoo:mnist-mlp"), images[:2], p="inf", targets="runner_up", region="box").radius
    assert proved == pytest.approx(sorted(radii))
    assert cleverscore(*model, *few, "--out", ball).returncode == 0
    quick = ("--method", "paper", "--blocks", 12, "--block-size", 4, "--limit", 1, "--attack", "none")
    assert cleverscore(*model, *quick, "--out", tmp_path / "quick").returncode == 0
    for folder, region in ((ball, "ball"), (tmp_path / "quick", "box")):
        with Store.open(folder) as store:
            assert store.meta["config"]["region"] == region
    done = cleverscore("compare", box, ball)
    assert done.returncode == 2 and f"{box} has region box and {ball} has region ball" in done.stderr
    assert cleverscore("report", box, "--out", tmp_path / "box.html").returncode == 0
    page = (tmp_path / "box.html").read_text()
    assert "<dt>region</dt><dd>box</dd>" in page and "--region box" in page


def test_the_command_line_needs_bounds_for_the_box(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).random((2, 6)))
    model = ("score", "tests.bad_models:affine", tmp_path / "data.npz")
    done = cleverscore(*model, "--region", "box", "--out", tmp_path / "run")
    assert done.returncode == 2 and "region='box' needs the bounds" in done.stderr and "--bounds 0,1" in done.stderr
    assert not (tmp_path / "run").exists()
