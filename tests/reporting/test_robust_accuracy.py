"""Robust accuracy: what counts at which epsilon, intervals, tables, JSON, the plot."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import cleverscore as cs
from cleverscore.errors import InputError, SettingError
from cleverscore.estimators.ascent.radial_profile import RadialProfile
from cleverscore.reporting.findings import findings, without_misclassified
from cleverscore.reporting.robust_accuracy import Line, RobustAccuracy, Share, parse_epsilons, robust_accuracy
from cleverscore.runs.store import Store
from cleverscore.scores.score import Score, Scores
from tests.helpers import cleverscore
from tests.stored_runs import add_bounds, made_run


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Score:
    run = made_run(tmp_path_factory.mktemp("one") / "run", inputs=2, norms=("2",))
    with Store.open(run) as store:
        return next(head for head in findings(store).norms[0].known if head.correct)


class Made:
    """Scores with bounds."""

    def __init__(self, rows: list[Score], lower: list[float], upper: list[float]) -> None:
        self.rows, self.lower, self.upper = rows, np.array(lower), np.array(upper)


def scores_of(one: Score, values: list[float], wrong: tuple[int, ...] = (), **fields: object) -> list[Score]:
    labels = [-1 if i in wrong else one.predicted for i in range(len(values))]
    return [
        replace(one, input=i, value=value, capped=value >= one.radius, label=label, **fields)
        for i, (value, label) in enumerate(zip(values, labels, strict=True))
    ]


def shares(found: RobustAccuracy, kind: str, epsilons: list[float]) -> list[float]:
    return [found.at(epsilon)[kind].value for epsilon in epsilons]


def test_misclassified_inputs_count_as_zero_at_every_epsilon(one: Score) -> None:
    rows = scores_of(one, [0.5, 1.0, 2.0, 4.0], wrong=(3,))
    found = robust_accuracy(Made(rows, [0.1, math.nan, 0.5, 3.0], [0.6, 1.5, math.inf, 4.5]))
    assert found.accuracy.value == 0.75 and found.inputs == 4
    grid = [0.0, 0.1, 0.5, 0.6, 1.0, 1.2, 2.0, 2.1]
    # A score or a proof counts up to and with its own length, an attack has changed the class at its length.
    assert shares(found, "certified", grid) == [0.75, 0.5, 0.25, 0, 0, 0, 0, 0]
    assert shares(found, "estimated", grid) == [0.75, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25, 0]
    assert shares(found, "attacked", grid) == [0.75, 0.75, 0.75, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_scores_at_the_radius_count_up_to_the_radius_only(one: Score) -> None:
    rows = scores_of(one, [1.0, one.radius])
    found = robust_accuracy(Made(rows, [0.5, one.radius], [2.0, math.inf]))
    at = found.at(one.radius)
    assert at["estimated"].value == at["certified"].value == at["attacked"].value == 0.5
    beyond = found.at(one.radius * 1.001)
    assert math.isnan(beyond["estimated"].value) and math.isnan(beyond["certified"].value)
    assert beyond["attacked"].value == 0.5
    # Where no score is at the radius it is known that none is robust beyond.
    assert robust_accuracy(Scores((), tuple(scores_of(one, [1.0])))).at(one.radius * 2)["estimated"].value == 0.0


def test_the_nearest_target_counts(one: Score) -> None:
    rows = [replace(one, input=0, target=t, value=v, target_kind="all") for t, v in ((1, 2.0), (2, 1.0))]
    found = robust_accuracy(Made(rows, [0.3, 0.2], [3.0, 1.5]))
    assert [float(line.distances[0]) for line in found.lines] == [0.2, 1.0, 1.5]


def test_sharp_is_the_estimate_where_a_run_has_several_methods(one: Score) -> None:
    profile = RadialProfile(3.0, 2.9, 3.1, np.array([1.0]), (1.0,), 10, "ascended")
    sharp = replace(one.rule, method="sharp")
    rows = scores_of(one, [1.0, 1.0]) + scores_of(one, [3.0, 3.0], rule=sharp, fit=None, profile=profile)
    found = robust_accuracy(Made(rows, [0.5] * 4, [4.0] * 4))
    line = found.line("estimated")
    assert line is not None and line.source == "sharp" and line.distances.tolist() == [3.0, 3.0] and found.inputs == 2
    assert robust_accuracy(Made(rows, [0.5] * 4, [4.0] * 4), method="paper").at(2.0)["estimated"].value == 0.0
    with pytest.raises(InputError, match="no score of the method slope"):
        robust_accuracy(Made(rows, [0.5] * 4, [4.0] * 4), method="slope")


def test_the_interval_is_the_exact_binomial_one() -> None:
    for hits, count in ((0, 10), (7, 10), (10, 10), (37, 60)):
        share = Share.of(hits, count)
        interval = stats.binomtest(hits, count).proportion_ci(0.95, "exact")
        assert (share.low, share.high) == pytest.approx((interval.low, interval.high))
    assert math.isnan(Share.of(0, 0).value)


def test_an_affine_classifier_has_one_curve(tmp_path: Path) -> None:
    """Score, certificate and attack of an affine classifier are its distance, so the three lines agree."""
    torch.manual_seed(0)
    classifier = cs.Classifier(torch.nn.Linear(6, 3), bounds=(-9.0, 9.0))
    images = torch.rand(12, 6)
    labels = classifier(images).argmax(1)
    labels[:3] = (labels[:3] + 1) % 3
    scores = cs.clever(classifier, images, blocks=20, block_size=4, labels=labels.tolist())
    found = robust_accuracy(cs.bracket(classifier, images, scores, attacks=["descent"]))
    assert found.accuracy.value == 0.75
    for epsilon in np.quantile(scores.values[3:], [0.1, 0.5, 0.9]).tolist():
        # The estimate is the distance, a proof is at most that, an attack a little more.
        assert found.at(0.999 * epsilon)["estimated"].value <= found.at(0.99 * epsilon)["certified"].value
        assert found.at(1.1 * epsilon)["attacked"].value <= found.at(epsilon)["estimated"].value
        assert found.at(epsilon)["attacked"].value >= found.at(epsilon)["certified"].value
    axes = cs.plots.robust_accuracy(cs.bracket(classifier, images, scores, attacks=["descent"]))
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [text.split()[0] for text in texts] == ["certified", "estimated", "attacked"] and len(axes.collections) == 3
    assert axes.lines[1].get_ydata()[0] == 0.75
    assert len(cs.plots.robust_accuracy(scores, bands=False).lines) == 1


def test_several_norms_need_a_name(one: Score) -> None:
    rows = [one, replace(one, rule=replace(one.rule, p=math.inf))]
    with pytest.raises(InputError, match="several norms"):
        robust_accuracy(Scores((), tuple(rows)))
    assert robust_accuracy(Scores((), tuple(rows)), p=2.0).inputs == 1
    with pytest.raises(InputError, match="no score in this norm"):
        robust_accuracy(Scores((), tuple(rows)), p=1.0)


def test_epsilons_are_numbers_or_fractions() -> None:
    assert parse_epsilons(["0.5", "8/255", "linf=0.1"]) == {"": [0.5, 8 / 255], "inf": [0.1]}
    for bad in ("x", "1/0", "-1", "inf", "1/x"):
        with pytest.raises(SettingError):
            parse_epsilons([bad])


def test_show_prints_shares_and_json(tmp_path: Path) -> None:
    run = add_bounds(made_run(tmp_path / "run", inputs=14))
    done = cleverscore("show", run, "--at", "0.2", "--at", "inf=8/255", "--at", "9")
    assert done.returncode == 0, done.stderr
    assert "robust accuracy over 14 inputs" in done.stdout and "misclassified inputs count as 0" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()[3:]]
    assert [line[:2] for line in lines] == [["2", "0.2"], ["2", "9"], ["inf", "0.2"], ["inf", "9"], ["inf", "0.03137"]]
    done = cleverscore("show", run, "--json", "--at", "2=0.2")
    summary = json.loads(done.stdout)
    assert summary["accuracy"] == pytest.approx(12 / 14) and summary["misclassified"] == "count as 0"
    two, inf = summary["norms"]
    with Store.open(run) as store:
        found = findings(store)
    norm = found.norms[0]
    right = [head.value for head in norm.known if head.correct]
    assert two["at"][0]["estimated"] == pytest.approx(sum(value >= 0.2 for value in right) / 14)
    assert two["at"][0]["certified"] <= two["at"][0]["estimated"] and "at" not in inf
    assert two["median"]["value"] == pytest.approx(np.median([0.0, 0.0, *right]))
    assert two["methods"]["paper"]["smallest"] == 0.0 and two["attack_median"]["value"] > 0.0
    curve = two["robust_accuracy"]
    assert set(curve["lines"]) == {"certified", "estimated", "attacked"}
    assert len(curve["epsilon"]) == len(curve["lines"]["attacked"]["high"])
    assert without_misclassified(found).accuracy.value == 1.0
    assert without_misclassified(found).norms[0].median.value == pytest.approx(np.median(right))
    bad = cleverscore("show", run, "--at", "1=0.2")
    assert bad.returncode == 2 and "no scores in the norm 1" in bad.stderr


def test_lines_never_rise() -> None:
    generator = np.random.default_rng(0)
    line = Line("estimated", "paper", generator.exponential(1.0, 50), math.inf)
    curve = RobustAccuracy(2.0, 5.0, 50, Share.of(50, 50), (line,))
    for column in curve.curve(line, curve.epsilons()):
        assert (np.diff(column) <= 0.0).all()
