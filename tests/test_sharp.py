from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore import reasons
from cleverscore.ascent import Summit, largest_gradient_norms
from cleverscore.score import COLUMNS
from cleverscore.sharp import Search, most_gradients
from cleverscore.subjects import Subject
from cleverscore.truth import exact_local_lipschitz, exact_minimum_distortion
from tests.helpers import PlaneReLU, affine, affine_distance
from tests.test_cli import cleverscore, rows

NORMS = [1.0, 1.5, 2.0, 3.0, math.inf]
SHARP = {"method": "sharp"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices gain nothing from threads, and lose much where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(activation: type[nn.Module] = nn.ReLU, *, dim: int = 12, classes: int = 5, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(dim, 16), activation(), nn.Linear(16, 12), activation(), nn.Linear(12, classes))


def images(count: int = 3, dim: int = 12) -> torch.Tensor:
    return torch.rand(count, dim, generator=torch.Generator().manual_seed(3))


# --- truth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("p", NORMS)
def test_affine_scores_are_exact_distances(p: float, shortcut: bool) -> None:
    classifier = affine()
    x = images(3, 6).double()
    scored = classifier if shortcut else cs.Classifier(lambda x: classifier.module(x))
    scores = cs.clever(scored, x, p=p, radius=1e6, **SHARP)
    for row in scores.rows:
        if not row.lost:
            expected = affine_distance(classifier, x[row.input], row.predicted, row.target, p)
            assert row.value == pytest.approx(expected, rel=1e-6) and not row.capped
            assert row.outcome is cs.FitOutcome.CONSTANT and row.stopped == reasons.EXACT
    for i, score in enumerate(scores):
        nearest = min(affine_distance(classifier, x[i], r.predicted, r.target, p) for r in scores.rows if r.input == i)
        assert score.value == pytest.approx(nearest, rel=1e-6)
    capped = cs.clever(scored, x, p=p, radius=float(scores.values.min()) / 2, **SHARP)
    assert capped.values == pytest.approx([scores.values.min() / 2] * 3) and all(score.capped for score in capped)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_plane_relu_profiles_are_those_of_the_cells(p: float) -> None:
    plane = PlaneReLU(seed=1)
    x0 = np.array([0.3, -0.2])
    score = cs.clever(plane.classifier, x0[None], p=p, **SHARP)[0]
    assert score.profile is not None
    for radius, norm in zip(score.profile.radii[1:], score.profile.norms[1:], strict=True):
        values, probabilities = plane.distribution(x0, float(radius), p)
        assert values[probabilities > 3e-2].max() * (1 - 1e-9) <= norm <= values.max() * (1 + 1e-9)
    exact = exact_minimum_distortion(plane.classifier, torch.from_numpy(x0), p=p)
    assert score.value <= 1.01 * exact.high
    assert score.value >= score.profile.self_consistent_radius(score.margin, 5.0)


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_small_relu_networks_against_exact_answers(p: float) -> None:
    """L at least 97% of the exact constant on average; no score above the exact distortion by more than 1%."""
    ratios = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        layers = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
        classifier = cs.Classifier(nn.Sequential(*layers).double())
        x = images(2, 4).double()
        for i, score in enumerate(cs.clever(classifier, x, p=p, targets="runner_up", radius=50.0, **SHARP)):
            distortion = exact_minimum_distortion(classifier, x[i], p=p, targets=[[score.target]], seconds=20)
            assert score.value <= 1.01 * distortion.high
            exact = exact_local_lipschitz(classifier, x[i], p=p, radius=score.value, target=score.target, seconds=20)
            found = largest_gradient_norms(
                classifier, x[i], predicted=score.predicted, targets=[score.target], ball=cs.LpBall(p, score.value)
            )
            assert found.norms[0] <= exact.high * (1 + 1e-6)
            ratios.append(found.norms[0] / exact.low)
    assert np.mean(ratios) >= 0.97


# --- properties ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_chunks_workers_order_and_subsets_change_nothing(p: float) -> None:
    classifier, x, options = cs.Classifier(network(dim=24)), images(3, 24), {"p": p, "targets": "runner_up", **SHARP}
    whole = cs.clever(classifier, x, **options)
    for chunk_size, workers in ((2, 1), (7, 2), (100, 1)):
        again = cs.clever(classifier, x, chunk_size=chunk_size, workers=workers, **options)
        assert again.values == pytest.approx(whole.values, rel=1e-3)
    part = cs.clever(classifier, x[[2, 1]], ids=[2, 1], **options)
    assert part.values == pytest.approx(whole.values[[2, 1]], rel=1e-3)
    assert cs.clever(classifier, x, **options).values.tolist() == whole.values.tolist()
    assert cs.clever(classifier, x, seed=1, **options).values.tolist() != whole.values.tolist()


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scaled_logits_have_the_same_scores(scale: float) -> None:
    model = network().double()
    x = images(3).double()
    before = cs.clever(cs.Classifier(model), x, p="inf", targets="runner_up", **SHARP)
    with torch.no_grad():
        model[-1].weight.mul_(scale)
        model[-1].bias.mul_(scale)
    after = cs.clever(cs.Classifier(model), x, p="inf", targets="runner_up", **SHARP)
    assert after.values == pytest.approx(before.values, rel=1e-6)


def test_a_score_is_margin_over_the_mean_norm_and_rows_say_how_it_came_about() -> None:
    classifier, x = cs.Classifier(network(nn.Softplus)), images(2)
    scores = cs.clever(classifier, x, p=2, targets="runner_up", labels=[0, 1], **SHARP)
    for score in scores:
        assert score.profile is not None
        assert score.value == pytest.approx(score.margin / score.lipschitz)
        assert score.lipschitz <= score.fit.location <= score.fit.sample_max
        assert np.all(np.diff(score.profile.norms) >= 0) and np.all(np.diff(score.profile.radii) > 0)
        assert math.isnan(score.low) and math.isnan(score.high) and math.isnan(score.ks_pvalue)
        assert 0 < score.gradients <= most_gradients(12) and score.seconds > 0
        assert score.outcome is cs.FitOutcome.ASCENDED and score.stopped == reasons.SETTLED
        assert score.value > score.margin / largest(classifier, x[score.input], score, 5.0)  # tighter than one radius
    frame = scores.to_frame()
    assert list(frame.columns) == COLUMNS
    assert set(frame.method) == {"sharp"} and set(frame.blocks) == {0}
    assert "L there" in str(scores) and "95%" not in str(scores)


def largest(classifier: cs.Classifier, x: torch.Tensor, score: cs.Score, radius: float) -> float:
    ball = cs.LpBall(score.p, radius)
    found = largest_gradient_norms(classifier, x, predicted=score.predicted, targets=[score.target], ball=ball)
    return float(found.norms[0])


def test_an_untargeted_score_races_its_targets() -> None:
    classifier, x = cs.Classifier(network(classes=10)), images(4)
    every = cs.clever(classifier, x, p=2, targets="all", **SHARP)
    raced = cs.clever(classifier, x, p=2, **SHARP)
    assert raced.values == pytest.approx(every.values, rel=2e-3)
    lost = [row for row in raced.rows if row.lost]
    assert lost and not any(row.lost for row in every.rows)
    for row in lost:
        assert row.value > raced[row.input].value and row.gradients < most_gradients(12)
    assert np.mean([row.gradients for row in lost]) < most_gradients(12) / 2
    for score in raced:
        assert score.gradients == sum(
            r.gradients for r in raced.rows if r.input == score.input and r.target_kind == "all"
        )
    assert "race: of 9 targets" in str(raced)


def test_a_race_drops_by_the_stated_rule() -> None:
    """More than twice the smallest after the gradient at the input, more than 1.2 times after the first climbs."""
    x = torch.zeros(3, dtype=torch.float64)
    subject = Subject(x, 0, None, 0, (1, 2, 3), (1.0, 1.9, 2.1))
    search = Search(subject, np.ones(3), ball=cs.LpBall(2, 5.0), seed=0, race=True)
    assert search.stopped == ["", "", reasons.LOST]
    starts = search.starts()
    norms = torch.tensor([2.0 if start.target == 0 else 3.0 for start in starts])
    moved = torch.ones(len(starts), dtype=torch.bool)
    search.add(starts, Summit(norms, torch.zeros(len(starts), 3), moved, torch.full((len(starts),), 46)))
    assert search.scores[:2] == pytest.approx([1 / 2, 1.9 / 3]) and search.stopped[1] == reasons.LOST
    assert search.active == [0] and search.profiles()[1].gradients == search.profiles()[0].gradients
    patient = Search(subject, np.ones(3), ball=cs.LpBall(2, 5.0), seed=0, race=False)
    assert patient.active == [0, 1, 2]


def test_tolerance_and_budget_end_the_search() -> None:
    classifier, x = cs.Classifier(network(seed=2)), images(2)
    patient = cs.clever(classifier, x, p="inf", targets="runner_up", tolerance=0.0, **SHARP)
    hasty = cs.clever(classifier, x, p="inf", targets="runner_up", tolerance=0.5, **SHARP)
    assert (patient.values <= hasty.values).all()
    assert sum(s.gradients for s in patient) > sum(s.gradients for s in hasty)
    poor = cs.clever(classifier, x, p="inf", targets="runner_up", budget=10, **SHARP)
    assert all(score.stopped == reasons.BUDGET and score.outcome is cs.FitOutcome.UNSETTLED for score in poor)
    timed = cs.clever(classifier, x, p="inf", targets="runner_up", budget="10m", **SHARP)
    assert timed.values == pytest.approx(cs.clever(classifier, x, p="inf", targets="runner_up", **SHARP).values)


def test_a_ball_clipped_to_the_box_gives_scores_no_smaller() -> None:
    model, x = network(nn.Softplus, seed=1), images(3)
    free = cs.clever(cs.Classifier(model, bounds=(0.0, 1.0)), x, p="inf", targets="runner_up", **SHARP)
    boxed = cs.clever(cs.Classifier(model, bounds=(0.0, 1.0)), x, p="inf", targets="runner_up", region="box", **SHARP)
    assert (boxed.values >= free.values * (1 - 1e-3)).all() and (boxed.values > free.values * 1.001).any()
    with pytest.raises(cs.CleverError, match="bounds"):
        cs.clever(cs.Classifier(model), x, p="inf", region="box", **SHARP)


class Convolutional(nn.Module):
    """Overlapping pools, batch normalisation and functions in a forward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3)
        self.norm, self.last = nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.first(x)), 3, 2, 1)
        x = self.norm(self.second(x)).clamp(0.0, 1.0)
        return self.last(nn.functional.max_pool2d(x, 2, 1).flatten(1))


def test_convolutions_pools_and_custom_forwards_climb() -> None:
    model = Convolutional().eval()
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    for p in (2.0, math.inf):
        scores = cs.clever(cs.Classifier(model), x, p=p, targets="runner_up", **SHARP)
        assert all(score.outcome in (cs.FitOutcome.ASCENDED, cs.FitOutcome.UNSETTLED) for score in scores)
        assert all(s.profile is not None and s.profile.norms[-1] > 1.05 * s.profile.norms[0] for s in scores)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=4096)},)).module()
    again = cs.clever(cs.Classifier(lambda x: exported(x)), x, p=math.inf, targets="runner_up", **SHARP)
    assert again.values == pytest.approx(scores.values, rel=0.02)


# --- what can go wrong ---------------------------------------------------------------------------------------------


class Stepped(torch.autograd.Function):
    """A ReLU of somebody's own, whose second derivative torch cannot know."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0.0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0] > 0)


def test_a_network_without_second_derivatives_is_said_to_have_no_direction() -> None:
    first, last = nn.Linear(12, 16), nn.Linear(16, 3)
    classifier = cs.Classifier(lambda x: last(Stepped.apply(first(x))))
    scores = cs.clever(classifier, images(2), p=2, targets="runner_up", **SHARP)
    assert all(score.outcome is cs.FitOutcome.NO_DIRECTION for score in scores)
    assert "method='paper'" in str(scores)


def test_flat_and_broken_gradients_are_reported() -> None:
    flat = cs.Classifier(lambda x: torch.stack([0.0 * x.sum(1) + 3.0, 0.0 * x.sum(1)], 1))
    with pytest.warns(cs.CleverWarning, match="zero"):
        scores = cs.clever(flat, images(1), p=2, **SHARP)
    assert scores[0].capped and scores[0].outcome is cs.FitOutcome.ZERO
    broken = cs.Classifier(lambda x: torch.stack([2.0 + x.sum(1).sqrt(), x[:, 0].square()], 1))
    with pytest.warns(cs.CleverWarning, match="NaN or infinite for input 0, target 1"):
        scores = cs.clever(broken, torch.full((1, 3), 0.01), p=2, **SHARP)
    assert math.isnan(scores[0].value) and scores[0].outcome is cs.FitOutcome.NOT_FINITE


def test_plots_show_the_profile_and_refuse_a_tail() -> None:
    scores = cs.clever(cs.Classifier(network()), images(2), p=2, targets="runner_up", **SHARP)
    axes = cs.plots.profile(scores[0])
    assert "radius" in axes.get_xlabel() and len(axes.get_legend().get_texts()) == 3
    cs.plots.bars(scores.heads)
    with pytest.raises(cs.CleverError, match=r"plots\.profile"):
        cs.plots.tail(scores[0])
    sampled = cs.clever(cs.Classifier(network()), images(1), blocks=12, block_size=8)
    with pytest.raises(cs.CleverError, match=r"plots\.tail"):
        cs.plots.profile(sampled[0])


def test_the_estimate_is_an_upper_bound_of_the_gradients() -> None:
    classifier, x = cs.Classifier(network()), images(3)
    cost = cs.estimate(classifier, x, p=2, method="sharp")
    scores = cs.clever(classifier, x, p=2, **SHARP)
    assert cost.gradients == 3 * 4 * most_gradients(12) >= sum(score.gradients for score in scores)


# --- command line --------------------------------------------------------------------------------------------------

COMMAND = ["score", "zoo:mnist-mlp", "zoo:mnist", "--method", "sharp", "--norm", 2, "--norm", "inf"]


def test_a_run_is_kept_shown_exported_and_resumed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [*COMMAND, "--targets", "runner_up", "--limit", 3, "--out", run]
    done = cleverscore(*command)
    assert done.returncode == 0, done.stderr
    assert "ascended" in done.stdout and "gradients" in done.stdout
    assert cleverscore("show", run).stdout == done.stdout
    blocked = cleverscore(*COMMAND, "--limit", 1, "--blocks", 7, "--out", tmp_path / "blocked")
    assert "have no meaning for --method sharp" in blocked.stderr and blocked.returncode == 0
    assert "method sharp" in cleverscore("show", run).stderr and "blocks" not in cleverscore("show", run).stderr
    table = rows(run)
    assert list(table.columns) == COLUMNS and len(table) == 6 and set(table.method) == {"sharp"}
    assert table.score_low.isna().all() and (table.gradients < 512_000 / 100).all()
    text = cleverscore("export", run, "--format", "json").stdout
    parsed = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert all(row["score_low"] is None for row in parsed["rows"])
    assert [row["score"] for row in parsed["rows"]] == pytest.approx(table.score.tolist())
    out = run / "rows.parquet"
    assert cleverscore("export", run, "--format", "parquet", "--out", out).returncode == 0
    assert pd.read_parquet(out).score.tolist() == pytest.approx(table.score.tolist())
    again = cleverscore(*command)
    assert again.returncode == 0 and "6 of 6 scores are there already" in again.stderr and again.stdout == done.stdout
    other = cleverscore("score", "zoo:mnist-mlp", "zoo:mnist", *command[5:])
    assert other.returncode == 2 and "method: 'sharp' then, 'paper' now" in other.stderr


def test_an_untargeted_part_with_other_chunks_agrees(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert cleverscore(*COMMAND[:7], "--index", "2,3", "--out", whole).returncode == 0
    options = ["--index", 3, "--chunk-size", 40, "--workers", 1]
    assert cleverscore(*COMMAND[:7], *options, "--out", part).returncode == 0
    a, b = rows(whole), rows(part)
    a = a[a.input == 3].reset_index(drop=True)
    heads = a.target_kind == "untargeted"
    assert b[heads].score.tolist() == pytest.approx(a[heads].score.tolist(), rel=2e-3)
    assert a.target.tolist() == b.target.tolist()
    assert set(a.stopped) >= {reasons.LOST, reasons.SETTLED}
