"""Plots draw the numbers they are given, on axes that are returned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import cleverscore as cs
from cleverscore.errors import InputError
from cleverscore.runs.results import stored_scores
from cleverscore.runs.store import Store
from tests.stored_runs import made_run


@dataclass(frozen=True)
class Bracket:
    rows: tuple
    lower: np.ndarray
    upper: np.ndarray


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> cs.Scores:
    run = made_run(tmp_path_factory.mktemp("plots") / "run", inputs=14, norms=("2",), blocks=100)
    with Store.open(run) as store:
        return stored_scores(store)


@pytest.fixture(scope="module")
def bracket(scores: cs.Scores) -> Bracket:
    values = scores.values
    upper = values * np.where(np.arange(len(values)) % 5 == 0, 0.8, 1.6)
    upper[3] = np.inf
    return Bracket(tuple(scores), values * 0.4, upper)


def test_quantiles_are_those_of_the_fitted_law(scores: cs.Scores) -> None:
    axes = cs.plots.quantiles(scores[0])
    x, y = axes.lines[1].get_data()
    fit = scores[0].fit
    assert y.tolist() == sorted(scores[0].maxima.tolist())
    law = stats.weibull_max(fit.shape, loc=fit.location, scale=fit.scale)
    assert law.cdf(x) == pytest.approx((np.arange(100) + 0.5) / 100)


def test_convergence_ends_at_the_score(scores: cs.Scores) -> None:
    axes = cs.plots.convergence(scores[0])
    x, y = axes.lines[0].get_data()
    assert list(x) == [16, 32, 64, 100] and y[-1] == pytest.approx(scores[0].value)


def test_stability_is_drawn_from_merged_blocks(scores: cs.Scores) -> None:
    score = next(score for score in scores if score.outcome.has_law)
    axes = cs.plots.stability(score)
    x, y = axes.lines[0].get_data()
    assert list(x) == [score.block_size * k for k in (1, 2, 4)]
    assert y.tolist() == cs.tails.stability(score.maxima).location.tolist()
    assert axes.lines[1].get_ydata()[0] == score.fit.location and axes.lines[2].get_ydata()[0] == score.maxima.max()
    assert f"{score.fit.drift:+.2%} per doubling" in axes.lines[0].get_label()


def test_brackets_are_drawn_in_order(bracket: Bracket) -> None:
    axes = cs.plots.brackets(bracket)
    points, crosses = axes.lines[0].get_ydata(), axes.lines[1].get_ydata()
    assert list(points) == sorted(points) and len(crosses) == len(points) - 1  # one attack failed
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(sorted(bracket.lower))
    assert "above the attack (3)" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_gaps_are_a_distribution(bracket: Bracket) -> None:
    (line, _) = cs.plots.gaps(bracket).lines
    x, y = line.get_data()
    assert y[0] == 0.0 and y[-1] == 1.0 and (np.diff(x) >= 0).all()
    assert sorted({round(v, 6) for v in x}) == [-0.25, 0.375]
    nothing = Bracket(bracket.rows, bracket.lower, np.full(len(bracket.rows), np.nan))
    with pytest.raises(InputError, match="no attack"):
        cs.plots.gaps(nothing)


def test_the_heat_map_holds_medians(scores: cs.Scores) -> None:
    axes = cs.plots.classes(scores, names=["a", "b", "c", "d", "e"])
    table = np.asarray(axes.images[0].get_array().filled(np.nan))
    row = [text.get_text() for text in axes.get_yticklabels()].index("abcde"[scores[0].predicted])
    column = [text.get_text() for text in axes.get_xticklabels()].index("abcde"[scores[0].target])
    same = [
        s.value
        for s in scores.rows
        if (s.predicted, s.target, s.target_kind) == (scores[0].predicted, scores[0].target, "all")
    ]
    assert table[row, column] == pytest.approx(np.median(same))


def test_axes_of_a_figure_of_yours_are_used(scores: cs.Scores, bracket: Bracket) -> None:
    from matplotlib.figure import Figure

    for draw, what in (
        (cs.plots.quantiles, scores[0]),
        (cs.plots.convergence, scores[0]),
        (cs.plots.brackets, bracket),
        (cs.plots.gaps, bracket),
        (cs.plots.classes, scores),
        (cs.plots.tail, scores[0]),
        (cs.plots.bars, list(scores)),
    ):
        axes = Figure().subplots()
        assert draw(what, axes) is axes


def test_what_cannot_be_drawn_is_refused(scores: cs.Scores) -> None:
    for draw in (cs.plots.quantiles, cs.plots.convergence, cs.plots.stability, cs.plots.tail):
        with pytest.raises(InputError, match="scores\\[0\\]"):
            draw(scores)


def test_all_plots_can_be_saved(scores: cs.Scores, bracket: Bracket, tmp_path: Path) -> None:
    for name, axes in (
        ("quantiles", cs.plots.quantiles(scores[0])),
        ("convergence", cs.plots.convergence(scores[0])),
        ("stability", cs.plots.stability(scores[0])),
        ("brackets", cs.plots.brackets(bracket)),
        ("gaps", cs.plots.gaps(bracket)),
        ("classes", cs.plots.classes(scores)),
    ):
        axes.figure.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
