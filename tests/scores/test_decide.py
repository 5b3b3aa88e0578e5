"""Sequential decisions: right on closed forms, the same as full runs, and cheap where the case is clear."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import cleverscore as cs
from cleverscore.errors import SettingError
from cleverscore.estimators.sampling.target_elimination import Stopping, TargetElimination
from cleverscore.estimators.stop_reason import StopReason
from tests.helpers import affine, affine_distance

ROOT = Path(__file__).parents[2]
SIZE = {"blocks": 256, "block_size": 8}


def test_affine_models_are_decided_exactly() -> None:
    classifier = affine()
    x = torch.rand(3, 6, dtype=torch.float64)
    scores = cs.clever(classifier, x)
    nearest = min(affine_distance(classifier, x[head.input], head.predicted, head.target, 2.0) for head in scores)
    assert cs.decide(classifier, x, at_least=nearest * 0.999).passed
    failed = cs.decide(classifier, x, at_least=nearest * 1.001)
    assert not failed.passed and not failed and len(failed.failed) == 1
    with pytest.raises(AssertionError, match=r"has a score of .* below"):
        cs.assert_robust(classifier, x, at_least=nearest * 1.001)


@pytest.fixture(scope="module")
def digits() -> tuple:
    images, labels = cs.load_data("zoo:mnist")
    classifier = cs.load_model("zoo:mnist-mlp")
    full = cs.clever(classifier, images[:3], labels=labels[:3], **SIZE)
    return classifier, images[:3], labels[:3], full


class Counter(torch.nn.Module):
    """A model that counts the points it sees."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model, self.points = model, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.points += len(x)
        return self.model(x)


def test_clear_cases_take_at_most_a_quarter_of_the_gradients(digits: tuple) -> None:
    classifier, images, labels, full = digits
    for at_least, expected in ((0.5 * full.values.min(), True), (2.0 * full.values.max(), False)):
        decision = cs.decide(classifier, images, at_least=float(at_least), labels=labels, **SIZE)
        assert decision.passed is expected
        assert decision.full_gradients == 3 * 9 * 256 * 8
        assert decision.gradients <= decision.full_gradients / 4
        # The rows say the same as the account, and why sampling ended; a failure leaves inputs unfinished.
        finished = sum(row.gradients for row in decision.scores.rows if row.target_kind == "all")
        assert finished == decision.gradients if expected else finished < decision.gradients
        assert StopReason.DECIDED in {row.stopped for row in decision.scores.rows}


def test_points_are_really_not_drawn(digits: tuple) -> None:
    """The count of gradients is believed only because the model itself saw no more points."""
    _, images, _, full = digits
    counter = Counter(cs.load_model("zoo:mnist-mlp").module)
    classifier = cs.Classifier(lambda x: counter(x), bounds=(0.0, 1.0), mean=0.5, std=1.0)
    cs.decide(classifier, images, at_least=float(0.5 * full.values.min()), **SIZE)
    assert 0 < counter.points <= 3 * 256 * 8 / 4 + 500  # a few more probe the model and tune the chunk size


def test_decisions_agree_with_full_runs(digits: tuple) -> None:
    classifier, images, _, full = digits
    for factor in (0.7, 0.9, 1.1, 1.4):
        for i in range(3):
            at_least = float(full.values[i] * factor)
            one = cs.decide(classifier, images[i : i + 1], at_least=at_least, ids=[i], **SIZE)
            assert one.passed is (factor < 1.0), (i, factor)


def test_close_calls_draw_all_blocks() -> None:
    generator = np.random.default_rng(0)

    def elimination(threshold: float) -> TargetElimination:
        made = TargetElimination(
            [1], [1.0], limit=5.0, penalty=0.1, level=0.95, blocks=128, block_size=8,
            stopping=Stopping(0.0, smallest=False, threshold=threshold),
        )  # fmt: skip
        while made.active:
            made.add(10.0 - generator.weibull(3.0, (1, made.next_checkpoint() - made.drawn)))
        return made

    assert len(elimination(0.05).maxima[0]) == 32 and len(elimination(0.3).maxima[0]) == 32
    assert len(elimination(0.1).maxima[0]) == 128  # the score is close to 1 / 10


def test_misclassified_inputs_fail_without_a_gradient(digits: tuple) -> None:
    classifier, images, labels, _ = digits
    wrong = labels.copy()
    wrong[1] = (wrong[1] + 1) % 10
    decision = cs.decide(classifier, images, at_least=0.1, labels=wrong, **SIZE)
    assert decision.misclassified == (1,) and decision.gradients == 0 and "input 1 is misclassified" in str(decision)


def test_impossible_thresholds_are_refused() -> None:
    classifier, x = affine(), torch.rand(1, 6, dtype=torch.float64)
    for at_least, words in ((6.0, "larger than the radius"), (-1.0, "at least 0"), (float("nan"), "at least 0")):
        with pytest.raises(SettingError, match=words):
            cs.decide(classifier, x, at_least=at_least)


def test_the_pytest_plugin_passes_and_fails_tests(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(
        "import torch, cleverscore as cs\n"
        "def make():\n"
        "    model = torch.nn.Linear(2, 2, bias=False)\n"
        "    model.weight.data = torch.tensor([[1.0, 0.0], [0.0, 0.0]])\n"
        "    return cs.Classifier(model)\n"
        "def test_good(assert_robust):\n"
        "    assert assert_robust(make(), torch.tensor([[1.0, 0.0]]), p=2, at_least=0.9).passed\n"
        "def test_bad(assert_robust):\n"
        "    assert_robust(make(), torch.tensor([[1.0, 0.0]]), p=2, at_least=1.1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "cleverscore.pytest_plugin", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "input 0 has a score of 1.000" in done.stdout and "2 robustness decisions" in done.stdout
    declared = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\ncleverscore = "cleverscore.pytest_plugin"' in declared
