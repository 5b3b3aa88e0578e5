"""Baselines of tests: kept, compared, refused where they do not belong; the pytest fixture around them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cleverscore.errors import InputError, LoadError, SettingError
from cleverscore.reporting.gate import Result
from cleverscore.reporting.score_baseline import baseline_path, compare_baseline, parse_compare_fail, save_baseline
from cleverscore.runs.results import stored_scores
from cleverscore.runs.store import Store
from cleverscore.scores.score import Score, Scores
from tests.stored_runs import made_run

TEST = """
import os

import torch

import cleverscore as cs

torch.manual_seed(0)
images = torch.rand(12, 6)
model = torch.nn.Linear(6, 3)


def half(x):
    # The same classes and gradients with half the margin to the second class: scores shrink.
    logits = model(x)
    margin = (logits - logits.sort(1).values[:, 1:2]).detach()
    return logits - 0.5 * torch.nn.functional.one_hot(logits.argmax(1), 3) * margin


def test_model(clever_baseline):
    scores = clever_baseline(cs.Classifier(model), images, p=2, blocks=12, block_size=4)
    assert len(scores) == 12


def test_worse(clever_baseline):
    function = half if "WORSE" in os.environ else model
    clever_baseline(cs.Classifier(function, input_shape=(6,)), images, p=2, blocks=12, block_size=4)
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Score:
    with Store.open(made_run(tmp_path_factory.mktemp("one") / "run", inputs=2, norms=("2",))) as store:
        return next(head for head in stored_scores(store) if head.correct)


def scores(one: Score, values: np.ndarray) -> Scores:
    scores = tuple(replace(one, input=i, value=float(value)) for i, value in enumerate(values))
    return Scores(scores, scores)


def test_a_drop_is_told_with_enough_inputs(one: Score, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    before = generator.uniform(0.2, 1.0, 40)
    path, settings = tmp_path / "deep" / "a.json", {"blocks": 12}
    with pytest.raises(InputError, match="make it with --clever-save"):
        compare_baseline(path, scores(one, before), settings, "median", 0.1)
    save_baseline(path, scores(one, before), settings)
    assert json.loads(path.read_text())["scores"] == before.tolist()
    for after, of, most, result in (
        (before, "median", 0.0, Result.PASS),
        (0.85 * before, "median", 0.1, Result.FAIL),
        (0.85 * before, "mean", 0.1, Result.FAIL),
        (0.85 * before, "median", 0.2, Result.PASS),
        (before * generator.normal(1.0, 0.05, 40), "mean", 0.1, Result.PASS),
        (before * generator.normal(0.9, 0.5, 40).clip(0.0), "mean", 0.1, Result.UNDECIDED),
    ):
        assert compare_baseline(path, scores(one, after), settings, of, most).result is result
    with pytest.raises(InputError, match="has other inputs"):
        compare_baseline(path, scores(one, before[:20]), settings, "mean", 0.1)
    with pytest.raises(InputError, match="has other settings"):
        compare_baseline(path, scores(one, before), {"blocks": 13}, "mean", 0.1)
    path.write_text("{")
    with pytest.raises(LoadError, match="not a baseline"):
        compare_baseline(path, scores(one, before), settings, "mean", 0.1)


def test_what_the_option_takes() -> None:
    assert parse_compare_fail("median:10%") == ("median", 0.1) and parse_compare_fail("mean:0.2") == ("mean", 0.2)
    for bad in ("10%", "worst:10%", "median:x"):
        with pytest.raises(SettingError):
            parse_compare_fail(bad)
    assert baseline_path(Path("a"), "test_b.py::test_c[1/2]").parent == Path("a")


@pytest.mark.slow
def test_the_fixture_keeps_and_compares(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(TEST)

    def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        plugins = ["-p", "cleverscore.pytest_plugin", "-p", "no:cacheprovider"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *plugins, *options],
            cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip

    kept = run("--clever-save")
    assert kept.returncode == 0, kept.stdout + kept.stderr
    assert len(list((tmp_path / ".clever-baselines").iterdir())) == 2
    compared = run("--clever-compare-fail=median:10%", WORSE="yes")
    assert compared.returncode == 1 and "1 failed, 1 passed" in compared.stdout, compared.stdout
    assert "PASS test_model.py::test_model" in compared.stdout and "FAIL test_model.py::test_worse" in compared.stdout
