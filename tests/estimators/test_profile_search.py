"""The sharp score: closed forms and brute force first, then what must hold for every network."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.estimators.ascent.crossing_search import TargetSearch
from cleverscore.estimators.ascent.profile_search import most_gradients
from cleverscore.estimators.stop_reason import StopReason
from tests.helpers import affine, affine_distance

NORMS = [1.0, 1.5, 2.0, math.inf]
SEARCHED = (cs.FitOutcome.ASCENDED, cs.FitOutcome.UNSETTLED)


def sharp(model: nn.Module | cs.Classifier, x: torch.Tensor, **options: object) -> cs.Scores:
    classifier = model if isinstance(model, cs.Classifier) else cs.Classifier(model)
    return cs.clever(classifier, x, **{"p": 2, "targets": "runner_up", "method": "sharp", **options})


def network(activation: type[nn.Module] = nn.ReLU, *, dim: int = 12, classes: int = 5, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(dim, 16), activation(), nn.Linear(16, 12), activation(), nn.Linear(12, classes))


def images(count: int = 3, dim: int = 12) -> torch.Tensor:
    return torch.rand(count, dim, generator=torch.Generator().manual_seed(3))


class Bent(nn.Module):
    """An affine classifier that is not recognised as one: ReLU units that are on everywhere near the data."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.relu(x + 1e3) - 1e3)


# --- truth ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", NORMS)
def test_affine_scores_are_exact_distances(p: float) -> None:
    classifier, x = affine(), images(2, 6).double()
    exact = sharp(classifier, x, p=p, targets="all", radius=1e6)
    found = sharp(Bent(classifier.module), x, p=p, radius=50.0)
    for row in exact.rows:
        distance = affine_distance(classifier, x[row.input], row.predicted, row.target, p)
        assert row.value == pytest.approx(distance, rel=1e-6) and not row.capped
        assert row.value == row.low == row.upper and row.outcome is cs.FitOutcome.CONSTANT
    for row in found.rows:
        distance = affine_distance(classifier, x[row.input], row.predicted, row.target, p)
        assert row.value == pytest.approx(distance, rel=1e-2) and row.outcome is cs.FitOutcome.ASCENDED
        assert distance * (1 - 1e-6) <= row.upper <= distance * 1.001


def true_distance(classifier: cs.Classifier, x: torch.Tensor, predicted: int, p: float, upper: float) -> float:
    """The smallest radius at which another class wins, over a grid of 1440 directions in the plane."""
    turns = torch.linspace(0.0, 2.0 * math.pi, 1441, dtype=x.dtype)[:-1]
    directions = torch.stack([turns.cos(), turns.sin()], 1)
    directions = directions / torch.linalg.vector_norm(directions, p, dim=1, keepdim=True)
    for radius in torch.linspace(0.0, upper, 401).tolist()[1:]:
        if bool((classifier(x + radius * directions).argmax(1) != predicted).any()):
            return radius
    return upper


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_scores_in_the_plane_against_brute_force(p: float, activation: type[nn.Module]) -> None:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(2, 24), activation(), nn.Linear(24, 16), activation(), nn.Linear(16, 3)).double()
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.mul_(2.5)  # so that the plane has several curved boundaries
    x = 2.0 * torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    scores = sharp(model, x, p=p, targets="untargeted", radius=20.0)
    assert not any(score.capped for score in scores)
    for i, score in enumerate(scores):
        exact = true_distance(cs.Classifier(model), x[i], score.predicted, p, 1.01 * score.upper)
        assert 0.6 * exact <= score.value <= 1.01 * exact
        assert score.upper >= 0.99 * exact


class Hidden(nn.Module):
    """The margin at x: 4 - x_0 / 2, and below it where x_1 < -0.9, which no gradient at the input shows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        margin = 4.0 - x[:, 0] / 2.0 - 80.0 * torch.relu(-x[:, 1] - 0.9)
        return torch.stack([margin, torch.zeros_like(margin)], 1)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("targets", ["untargeted", "runner_up", "all"])
def test_a_crossing_is_found_that_no_gradient_at_the_input_shows(p: float, targets: str) -> None:
    for seed in range(3):
        (score,) = sharp(Hidden(), torch.zeros(1, 40), p=p, targets=targets, radius=20.0, seed=seed)
        assert score.value <= score.upper <= 0.95 * 1.001


def test_a_search_that_meets_no_crossing_says_so() -> None:
    def island(x: torch.Tensor) -> torch.Tensor:
        """Another class within a small disc around (1, 0), and no gradient elsewhere that would show it."""
        offset = x - torch.tensor([1.0, 0.0])
        margin = 1.0 - 2.0 * torch.exp(-(offset**2).sum(1) / 0.02)
        return 3.0 * torch.stack([margin, torch.zeros_like(margin)], 1)

    for seed in range(3):
        (score,) = cs.clever(cs.Classifier(island), torch.zeros(1, 2), p=2, radius=3.0, method="sharp", seed=seed)
        truth = 1.0 - 0.1 * math.sqrt(2.0 * math.log(2.0))
        assert score.value <= 1.01 * truth or (score.outcome is cs.FitOutcome.UNSETTLED and math.isinf(score.upper))


def test_gradients_in_channels_last_order_are_read_right() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    x = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    plain = sharp(model, x, p=2, targets="untargeted")
    last = sharp(model.to(memory_format=torch.channels_last), x, p=2, targets="untargeted")
    assert last.values == pytest.approx(plain.values, rel=0.01)
    assert (plain.values <= plain.upper).all()


# --- properties ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_columns_of_a_score_fit_together(p: float, activation: type[nn.Module]) -> None:
    scores = sharp(network(activation, dim=40), images(2, 40), p=p, radius=30.0)
    for row in scores.rows:
        profile = row.profile
        assert profile is not None and row.value == profile.distance == row.high
        assert 0.0 <= row.low <= row.value <= row.upper
        assert row.outcome in SEARCHED and row.stopped in (StopReason.SETTLED, StopReason.ALL_STARTS)
        assert not row.capped and profile.falls.sum() == pytest.approx(row.margin, rel=0.02)
        assert row.lipschitz == pytest.approx(row.margin / row.value, rel=0.02)
        assert row.fit is None and math.isnan(row.ks_pvalue) and row.block_size == 0
        # An l2 ball around 40 inputs is searched in the 16 dimensions of the first layer.
        assert 0 < row.gradients <= most_gradients(16 if p == 2.0 else 40)
        assert (row.outcome is cs.FitOutcome.UNSETTLED) == (row.low < 0.9 * row.value)


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_scaled_logits_have_the_same_scores(p: float) -> None:
    model, x = network(nn.Tanh).double(), images(2).double()
    before = sharp(model, x, p=p)
    for scale in (1e-6, 1e6):
        with torch.no_grad():
            model[-1].weight.mul_(scale)
            model[-1].bias.mul_(scale)
        after = sharp(model, x, p=p)
        assert after.values == pytest.approx(before.values, rel=1e-3)
        assert [s.upper for s in after] == pytest.approx([s.upper for s in before], rel=1e-3)


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_the_box_leaves_fewer_ways_out_than_the_ball(p: float) -> None:
    x = images(2)
    for activation in (nn.ReLU, nn.Tanh):
        classifier = cs.Classifier(network(activation, seed=1), bounds=(0.0, 1.0))
        ball, boxed = sharp(classifier, x, p=p), sharp(classifier, x, p=p, region="box")
        assert (boxed.values >= 0.99 * ball.values).all()
    # The nearest class lies below zero, which the box forbids; it is reached by raising the second pixel, farther away.
    linear = nn.Linear(2, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[4.0, -1.0], [0.0, 0.0]]))
        linear.bias.copy_(torch.tensor([0.5, 0.0]))
    cornered = cs.Classifier(Bent(linear), bounds=(0.0, 1.0))
    corner = torch.tensor([[0.0, 0.25]])
    ball, boxed = sharp(cornered, corner, p=p), sharp(cornered, corner, p=p, region="box")
    assert boxed.values == pytest.approx([0.25], rel=0.01)
    assert ball.values == pytest.approx([0.25 / (5.0 if math.isinf(p) else math.sqrt(17.0))], rel=0.01)


def test_a_box_needs_bounds() -> None:
    with pytest.raises(cs.CleverError, match="bounds"):
        sharp(network(), images(1), region="box")


def test_the_radius_cuts_a_score_and_changes_nothing_else() -> None:
    model, x = network(nn.Tanh), images(2)
    free = sharp(model, x, radius=20.0)
    assert not any(score.capped for score in free)
    radii = [0.25 * float(free.values.min()), 0.5 * float(free.values.min()), float(free.values.max()) * 1.5, 20.0]
    by_radius = [sharp(model, x, radius=round(radius * 2**12) / 2**12) for radius in radii]
    for scores in by_radius:
        assert scores.values == pytest.approx(free.values.clip(max=scores[0].radius), rel=1e-6)
    for scores in by_radius[:2]:
        assert all(score.capped and score.value == score.radius for score in scores)
        assert all(score.outcome is cs.FitOutcome.ASCENDED for score in scores) and ">=" in str(scores)
    assert not any(score.capped for score in by_radius[2])


def test_the_low_end_of_a_score_at_the_radius_does_not_ask_how_far_the_crossing_is() -> None:
    torch.manual_seed(0)
    near, far = (
        sharp(Bent(nn.Linear(6, 3)), images(2, 6), radius=radius, targets="untargeted", seed=1)
        for radius in (1e-3, 1e-2)
    )
    for score in (*near, *far):
        assert score.capped and score.upper > 2.0 * score.value
        assert score.low >= 0.97 * score.value and score.outcome is cs.FitOutcome.ASCENDED


def test_a_radius_that_float32_rounds_down_is_still_reached() -> None:
    assert all(score.capped for score in sharp(network(), images(2), p="inf", radius=1e-4))


def test_an_untargeted_score_is_the_smallest_over_targets() -> None:
    for activation in (nn.ReLU, nn.Tanh):
        model, x = network(activation, classes=8), images(2)
        every, smallest = sharp(model, x, targets="all"), sharp(model, x, targets="untargeted")
        assert smallest.values == pytest.approx(every.values, rel=0.01)
        assert not any(row.eliminated for row in every.rows)
        eliminated = [row for row in smallest.rows if row.eliminated]
        assert eliminated and max(row.gradients for row in eliminated) < most_gradients(12)
        for score in smallest:
            assert not score.eliminated and score.stopped in (StopReason.SETTLED, StopReason.ALL_STARTS)
            assert score.value <= min(row.value for row in smallest.rows if row.input == score.input)
            assert score.value <= score.upper <= min(r.upper for r in smallest.rows if r.input == score.input) * 1.6


def test_no_row_is_above_its_crossing() -> None:
    rows = sharp(network(nn.Tanh, classes=10, seed=5), images(2), p=1, targets="untargeted", radius=50.0).rows
    assert all(row.value <= row.upper for row in rows)


def test_of_many_classes_the_far_ones_are_not_searched() -> None:
    model, x = network(nn.Tanh, classes=60), images(1)
    rows = [row for row in sharp(model, x, targets="untargeted").rows if row.target_kind == "all"]
    assert sum(row.gradients <= 1 for row in rows) == 59 - 16
    assert all(row.eliminated for row in rows if row.gradients <= 1)


def test_workers_chunks_and_company_change_nothing() -> None:
    model, x, options = network(nn.Tanh, dim=48), images(3, 48), {"targets": "untargeted", "p": "inf"}
    whole = sharp(model, x, ids=[4, 5, 6], workers=1, **options)
    for again in (
        sharp(model, x, ids=[4, 5, 6], workers=1, **options),
        sharp(model, x, ids=[4, 5, 6], workers=2, **options),
    ):
        assert [row.value for row in again.rows] == [row.value for row in whole.rows]
        np.testing.assert_array_equal([row.low for row in again.rows], [row.low for row in whole.rows])
        assert [row.gradients for row in again.rows] == [row.gradients for row in whole.rows]
    for workers in (1, 2):
        alone = sharp(model, x[1:2], ids=[5], workers=workers, **options)
        # Margins of a batch of one and of three differ in the last bit.
        expected = [row.value for row in whole.rows if row.input == 5]
        assert [row.value for row in alone.rows] == pytest.approx(expected, rel=1e-5)
    chunked = sharp(model, x, ids=[4, 5, 6], chunk_size=7, **options)
    assert chunked.values == pytest.approx(whole.values, rel=5e-3)
    other = sharp(model, x, ids=[4, 5, 6], seed=1, **options)
    assert [row.low for row in other.rows] != [row.low for row in whole.rows]  # other random starts
    assert other.values == pytest.approx(whole.values, rel=0.1)


# --- what ends a search, and what can go wrong ---------------------------------------------------------------------


def test_a_budget_of_gradients_ends_the_search_early() -> None:
    model, x = network(dim=40), images(2, 40)
    poor = sharp(model, x, budget=100)
    full = sharp(model, x)
    assert all(score.stopped == StopReason.BUDGET and score.outcome is cs.FitOutcome.UNSETTLED for score in poor)
    assert all(a.gradients < b.gradients for a, b in zip(poor, full, strict=True))
    assert all(score.value <= score.upper for score in poor)
    rich = sharp(model, x, budget="10m")
    assert rich.values.tolist() == full.values.tolist()


def test_gradients_that_are_not_numbers_give_no_score() -> None:
    broken = cs.Classifier(lambda x: torch.stack([2.0 + x.sum(1).sqrt(), x[:, 0].square()], 1))
    with pytest.warns(cs.CleverWarning, match="NaN or infinite for input 0, target 1"):
        score = sharp(broken, torch.full((1, 3), 0.01))[0]
    assert math.isnan(score.value) and math.isnan(score.low) and score.outcome is cs.FitOutcome.NOT_FINITE


def test_what_is_not_a_number_far_away_spoils_no_score() -> None:
    model, x = network(dim=40), images(2, 40)
    distances = sharp(model, x).values
    far = 30.0 * float(distances.max())

    def broken_far_away(points: torch.Tensor) -> torch.Tensor:
        inside = points.abs().sum(1, keepdim=True) < x.abs().sum(1).max() + far
        return model(points) * torch.where(inside, 1.0, math.nan)

    scores = sharp(broken_far_away, x)
    assert scores.values == pytest.approx(distances, rel=0.1)
    assert all(score.outcome is not cs.FitOutcome.NOT_FINITE for score in scores)


class Steps(nn.Module):
    """Outputs change in steps, and gradients are zero everywhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x) + 0.0 * x


def test_zero_gradients_are_reported() -> None:
    torch.manual_seed(0)
    stepped = nn.Sequential(nn.Linear(12, 16), Steps(), nn.Linear(16, 3))
    flat = cs.Classifier(lambda x: torch.stack([0.0 * x.sum(1) + 3.0, 0.0 * x.sum(1)], 1))
    for model in (stepped, flat):
        with pytest.warns(cs.CleverWarning, match="zero"):
            score = sharp(model, images(1))[0]
        assert score.outcome is cs.FitOutcome.ZERO and score.value <= score.upper
    assert score.capped and math.isinf(score.upper)


def test_an_input_of_the_target_class_has_score_zero() -> None:
    """A tie of two classes: the margin towards the other one is zero."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    with torch.no_grad():
        model[2].weight[1] = model[2].weight[0]
        model[2].bias.copy_(torch.tensor([2.0, 2.0, 0.0]))
    score = sharp(model, images(1, 4))[0]
    assert score.value == score.low == 0.0 and score.outcome is cs.FitOutcome.CONSTANT


class Attention(nn.Module):
    """Four patches of an 8 x 8 image, one layer of attention by the fused function, which has no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.three, self.last = nn.Conv2d(1, 8, 4, 4), nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        query, key, value = self.three(nn.functional.layer_norm(tokens, (8,))).chunk(3, -1)
        tokens = tokens + nn.functional.scaled_dot_product_attention(query, key, value)
        return self.last(tokens.mean(1))


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


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and in use
        return torch.jit.trace(Convolutional().eval(), torch.rand(2, 1, 8, 8))


@pytest.mark.parametrize("make", [Attention, Convolutional, scripted])
def test_first_derivatives_are_enough(make: object) -> None:
    model = make().eval()
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    for score in sharp(model, x, p="inf", radius=10.0):
        assert math.isfinite(score.value) and 0.0 < score.low <= score.value <= score.upper
        assert score.outcome in SEARCHED


class Promising(torch.nn.Module):
    """Class 1 seems near by its gradient at the input and is never reached; class 2 is reached at z_1 = 1."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return 2.0 + torch.stack([torch.ones_like(z[:, 0]), 0.5 * torch.tanh(10.0 * z[:, 0]), z[:, 1]], 1)


@pytest.mark.parametrize("p", [1, 2, "inf"])
def test_a_class_that_only_seems_near_does_not_hide_another(p: object) -> None:
    score = cs.clever(cs.Classifier(Promising(), input_shape=(2,)), torch.zeros(1, 2), p=p, method="sharp", radius=9.0)
    assert score[0].upper == pytest.approx(1.0, abs=1e-3)
    assert score[0].value <= 1.001


class TwoFalls(nn.Module):
    """Class 1 is reached at x = 1. The margin to class 2 falls in two directions, and is zero at y = 1.35."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        x, y = z[:, 0], z[:, 1]
        fall = torch.maximum(0.8 * (-x / 0.3).clamp(0.0, 1.0), (y - 0.7).relu() / 0.65)
        return torch.stack([torch.zeros_like(x), x - 1.0, fall - 1.0], 1)


@pytest.mark.parametrize("targets", ["untargeted", "all"])
def test_no_score_exceeds_the_nearest_crossing_of_its_search(targets: str) -> None:
    scores = cs.clever(cs.Classifier(TwoFalls()), torch.zeros(1, 2), p=2, method="sharp", targets=targets)
    assert scores[0].value <= 1.001
    assert all(row.value <= row.upper for row in scores.rows)


class Island(nn.Module):
    """Class 1 is a small disc at distance .778, and a half-plane far away on the other side."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        square = ((z - torch.tensor([1.0, 0.0])) ** 2).sum(1)
        other = -1.0 - 0.1 * z[:, 0] + 2.0 * torch.exp(-square / 0.08)
        return torch.stack([torch.zeros_like(other), other], 1)


@pytest.mark.parametrize("region", ["ball", "box"])
@pytest.mark.parametrize("radius", [5.0, 50.0])
def test_a_small_region_between_input_and_far_crossing_is_found(region: str, radius: float) -> None:
    classifier = cs.Classifier(Island(), bounds=(-4.0, 4.0))
    for seed in range(3):
        score = cs.clever(classifier, torch.zeros(1, 2), p=2, method="sharp", region=region, radius=radius, seed=seed)
        assert score[0].value == pytest.approx(0.778, abs=0.03)


def test_a_search_without_any_crossing_is_unsettled() -> None:
    class Never(nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return torch.stack([2.0 + 0.0 * z[:, 0], torch.tanh(z[:, 0])], 1)

    score = cs.clever(cs.Classifier(Never()), torch.zeros(1, 2), p=2, method="sharp", radius=3.0)[0]
    assert score.value == 3.0
    assert score.outcome.value == "unsettled"


def test_crossings_keep_their_distances_after_an_ascent_passed_a_nearer_one() -> None:
    target = TargetSearch(margin=1.0)
    for distance in (3.0, 2.0):
        target.take(distance, torch.tensor([distance]), keep=3)
    target.passed = 1.9
    assert target.upper == 1.9
    target.take(1.95, torch.tensor([1.95]), keep=3)
    assert target.upper == 1.9
    assert target.distances == pytest.approx([float(offset) for offset in target.crossings])
