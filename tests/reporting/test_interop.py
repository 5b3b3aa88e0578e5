"""Scores in other people's tools."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import cleverscore as cs
from cleverscore.errors import InputError, MissingExtraError
from cleverscore.reporting.findings import findings
from cleverscore.runs.store import Store
from tests.helpers import affine, cleverscore
from tests.stored_runs import add_bounds, made_run

X = torch.rand(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_the_metric_gives_what_one_call_gives() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    classifier = cs.Classifier(model)
    size = {"blocks": 12, "block_size": 8}
    whole = cs.clever(classifier, X, p="inf", **size)
    metric = cs.interop.CleverMetric(classifier, p="inf", **size)
    metric.update(X[:4])
    metric.update(X[4:], labels=[0, 1])
    assert metric.scores.values == pytest.approx(whole.values)
    values = metric.compute()
    assert values["clever/linf/median"] == pytest.approx(np.median([head.counted for head in metric.scores]))
    assert values["clever/linf/smallest"] == 0.0  # one of the two labels is not predicted
    metric.reset()
    with pytest.raises(InputError, match="before update"):
        metric.compute()
    assert metric(X[:4])["clever/linf/mean"] == pytest.approx(whole.values[:4].mean())
    with pytest.raises(InputError, match="belongs to a batch"):
        cs.interop.CleverMetric(classifier, labels=[1])


def test_loggers_get_the_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = cs.clever(affine(), X)
    heard: list[Any] = []
    mlflow = SimpleNamespace(log_metrics=lambda values, step: heard.append((values, step)))
    wandb = SimpleNamespace(log=lambda values, step: heard.append((values, step)), Histogram=tuple)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    assert cs.interop.log_to_mlflow(scores, step=3) == heard[0][0] and heard[0][1] == 3
    cs.interop.log_to_wandb(scores, prefix="robust")
    assert heard[0][0]["clever/l2/median"] == heard[1][0]["robust/l2/median"] == pytest.approx(np.median(scores.values))
    assert heard[1][0]["robust/l2/scores"] == pytest.approx(tuple(scores.values))


def test_a_missing_logger_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = cs.clever(affine(), X)
    for name, call in (("mlflow", cs.interop.log_to_mlflow), ("wandb", cs.interop.log_to_wandb)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingExtraError, match=f"pip install {name}"):
            call(scores)


def test_the_section_for_a_model_card(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", model="evil`\n\n# name")
    done = cleverscore("export", run, "--format", "card")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| paper |") == 2 and "\n## Robustness (CLEVER)\n" in done.stdout
    # A name cannot leave its code span or begin a heading.
    assert "`` evil` # name ``" in done.stdout and "\n# name" not in done.stdout
    assert cleverscore("export", run, "--format", "card", "--out", tmp_path / "card.md").returncode == 0
    assert (tmp_path / "card.md").read_text() == done.stdout
    assert "Fewer than" not in done.stdout
    few = cleverscore("export", made_run(tmp_path / "few", inputs=5), "--format", "card").stdout
    assert "Accuracy on these inputs: 80.0% of 5, " in few
    assert few.count("Fewer than 6 inputs have no 95% interval") == 2


def test_hugging_face_reads_the_metadata_of_a_card(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    run = add_bounds(made_run(tmp_path / "run", model='evil: "name"\n- x', data="a/b: c.npz", inputs=14))
    card = hub.ModelCard(cleverscore("export", run, "--format", "card").stdout)
    results = {(result.metric_type, result.metric_name): result for result in card.data.eval_results}
    with Store.open(run) as store:
        found = findings(store)
    score = results["clever_score", "Median CLEVER score, l2, method paper"]
    assert score.metric_value == pytest.approx(found.norms[0].median.value, rel=1e-5)
    assert score.dataset_name == "a/b: c.npz" and card.data.model_name == 'evil: "name"\n- x'
    assert results["accuracy", "Accuracy on the 14 inputs of the run"].metric_value == pytest.approx(12 / 14, rel=1e-5)
    assert len(results) == 5  # accuracy, and in two norms score and attack
    assert "| l2 |" in card.text and "robust accuracy" in card.text
