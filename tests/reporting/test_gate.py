"""The gate: exit codes, the line, JUnit XML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import cleverscore as cs
from cleverscore.errors import SettingError
from cleverscore.reporting.findings import findings
from cleverscore.reporting.gate import Check, Result, parse_drop, parse_robust, parse_share
from cleverscore.reporting.junit import write_junit
from cleverscore.runs.add_bounds import Bounds, run_bounds
from cleverscore.runs.results import StudyConfig, stored_scores
from cleverscore.runs.schema import StoredBlocks
from cleverscore.runs.store import Store
from cleverscore.runs.study import Study
from tests.helpers import cleverscore
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
    same_again = cleverscore("gate", same, "--baseline", base)
    assert same_again.returncode == 0 and same_again.stdout.startswith("UNDECIDED")
    assert cleverscore("gate", same, "--baseline", base, "--strict").returncode == 1
    assert cleverscore("gate", base, "--baseline", worse).returncode == 0


def test_junit_has_a_case_per_check(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "gate.xml"
    done = cleverscore("gate", run, "--min-median", "2=0", "--min-score", "inf=9", "--junit", out)
    assert done.returncode == 1
    suite = ElementTree.parse(out).getroot()[0]
    assert suite.get("tests") == "2" and suite.get("failures") == "1"
    failures = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failures == ["linf smallest score (paper)"]


def test_an_undecided_check_is_skipped_in_junit(tmp_path: Path) -> None:
    made = [Check("a", Result.UNDECIDED, "few inputs"), Check("b", Result.PASS, ""), Check("c", Result.FAIL, "")]
    write_junit(made, "run", tmp_path / "gate.xml")
    suite = ElementTree.parse(tmp_path / "gate.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert suite[0].find("skipped").get("message") == "undecided: few inputs"
    write_junit(made, "run", tmp_path / "strict.xml", strict=True)
    suite = ElementTree.parse(tmp_path / "strict.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("2", "0")


def useless(name: str) -> torch.nn.Module:
    """Classifiers that no gate may let pass, beside one that is right."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(5) * 4.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if name == "constant":
                return x @ (0.0 * self.weight) + torch.tensor([9.0, 0.0, 0.0, 0.0, 0.0])
            if name == "near":
                return x @ (self.weight + 0.5 * self.weight.roll(1, dims=1))
            if name == "random":
                generator = torch.Generator().manual_seed(3)
                return x @ torch.randn(5, 5, generator=generator)
            logits = x @ self.weight
            return logits.roll(1, dims=1) if name == "shifted" else logits

    return Model()


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of four classifiers of the same 30 points, near the corners of a simplex, with attacks."""
    folder = tmp_path_factory.mktemp("classifiers")
    generator = np.random.default_rng(0)
    labels = np.arange(30) % 5
    points = (np.eye(5)[labels] + generator.uniform(-0.2, 0.2, (30, 5))).astype(np.float32)
    for name in ("right", "constant", "random", "shifted"):
        classifier = cs.Classifier(useless(name), bounds=(-1.0, 2.0))
        config = StudyConfig(
            name, "points", blocks=16, block_size=4, model_fingerprint=name, data_fingerprint="points"
        )  # fmt: skip
        study = Study(config, classifier, points, labels, range(30))
        with study.open_store(folder / name) as store:
            study.run(store)
            run_bounds(study, store, Bounds(("descent",), ()))
    return {name: folder / name for name in ("right", "constant", "random", "shifted")}


@pytest.mark.parametrize("name", ["constant", "random", "shifted"])
def test_a_useless_classifier_fails_every_gate(classifiers: dict[str, Path], name: str, tmp_path: Path) -> None:
    right = classifiers["right"]
    for options in (
        ["--min-median", 0.01],
        ["--min-score", 0.01],
        ["--max-violations", 0.5],
        ["--min-accuracy", "80%"],
        ["--min-robust-accuracy", "0.5@0.01"],
        ["--baseline", right],
        ["--baseline", right, "--max-drop", "10%"],
    ):
        done = cleverscore("gate", classifiers[name], *options, "--junit", tmp_path / "gate.xml")
        assert done.returncode == 1 and done.stdout.startswith("FAIL"), (options, done.stdout, done.stderr)
        assert int(ElementTree.parse(tmp_path / "gate.xml").getroot()[0].get("failures", 0)) >= 1
        passed = cleverscore("gate", right, *options)
        assert passed.returncode == 0, (options, passed.stdout, passed.stderr)


def test_the_drop_against_a_baseline(tmp_path: Path) -> None:
    base = made_run(tmp_path / "base", inputs=60, model="a", noise_seed=1)
    worse = made_run(tmp_path / "worse", inputs=60, model="b", noise_seed=2, factor=0.85)
    equal = made_run(tmp_path / "equal", inputs=60, model="c", noise_seed=3)
    limit = ["--max-drop", "10%", "--exclude-misclassified"]
    failed = cleverscore("gate", worse, "--baseline", base, *limit)
    assert failed.returncode == 1 and "drop against the baseline" in failed.stdout, failed.stderr
    assert cleverscore("gate", worse, "--baseline", base, "--max-drop", "25%").returncode == 0
    passed = cleverscore("gate", equal, "--baseline", base, *limit)
    assert passed.returncode == 0 and passed.stdout.startswith("PASS"), passed.stderr
    again = cleverscore("gate", base, "--baseline", base, "--max-drop", "0%")
    assert again.returncode == 0 and again.stdout.startswith("PASS")
    # Ten inputs whose scores have nothing to do with each other.
    few = made_run(tmp_path / "few", inputs=10, model="d", seed=5)
    base = made_run(tmp_path / "few-base", inputs=10, model="e", seed=6)
    unclear = cleverscore("gate", few, "--baseline", base, *limit, "--junit", tmp_path / "gate.xml")
    assert unclear.returncode == 0 and unclear.stdout.startswith("UNDECIDED"), unclear.stderr
    assert ElementTree.parse(tmp_path / "gate.xml").getroot()[0].get("skipped") == "2"
    assert cleverscore("gate", few, "--baseline", base, *limit, "--strict").returncode == 1
    needs = cleverscore("gate", few, "--max-drop", "10%")
    assert needs.returncode == 2 and "--baseline" in needs.stderr


def test_the_checks_name_the_method_that_is_judged(tmp_path: Path) -> None:
    labels = np.arange(10) % 5
    points = (np.eye(5)[labels] + np.random.default_rng(0).uniform(-0.2, 0.2, (10, 5))).astype(np.float32)
    config = StudyConfig("right", "points", blocks=16, block_size=4, method="paper,sharp", data_fingerprint="points")
    study = Study(config, cs.Classifier(useless("right"), bounds=(-1.0, 2.0)), points, labels, range(10))
    with study.open_store(tmp_path / "run") as store:
        study.run(store)
        run_bounds(study, store, Bounds(("descent",), ()))
    options = ["--min-median", 0, "--min-score", 0, "--max-violations", 1, "--baseline", tmp_path / "run"]
    done = cleverscore("gate", tmp_path / "run", *options, "--max-drop", "10%", "--junit", tmp_path / "gate.xml")
    names = [case.get("name") for case in ElementTree.parse(tmp_path / "gate.xml").getroot()[0]]
    assert names == [
        "l2 median score (sharp)",
        "l2 smallest score (sharp)",
        "l2 scores (sharp) above the attack",
        "l2 mean score (sharp), drop against the baseline",
        "l2 mean of the best attack, drop against the baseline",
    ]
    assert all(f": {name}: " in done.stderr for name in names), done.stderr
    words = " ".join(cleverscore("gate", "--help").stdout.split())
    assert "scores of sharp are judged if it is one of them, else those of the first method; no option" in words


def test_the_drop_of_the_median_is_not_that_of_the_mean(tmp_path: Path) -> None:
    """Two fifths of the inputs, those with the smallest scores, lose nearly everything: the median hardly moves."""
    base = add_bounds(made_run(tmp_path / "base", inputs=60, model="a", norms=("2",)), certified=False)
    new = add_bounds(made_run(tmp_path / "new", inputs=60, model="b", norms=("2",)), certified=False)
    with Store.open(new, write=True) as store:
        small = sorted((head.counted, head.input) for head in stored_scores(store))[:24]
        for measured in store.measurements("2", inputs=[i for _, i in small]):
            less = replace(measured, margins=tuple(margin * 0.05 for margin in measured.margins))
            store.forget([(measured.input_id, "2")])
            store.append([StoredBlocks("2", less)])
    mean = cleverscore("gate", new, "--baseline", base, "--max-drop", "5%")
    assert mean.returncode == 1 and "FAIL: l2 mean score (paper), drop" in mean.stderr, mean.stderr
    assert cleverscore("gate", new, "--baseline", base, "--max-drop", "mean:5%").stderr == mean.stderr
    median = cleverscore("gate", new, "--baseline", base, "--max-drop", "median:5%")
    assert "PASS: l2 median score (paper), drop" in median.stderr or "UNDECIDED: l2 median score" in median.stderr
    assert "l2 median of the best attack, drop against the baseline: median " in median.stderr, median.stderr
    wrong = cleverscore("gate", new, "--baseline", base, "--max-drop", "worst:5%")
    assert wrong.returncode == 2 and "median:SHARE or mean:SHARE" in wrong.stderr


def test_a_baseline_of_other_inputs_is_said(tmp_path: Path) -> None:
    base = made_run(tmp_path / "base", inputs=9, model="a", norms=("2",))
    run = made_run(tmp_path / "run", inputs=20, model="b", norms=("2",))
    whole = made_run(tmp_path / "whole", inputs=20, model="c", norms=("2",))
    for options in ([], ["--max-drop", "10%"]):
        done = cleverscore("gate", run, "--baseline", base, *options)
        assert "; compared on 9 of 20 inputs (the baseline has 9)" in done.stderr, done.stderr
        assert "compared on" not in cleverscore("gate", run, "--baseline", whole, *options).stderr


def test_attacks_of_runs_with_other_bounds_are_not_compared(tmp_path: Path) -> None:
    free = add_bounds(made_run(tmp_path / "free", inputs=20, model="a", norms=("2",), used={"bounds": None}))
    boxed = add_bounds(made_run(tmp_path / "boxed", inputs=20, model="b", norms=("2",), noise_seed=2))
    words = "the baseline has no input bounds, this run has input bounds 0 to 1, so attacks are not compared"
    done = cleverscore("gate", boxed, "--baseline", free)
    assert words in done.stderr and "best attack" not in done.stderr and "attacked" not in done.stderr, done.stderr
    drop = cleverscore("gate", boxed, "--baseline", free, "--max-drop", "50%")
    score, attack = drop.stderr.splitlines()
    assert score.startswith("PASS: l2 mean score (paper)") and words in score
    assert attack.startswith("UNDECIDED: l2 mean of the best attack") and words in attack
    assert "input bounds" not in cleverscore("gate", boxed, "--baseline", boxed, "--max-drop", "50%").stderr


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of the same 12 points by different methods; the classifier "near" is less robust than "right"."""
    folder = tmp_path_factory.mktemp("methods")
    labels = np.arange(12) % 5
    points = (np.eye(5)[labels] + np.random.default_rng(0).uniform(-0.1, 0.1, (12, 5))).astype(np.float32)
    for name, model, method in (
        ("both", "right", "paper,sharp"),
        ("turned", "right", "sharp,paper"),
        ("sampled", "right", "paper"),
        ("sampled-near", "near", "paper"),
        ("searched", "right", "sharp"),
        ("searched-near", "near", "sharp"),
        ("slopes", "right", "slope,paper"),
    ):
        config = StudyConfig(
            model, "points", blocks=16, block_size=4, method=method, model_fingerprint=model, data_fingerprint="points"
        )
        study = Study(config, cs.Classifier(useless(model), bounds=(-1.0, 2.0)), points, labels, range(12))
        with study.open_store(folder / name) as store:
            study.run(store)
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("run", "baseline", "method", "words"),
    [
        ("searched-near", "both", "sharp", "the baseline has paper and sharp, this run sharp"),
        ("searched-near", "turned", "sharp", "the baseline has sharp and paper, this run sharp"),
        ("sampled-near", "both", "paper", "the baseline has paper and sharp, this run paper"),
        ("sampled-near", "slopes", "paper", "the baseline has slope and paper, this run paper"),
    ],
)
def test_runs_of_other_methods_are_compared_by_what_both_have(
    methods: dict[str, Path], run: str, baseline: str, method: str, words: str
) -> None:
    options = ["--baseline", methods[baseline]]
    done = cleverscore("gate", methods[run], *options)
    assert done.returncode == 1 and done.stdout.startswith("FAIL"), done.stderr
    assert f"this run's mean score ({method}) is " in done.stderr, done.stderr
    assert f"; judged by {method}, which both runs have ({words})" in done.stderr
    drop = cleverscore("gate", methods[run], *options, "--max-drop", "10%")
    assert drop.returncode == 1 and f"FAIL: l2 mean score ({method}), drop" in drop.stderr and words in drop.stderr
    # The other way round, and of the same model.
    assert cleverscore("gate", methods[baseline], "--baseline", methods[run]).stdout.startswith("PASS")
    compared = cleverscore("compare", methods[baseline], methods[run]).stdout
    assert f"compared by {method} in norm 2, which both have" in compared and "A is more robust than B" in compared


def test_equal_methods_in_another_order_need_no_remark(methods: dict[str, Path]) -> None:
    done = cleverscore("gate", methods["turned"], "--baseline", methods["both"])
    assert done.stdout.startswith("PASS") and "judged by" not in done.stderr, done.stderr


def test_runs_without_a_common_method_are_refused_by_name(methods: dict[str, Path]) -> None:
    for command in (["gate", methods["sampled"], "--baseline"], ["compare", methods["sampled"]]):
        done = cleverscore(*command, methods["searched"])
        assert done.returncode == 2 and "no method in common" in done.stderr, done.stderr
        assert f"{methods['sampled']} has paper" in done.stderr and f"{methods['searched']} has sharp" in done.stderr
        assert " first" not in done.stderr and "second" not in done.stderr


def test_robust_accuracy_is_proved_estimated_or_refuted(tmp_path: Path) -> None:
    run = add_bounds(made_run(tmp_path / "run", inputs=20, norms=("2",)))
    with Store.open(run) as store:
        curves = findings(store).norms[0].robust_accuracy
    epsilon = float(np.median(curves.lines[1].distances[~np.isnan(curves.lines[1].distances)]))
    shares = {kind: share.value for kind, share in curves.at(epsilon).items()}
    assert shares["certified"] < shares["estimated"] < shares["attacked"]
    for share, word in (
        (shares["certified"], "PASS"),
        (shares["estimated"], "PASS"),
        (shares["estimated"] + 0.01, "UNDECIDED"),
        (shares["attacked"] + 0.01, "FAIL"),
    ):
        done = cleverscore("gate", run, "--min-robust-accuracy", f"2={share}@{epsilon}")
        assert done.stdout.startswith(word) and done.returncode == (word == "FAIL"), (share, done.stderr)
    plain = made_run(tmp_path / "plain", inputs=20, norms=("2",))
    alone = cleverscore("gate", plain, "--min-robust-accuracy", f"{shares['estimated'] + 0.01}@{epsilon}")
    assert alone.returncode == 1


def test_a_score_at_the_radius_does_not_fail_a_larger_threshold(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", inputs=6, norms=("2",), factor=1000.0)
    done = cleverscore("gate", run, "--min-median", 7)
    assert done.returncode == 0 and done.stdout.startswith("UNDECIDED") and "larger --radius" in done.stderr


def test_what_the_options_take() -> None:
    assert parse_share("10%", "x") == 0.1 and parse_robust(["80%@1/4"], "x") == {"": [(0.8, 0.25)]}
    for bad in ("x", "120%", "-1", "nan"):
        with pytest.raises(SettingError):
            parse_share(bad, "--max-drop")
    assert parse_drop("median:10%", "x") == ("median", 0.1) and parse_drop("mean:0.2", "x") == ("mean", 0.2)
    for bad in ("worst:10%", "median:x", "median"):
        with pytest.raises(SettingError, match="--max-drop"):
            parse_drop(bad, "--max-drop")
    for bad in ("0.8", "0.8@x", "2@0.1", "0.8@-1", "@"):
        with pytest.raises(SettingError):
            parse_robust([bad], "--min-robust-accuracy")


def test_accuracy_needs_labels_and_all_inputs(run: Path, tmp_path: Path) -> None:
    assert cleverscore("gate", run, "--min-accuracy", "0.8").returncode == 0  # 12 of 15
    assert cleverscore("gate", run, "--min-accuracy", "0.81").returncode == 1
    excluded = cleverscore("gate", run, "--min-accuracy", "0.8", "--exclude-misclassified")
    assert excluded.returncode == 2 and "not known" in excluded.stderr


def test_junit_survives_any_name(tmp_path: Path) -> None:
    out = tmp_path / "gate.xml"
    write_junit([Check("a<b>&\x00\x1b", Result.FAIL, '"]]>\ud800')], "run\x07", out)
    (case,) = ElementTree.parse(out).getroot()[0]
    assert case.get("name") == "a<b>&\ufffd\ufffd" and case.get("classname") == "run\ufffd"
