from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore import tails
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.sampling import target_elimination
from cleverscore.estimators.sampling.target_elimination import Stopping, TargetElimination, checkpoints, gumbel_reach
from cleverscore.estimators.settings import Settings
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.scores.score import score_from


def network(classes: int = 8) -> cs.Classifier:
    torch.manual_seed(2)
    return cs.Classifier(nn.Sequential(nn.Flatten(), nn.Linear(30, 40), nn.Softplus(), nn.Linear(40, classes)))


X = torch.rand(6, 30, generator=torch.Generator().manual_seed(1))
FIXED = {"blocks": 200, "block_size": 16, "radius": 20.0}


def elimination(
    margins: list[float], *, stopping: Stopping, blocks: int = 200, limit: float = math.inf
) -> TargetElimination:
    return TargetElimination(
        range(len(margins)),
        margins,
        limit=limit,
        penalty=0.01,
        level=0.95,
        blocks=blocks,
        block_size=1024,
        stopping=stopping,
    )


def weibull(generator: np.random.Generator, size: tuple[int, ...], shape: float = 4.0) -> np.ndarray:
    return 2.0 - 0.3 * generator.weibull(shape, size)


def test_checkpoints_double() -> None:
    assert checkpoints(500) == [32, 64, 128, 256, 500]
    assert checkpoints(32) == [32] and checkpoints(5) == [5] and checkpoints(33) == [32, 33]


def test_a_clear_loser_is_dropped_at_the_first_look_and_near_ties_run_on() -> None:
    run = elimination([1.0, 1.001, 3.0], stopping=Stopping(0.0, smallest=True))
    run.add(weibull(np.random.default_rng(0), (3, 32)))
    assert run.stopped == ["", "", StopReason.ELIMINATED]
    run.add(weibull(np.random.default_rng(1), (2, 168)))
    assert run.stopped == [StopReason.ALL_BLOCKS, StopReason.ALL_BLOCKS, StopReason.ELIMINATED]
    assert [len(m) for m in run.maxima] == [200, 200, 32]


@pytest.mark.slow
def test_the_winner_is_rarely_dropped() -> None:
    """60 trials of a true minimum against one that is 3% larger: a rule that loses 5% of them would fail in 95%."""
    for seed in range(60):
        run = elimination([1.0, 1.03], stopping=Stopping(0.0, smallest=True))
        generator = np.random.default_rng(seed)
        while run.active:
            run.add(weibull(generator, (len(run.active), run.next_checkpoint() - run.drawn)))
        assert run.stopped[0] != StopReason.ELIMINATED, seed


@pytest.mark.slow
def test_a_race_ends_with_the_smallest_score_of_all_blocks() -> None:
    """Nearly Gumbel maxima, whose end-points move for long: the adaptive minimum is hardly ever 5% above the fixed one.

    A rule for which it is in 5% of eliminations would fail in 87% of such tests of 40.
    """
    margins = np.array([1.0, 1.02, 1.1, 1.3])
    for seed in range(40):
        maxima = weibull(np.random.default_rng(seed), (4, 256), shape=15.0)
        run = elimination(margins.tolist(), stopping=Stopping(0.0, smallest=True), blocks=256)
        while run.active:
            run.add(maxima[run.active, run.drawn : run.next_checkpoint()])
        scores = margins / tails.fit(maxima, penalty=0.01).location
        left = [t for t, drawn in enumerate(run.maxima) if len(drawn) == 256]
        assert scores[left].min() <= 1.05 * scores.min(), seed


@pytest.mark.parametrize(("margin", "out"), [(1.5, False), (4.0, True)])
def test_a_tail_that_may_turn_out_longer_stays_in(margin: float, out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves of 32 blocks agree that both rivals lost; one of them could still win if its maxima were Gumbel ones."""
    maxima = weibull(np.random.default_rng(2), (2, 32), shape=8.0)
    run = elimination([1.0, margin], stopping=Stopping(0.0, smallest=True), blocks=500)
    run.add(maxima)
    assert run.stopped == ["", StopReason.ELIMINATED if out else ""]
    monkeypatch.setattr(target_elimination, "gumbel_reach", lambda blocks, penalty: 0.0)
    run = elimination([1.0, margin], stopping=Stopping(0.0, smallest=True), blocks=500)
    run.add(maxima)
    assert run.stopped == ["", StopReason.ELIMINATED]


def test_how_far_a_gumbel_tail_reaches_is_what_samples_show() -> None:
    samples = np.random.default_rng(5).gumbel(size=(500, 128))
    shares = tails.fit(samples, penalty=0.1).location < gumbel_reach(128, 0.1)
    assert 0.91 < shares.mean() < 0.98


TIED = np.concatenate([np.full((2, 4), 2.0), weibull(np.random.default_rng(2), (2, 28))], 1)


@pytest.mark.parametrize(("margin", "out"), [(1.1, False), (20.0, True)])
def test_repeated_maxima_end_nothing_but_a_target_that_is_far_behind(margin: float, out: bool) -> None:
    """Their interval has no width, but a steeper piece may be hit later."""
    run = elimination([1.0, margin], stopping=Stopping(0.2, smallest=True), blocks=500)
    run.add(TIED)
    assert tails.fit(TIED).outcome.tolist() == [tails.FitOutcome.TIED_MAXIMA] * 2
    assert run.stopped == ["", StopReason.ELIMINATED if out else ""]


@pytest.mark.parametrize("stopping", [Stopping(0.0, smallest=False), Stopping(0.0, smallest=False, threshold=0.4)])
def test_repeated_maxima_decide_nothing(stopping: Stopping) -> None:
    run = elimination([1.0, 1.0], stopping=stopping, blocks=500, limit=0.45)
    run.add(TIED)  # scores of 0.5 if nothing steeper comes
    assert run.stopped == ["", ""]


@pytest.mark.parametrize("reason", [StopReason.ELIMINATED, StopReason.PREFILTERED, StopReason.SKETCHED])
def test_who_is_out_of_the_race_does_not_have_the_smallest_score(reason: str) -> None:
    """A few single points may suggest anything; the head is one of those that stayed in."""
    maxima = weibull(np.random.default_rng(0), (64,))
    settings = Settings(p=2.0, tolerance=0.0)
    item = Measurements(
        0, None, 2, (0, 1), (1.0, 1.0), (maxima, 3.0 * maxima), (64, 1), 0.0, (StopReason.ALL_BLOCKS, reason)
    )
    head, first, second = score_from([item], settings.rule).rows
    assert second.value < first.value == head.value and head.target == 0 and head.low == first.low


def test_a_narrow_interval_stops() -> None:
    run = elimination([1.0], stopping=Stopping(0.2, smallest=False))
    run.add(weibull(np.random.default_rng(0), (1, 64), shape=1.5))
    assert run.stopped == [StopReason.NARROW]
    run = elimination([1.0], stopping=Stopping(1e-6, smallest=False))
    run.add(weibull(np.random.default_rng(0), (1, 64), shape=1.5))
    assert run.stopped == [""]


def test_a_score_at_the_radius_stops_and_equal_maxima_do_not() -> None:
    """A small steep piece of a piecewise linear network may be hit later, for the leader or a rival far behind."""
    run = elimination([100.0, 1.0, 4.0, 9.0], stopping=Stopping(0.2, smallest=True), limit=5.0)
    steady = weibull(np.random.default_rng(0), (32,), shape=1.5)
    run.add(np.stack([steady, np.full(32, 2.0), np.full(32, 2.0), np.zeros(32)]))
    assert run.stopped == [StopReason.AT_RADIUS, "", "", ""]


def test_a_small_steep_piece_is_found_with_and_without_a_race() -> None:
    torch.manual_seed(1)
    layers = (nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        layers[0].weight.mul_(3)
        layers[4].weight.mul_(3)
    classifier, x = cs.Classifier(nn.Sequential(*layers)), torch.rand(2, 2)
    for targets in ("runner_up", "untargeted"):
        fixed, *others = (
            cs.clever(classifier, x, radius=0.5, blocks=100, block_size=64, targets=targets, tolerance=tolerance)
            for tolerance in (None, 0.0, 0.05)
        )
        for scores in others:
            assert scores.values == pytest.approx(fixed.values, rel=1e-5)


def test_elimination_gives_the_fixed_scores_with_fewer_gradients() -> None:
    classifier = network()
    fixed = cs.clever(classifier, X, **FIXED)
    adaptive = cs.clever(classifier, X, tolerance=0.0, **FIXED)
    assert adaptive.values == pytest.approx(fixed.values, rel=0.05)
    used = sum(row.gradients for row in adaptive)
    assert used <= 0.55 * sum(row.gradients for row in fixed)
    for a, b in zip(fixed.rows, adaptive.rows, strict=True):
        if a.target == b.target and a.target_kind == "all":
            assert b.maxima == pytest.approx(a.maxima[: len(b.maxima)], rel=1e-5)
    found = {row.stopped for row in adaptive.rows}
    assert StopReason.ELIMINATED in found and found <= {StopReason.ELIMINATED, StopReason.ALL_BLOCKS, StopReason.NARROW}


def test_adaptive_scores_do_not_depend_on_the_other_inputs_or_chunks() -> None:
    classifier = network()
    settings = {**FIXED, "tolerance": 0.1}
    whole = cs.clever(classifier, X, **settings)
    part = cs.clever(classifier, X[[4, 1]], ids=[4, 1], chunk_size=9, workers=1, **settings)
    assert part.values == pytest.approx(whole.values[[4, 1]], rel=1e-5)
    assert [s.stopped for s in part] == [whole[4].stopped, whole[1].stopped]


def test_targeted_scores_stop_by_their_interval() -> None:
    scores = cs.clever(network(), X, targets="runner_up", tolerance=0.5, **FIXED)
    assert StopReason.NARROW in {score.stopped for score in scores}
    for score in scores:
        if score.stopped == StopReason.NARROW:  # of sampling error; whether the law holds is another question
            ends = tails.interval(score.maxima, tails.law(score.maxima), method="posterior", checkpoints=4)
            assert score.margin / ends.high >= 0.5 * score.value and score.margin / ends.low <= 1.5 * score.value


@pytest.mark.parametrize(
    "wrong",
    [
        *({"tolerance": value} for value in ("0.05", [0.05], {}, 1, -0.1, math.nan, True)),
        *({"blocks": value} for value in ("a", 0, 1.5, None, math.inf)),
        {"seed": "a"},
        {"level": "95%"},
        {"workers": "two"},
        {"chunk_size": "big"},
    ],
    ids=str,
)
def test_settings_that_are_no_numbers_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(cs.CleverError, match=next(iter(wrong))):
        cs.clever(network(), X, **{**FIXED, **wrong})


@pytest.mark.parametrize(
    ("targets", "reason", "said"),
    [
        ((0, 1), StopReason.ALL_BLOCKS, True),
        ((0,), StopReason.ALL_BLOCKS, False),
        ((0, 1), StopReason.BUDGET, False),
    ],
)
def test_elimination_is_advised_only_where_all_targets_got_all_blocks(
    targets: tuple[int, ...], reason: str, said: bool
) -> None:
    maxima = weibull(np.random.default_rng(0), (len(targets), 64), shape=60.0)  # Gumbel-like, so intervals begin at 0
    count = len(targets)
    item = Measurements(
        0, None, 2, targets, (1.0,) * count, tuple(maxima), (64,) * count, 0.0, (reason,) * count,
        gradients=(4096,) * count,
    )  # fmt: skip
    text = str(score_from([item], Settings(p=2.0).rule))
    assert "at most (1)" in text and ("a new run with tolerance 0" in text) is said


def test_a_budget_of_gradients_is_kept_and_shared() -> None:
    budget = 6 * 7 * 16 * 25
    scores = cs.clever(network(), X, targets="all", budget=budget, **FIXED)
    counts = [sum(row.gradients for row in scores.rows if row.input == i) for i in range(6)]
    assert sum(counts) <= budget and max(counts) == min(counts) > 0.9 * budget / 6
    assert {row.stopped for row in scores.rows} == {StopReason.BUDGET}
    assert "budget: it ended before all was drawn or searched for 6 of 6 scores" in str(scores)


def test_a_budget_of_time_is_roughly_kept() -> None:
    settings = {**FIXED, "blocks": 100_000, "block_size": 64}
    began = time.monotonic()
    scores = cs.clever(network(), X, targets="runner_up", budget="1.5s", **settings)
    assert 0.5 < time.monotonic() - began < 15
    assert all(row.stopped == StopReason.BUDGET and len(row.maxima) >= 10 for row in scores.rows)


def test_a_tiny_budget_still_gives_a_fit() -> None:
    scores = cs.clever(network(), X, targets="runner_up", budget=1, **FIXED)
    assert all(len(row.maxima) == 10 for row in scores.rows)


@pytest.mark.parametrize(
    ("text", "gradients", "seconds"), [("2m", math.inf, 120), ("1.5h", math.inf, 5400), (7, 7, math.inf)]
)
def test_budgets_are_read(text: str | int, gradients: float, seconds: float) -> None:
    budget = Budget.parse(text)
    assert (budget.gradients, budget.seconds) == (gradients, seconds)


@pytest.mark.parametrize(
    "settings", [{"budget": "soon"}, {"budget": "0s"}, {"budget": -5}, {"tolerance": -0.1}, {"tolerance": 1}]
)
def test_impossible_stopping_is_refused(settings: dict) -> None:
    with pytest.raises(cs.CleverError, match="give a"):
        cs.clever(network(), X, **{**FIXED, **settings})


def test_released_code_samples_within_its_law() -> None:
    classifier = cs.Classifier(network().module, bounds=(0.0, 1.0))
    scores = cs.clever(classifier, X, p="inf", method="released-code", blocks=20, block_size=16)
    assert {row.method for row in scores.rows} == {"released-code"} and scores[0].radius == 3.0
    ball = cs.LpBall(2.0, 3.0)
    from cleverscore.inputs.balls import ReleasedCodeBall

    offsets = ReleasedCodeBall(math.inf, 3.0).offsets(dim=100, count=256, seed=0, input_id=0, block=0, tile=0)
    lengths = offsets.norm(dim=1) / ball.radius
    # In 100 dimensions the uniform ball has almost all mass at its surface; theirs is about uniform in length.
    assert 0.4 < float(lengths.mean()) < 0.6 and float(lengths.max()) <= 1.0
    where = {"count": 256, "seed": 0, "input_id": 0, "block": 0, "tile": 0}
    for region in ("ball", "box"):  # clipping is part of the law
        points = ReleasedCodeBall(2.0, 3.0, region).points(torch.full((4,), 0.5), bounds=(0.0, 1.0), **where)
        assert points.min() == 0.0 and points.max() == 1.0
    free = ReleasedCodeBall(2.0, 3.0).points(torch.full((4,), 0.5), **where)
    assert free.min() < 0.0 and free.max() > 1.0
    with pytest.raises(cs.CleverError, match="bounds"):
        cs.clever(network(), X, method="released-code", region="box", blocks=2, block_size=2)


def test_released_code_has_no_cap() -> None:
    classifier = cs.Classifier(lambda x: torch.stack([50.0 + x[:, 0], x[:, 1]], 1), bounds=(0.0, 1.0))
    scores = cs.clever(classifier, X, method="released-code", blocks=20, block_size=4)
    assert (scores.values > 30).all() and not any(score.capped for score in scores)
