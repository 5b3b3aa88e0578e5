"""One run, several methods: a series for each norm and method, one table, rows told apart by their column."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cleverscore.errors import SettingError
from cleverscore.reporting.findings import findings
from cleverscore.runs.results import StudyConfig, stored_bracket, stored_scores, what_is_missing
from cleverscore.runs.signals import Stop
from cleverscore.runs.store import Store
from tests.runs.studies import INPUTS, run, study

BOTH = {"method": "paper,sharp", "blocks": 12}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both")
    run(folder, made=study(**BOTH), costs=None)
    return folder


def test_series_are_named_by_norm_and_method() -> None:
    config = StudyConfig("made", "drawn", ("l2", "inf"), method="paper,sharp")
    named = {"2": ("l2", "paper"), "inf": ("inf", "paper"), "2/sharp": ("l2", "sharp"), "inf/sharp": ("inf", "sharp")}
    assert config.series() == named
    assert list(config.series("sharp")) == ["2/sharp", "inf/sharp"]
    assert list(StudyConfig("made", "drawn", method="sharp").series()) == ["2"]


def test_each_method_gives_what_it_gives_alone(both: Path, tmp_path: Path) -> None:
    for method in ("paper", "sharp"):
        run(tmp_path / method, made=study(**{**BOTH, "method": method}), costs=None)
        with Store.open(both) as store, Store.open(tmp_path / method) as alone:
            together, single = stored_scores(store, method=method), stored_scores(alone)
        assert together.to_frame().drop(columns="seconds").equals(single.to_frame().drop(columns="seconds"))


def test_the_bracket_holds_all_methods(both: Path) -> None:
    with Store.open(both) as store:
        assert what_is_missing(store) is None
        scores = stored_scores(store)
        bracket = stored_bracket(store, scores)
        found = findings(store)
    assert bracket is not None
    assert bracket.method == "paper" and [other.method for other in bracket.others] == ["sharp"]
    assert len(bracket.of_norm(np.inf).others[0]) == INPUTS
    frame = bracket.to_frame()
    assert frame.groupby("method")["input"].count().to_dict() == {"paper": INPUTS * 2 * 5, "sharp": INPUTS * 2 * 5}
    header, _, first = str(bracket).splitlines()[:3]
    assert header.split() == ["input", "predicted", "target", "norm", "CLEVER", "sharp"]
    assert len(first.split()) == 6
    assert "norm 2, radius 1: medians over 8 inputs: CLEVER" in str(bracket)
    sharp = [head for head in found.norms[0].by_method["sharp"] if head is not None]
    assert [head.method for head in sharp] == ["sharp"] * INPUTS


def test_a_run_that_lacks_a_method_is_unfinished_and_resumes(both: Path, tmp_path: Path) -> None:
    made = study(**BOTH)
    stop = Stop()
    taken = 0

    def after_some(_: int) -> None:
        nonlocal taken
        taken += 1
        stop.asked = taken > 3

    run(tmp_path, made=made, costs=None, stop=stop, on_points=after_some)
    with Store.open(tmp_path) as store:
        assert "unfinished" in (what_is_missing(store) or "")
    run(tmp_path, made=made, costs=None)
    with Store.open(tmp_path) as store, Store.open(both) as whole:
        for method in ("paper", "sharp"):
            assert (
                stored_scores(store, method=method).values.tolist()
                == stored_scores(whole, method=method).values.tolist()
            )


def test_a_method_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingError, match="'sharpest'"):
        study(method="paper,sharpest")
