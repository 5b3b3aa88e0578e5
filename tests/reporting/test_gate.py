"""The gate: exit codes, the line, JUnit XML."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from cleverscore.reporting.gate import Check, write_junit
from cleverscore.runs.store import Store
from cleverscore.runs.study import stored_scores
from tests.cli.test_cli import cleverscore
from tests.stored_runs import add_bounds, made_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("gate") / "run", inputs=15)


def values(run: Path, p: float) -> list[float]:
    """Scores of the inputs that are classified correctly."""
    with Store.open(run) as store:
        return sorted(head.value for head in stored_scores(store) if head.p == p and head.correct)


def test_thresholds_decide_the_exit_code(run: Path) -> None:
    two, inf = values(run, 2.0), values(run, float("inf"))
    # Three of 15 inputs are misclassified and count as 0: the eighth smallest is the fifth of the others.
    median, smallest, right = two[4], two[0], "--exclude-misclassified"
    assert len(two) == 12
    for options, code in (
        (["--min-median", f"2={median * 0.999}"], 0),
        (["--min-median", f"2={median * 1.001}"], 1),
        (["--min-score", f"2={smallest * 0.999}"], 1),
        (["--min-score", f"2={smallest * 0.999}", right], 0),
        (["--min-score", f"2={smallest * 1.001}", right], 1),
        (["--min-median", f"2={(two[5] + two[6]) / 2 * 0.999}", right], 0),
        (["--min-median", median * 0.999], 1),  # for every norm, and those of linf are smaller
        (["--min-median", median * 0.999, "--min-median", f"inf={inf[4] * 0.999}"], 0),
        (["--min-score", inf[0] * 0.999, right], 0),
    ):
        done = cleverscore("gate", run, *options)
        assert done.returncode == code, (options, done.stdout, done.stderr)
        assert done.stdout.startswith("PASS" if code == 0 else "FAIL") and len(done.stdout.splitlines()) == 1


def test_bad_input_is_exit_code_two(run: Path, tmp_path: Path) -> None:
    for options, words in (
        ([], "nothing to check"),
        (["--min-median", "x"], "write a number"),
        (["--min-median", "1=0.3"], "no scores in the norm 1"),
        (["--min-score", "-1"], "at least 0"),
        (["--max-violations", "0.1"], "--attack"),
        (["--baseline", tmp_path / "none"], "holds no run"),
    ):
        done = cleverscore("gate", run, *options)
        assert done.returncode == 2 and words in done.stderr, done.stderr


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", inputs=3)
    with Store.open(run, write=True) as store, store._connection:
        store._connection.execute("DELETE FROM parts WHERE input = 1")
    done = cleverscore("gate", run, "--min-score", 0)
    assert done.returncode == 2 and "not finished" in done.stderr


def test_a_run_whose_attacks_are_not_done_is_unfinished(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", inputs=3)
    with Store.open(run, write=True) as store:
        store.remember("bounds", {"asked": ["best", "crown"], "complete": False})
    done = cleverscore("gate", run, "--min-score", 0)
    assert done.returncode == 2 and "not all bounds that were asked for (best, crown)" in done.stderr
    assert "not all bounds" in cleverscore("show", run).stderr
    with Store.open(run, write=True) as store:
        store.remember("bounds", {"asked": ["best", "crown"], "complete": True})
    assert cleverscore("gate", run, "--min-score", 0).returncode == 0


def test_violations_are_counted(tmp_path: Path) -> None:
    run = add_bounds(made_run(tmp_path / "run", inputs=15))
    # Of inputs 0 to 14, attacks failed for 4 and 13, and 0, 5 and 10 score above theirs: 3 of 13.
    assert cleverscore("gate", run, "--max-violations", 3 / 13 + 1e-9).returncode == 0
    failed = cleverscore("gate", run, "--max-violations", 3 / 13 - 1e-3)
    assert failed.returncode == 1 and "23.1% of attacked inputs" in failed.stderr


def test_a_baseline_that_is_more_robust_fails_the_gate(tmp_path: Path) -> None:
    base = made_run(tmp_path / "base", inputs=40, model="a", noise_seed=1)
    worse = made_run(tmp_path / "worse", inputs=40, model="b", noise_seed=2, factor=0.7)
    same = made_run(tmp_path / "same", inputs=40, model="c", noise_seed=3)
    assert cleverscore("gate", worse, "--baseline", base).returncode == 1
    assert cleverscore("gate", same, "--baseline", base).returncode == 0
    assert cleverscore("gate", base, "--baseline", worse).returncode == 0


def test_junit_has_a_case_per_check(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "gate.xml"
    done = cleverscore("gate", run, "--min-median", "2=0", "--min-score", "inf=9", "--junit", out)
    assert done.returncode == 1
    suite = ElementTree.parse(out).getroot()[0]
    assert suite.get("tests") == "2" and suite.get("failures") == "1"
    failures = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failures == ["linf smallest score"]


def test_junit_survives_any_name(tmp_path: Path) -> None:
    out = tmp_path / "gate.xml"
    write_junit([Check("a<b>&\x00\x1b", False, '"]]>\ud800')], "run\x07", out)
    (case,) = ElementTree.parse(out).getroot()[0]
    assert case.get("name") == "a<b>&\ufffd\ufffd" and case.get("classname") == "run\ufffd"
