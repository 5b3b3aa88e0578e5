"""Runs grow by inputs and by budget, keep what they have, and refuse everything else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import cleverscore as cs
from cleverscore.errors import StoreError
from cleverscore.runs.add_bounds import Bounds, run_bounds
from cleverscore.runs.growth import Growth
from cleverscore.runs.results import StudyConfig, stored_scores, what_is_missing
from cleverscore.runs.store import Store
from cleverscore.runs.study import Study
from tests.helpers import cleverscore
from tests.stored_runs import made_run

IMAGES = np.random.default_rng(0).random((12, 6), np.float32)


def study(rows: list[int], **settings: object) -> Study:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    inputs = "all" if rows == list(range(12)) else ",".join(map(str, rows))
    config = StudyConfig(
        "made", "drawn", ("2",), radius=1.0, inputs=inputs, **{"blocks": 16, "block_size": 8, **settings}
    )
    return Study(config, cs.Classifier(model, bounds=(0.0, 1.0)), IMAGES[rows], None, rows)


def computed(folder: Path, made: Study, bounds: Bounds | None = None) -> dict[int, float]:
    with made.open_store(folder) as store:
        before = set(store.done())
        made.run(store)
        run_bounds(made, store, bounds or Bounds())
        assert before <= store.done()
        assert what_is_missing(store) is None
        return {head.input: head.value for head in stored_scores(store)}


def test_a_run_grows_by_inputs_and_equals_one_made_at_once(tmp_path: Path) -> None:
    at_once = computed(tmp_path / "once", study(list(range(12))))
    first = computed(tmp_path / "run", study([0, 1, 2]))
    with Store.open(tmp_path / "run") as store:
        shards = len(store.shards())
    second = computed(tmp_path / "run", study([0, 1, 2, 3, 4, 5]))
    with Store.open(tmp_path / "run") as store:
        # Only the inputs that are new were given to workers.
        new = [content for _number, _norm, content, *_ in store.shards()[shards:]]
        assert store.meta["config"]["inputs"] == "0,1,2,3,4,5" and store.meta["inputs"] == 6
    assert {part.split(":")[0].strip() for content in new for part in content.split(";")} == {"3", "4", "5"}
    apart = computed(tmp_path / "run", study([10, 2]))
    whole = computed(tmp_path / "run", study(list(range(12))))
    assert first.items() <= second.items() <= apart.items() <= whole.items()
    assert sorted(apart) == [0, 1, 2, 3, 4, 5, 10] and whole == pytest.approx(at_once, rel=1e-5)
    # Fewer inputs than it has: nothing to do, and it still holds all.
    assert computed(tmp_path / "run", study([1])) == whole


def test_bounds_reach_the_inputs_that_are_asked_for(tmp_path: Path) -> None:
    computed(tmp_path / "run", study([0, 1, 2]))
    computed(tmp_path / "run", study([2, 3]), Bounds(("descent:quick",), ()))
    with Store.open(tmp_path / "run") as store:
        assert {record.input for record in store.above()} == {2, 3}


def test_a_larger_budget_goes_on(tmp_path: Path) -> None:
    small = study([0, 1, 2], budget="300", tolerance=0.0)
    computed(tmp_path / "run", small)
    with Store.open(tmp_path / "run") as store:
        assert all("budget" in head.stopped for head in stored_scores(store))
    grown = computed(tmp_path / "run", study([0, 1, 2], budget="1000000", tolerance=0.0))
    assert grown == computed(tmp_path / "once", study([0, 1, 2], budget="1000000", tolerance=0.0))
    with pytest.raises(StoreError, match="budget: '1000000' then, '300' now"):
        study([0, 1, 2], budget="300", tolerance=0.0).open_store(tmp_path / "run")


def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    computed(tmp_path / "run", study([0]))
    for settings, words in (({"seed": 1}, "seed: 0 then, 1 now"), ({"blocks": 32}, "blocks: 16 then, 32 now")):
        with pytest.raises(StoreError, match=words):
            study([0, 1], **settings).open_store(tmp_path / "run")
    with Store.open(tmp_path / "run") as store:
        assert store.meta["inputs"] == 1  # a refused command leaves the run as it was
    assert Growth.between({"inputs": "1,2", "seed": 0}, {"inputs": "0", "seed": 0}).config["inputs"] == "0,1,2"


def test_the_command_line_grows_a_run_and_lists_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(1).random((9, 1, 28, 28), np.float32), y=np.arange(9))
    size = ["--method", "paper", "--blocks", "12", "--block-size", "4", "--radius", "1", "--targets", "runner_up"]
    options = ["zoo:mnist-mlp", tmp_path / "data.npz", *size, "--attack", "none", "--out", tmp_path / "runs" / "a"]
    assert cleverscore("score", *options, "--limit", "2").returncode == 0
    grown = cleverscore("score", *options, "--limit", "4")
    assert grown.returncode == 0 and "2 of 4 scores are there already" in grown.stderr, grown.stderr
    refused = cleverscore("score", *options, "--limit", "4", "--correct-only")
    assert refused.returncode == 2, refused.stderr
    made_run(tmp_path / "runs" / "deep" / "b", inputs=7, model="made:b")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "run.sqlite").write_text("no")
    listed = cleverscore("runs", tmp_path / "runs")
    assert listed.returncode == 0, listed.stderr
    lines = listed.stdout.splitlines()
    assert sum("zoo:mnist-mlp" in line for line in lines) == 1 and sum("made:b" in line for line in lines) == 2
    assert any("broken" in line and "not a run" in line for line in lines)
    found = {Path(run["run"]).name: run for run in json.loads(cleverscore("runs", tmp_path / "runs", "--json").stdout)}
    assert (
        found["a"]["inputs"] == 4 and found["b"]["norms"][0]["median"]["value"] > 0.0 and "problem" in found["broken"]
    )
    assert "holds no run" in cleverscore("runs", tmp_path / "none").stderr
    summary = json.loads(cleverscore("export", tmp_path / "runs" / "a", "--format", "json").stdout)["summary"]
    assert summary == json.loads(cleverscore("show", tmp_path / "runs" / "a", "--json").stdout)
