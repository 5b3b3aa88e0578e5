from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from cleverscore.runs.store import Store
from tests.helpers import ROOT, SCORE_DIGITS, cleverscore, in_a_new_process
from tests.runs.studies import maxima, run, table


@pytest.fixture(autouse=True)
def _as_fast_as_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's workers are nice to other processes by default, and starve beside tests that compute."""
    monkeypatch.setenv("RAY_worker_niceness", "0")


def test_a_lost_worker_and_a_lost_node_cost_only_what_was_under_way(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.lost_nodes", tmp_path / "run"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}, timeout=600,
    )  # fmt: skip
    found = re.search(r"slots (\d+) repeated (\d+)", done.stdout)
    assert found, done.stderr[-2000:]
    assert int(found[1]) == 2 and 1 <= int(found[2]) <= 3  # at most what two workers had under way, twice
    assert maxima(tmp_path / "run") == maxima(tmp_path / "whole")
    pd.testing.assert_frame_equal(table(tmp_path / "run"), table(tmp_path / "whole"), check_exact=True)
    with Store.open(tmp_path / "run") as store:
        shards = store.shards()
    # A shard is noted when it is given out; a lost one is given to another worker under the same number.
    assert all(seconds is not None for *_, seconds, _ in shards) and len(shards) == 96


def test_the_command_line_starts_a_cluster_of_its_own(tmp_path: Path) -> None:
    command = [*SCORE_DIGITS, "--limit", 3, "--preset", "paper", "--blocks", 12, "--block-size", 32]
    command += ["--chunk-size", 32]
    here = cleverscore(*command, "--out", tmp_path / "here")
    there = in_a_new_process(*command, "--out", tmp_path / "there", "--executor", "ray", "--workers", 2)
    assert there.returncode == 0 and "Ray: 2 workers" in there.stderr, there.stderr
    assert there.stdout == here.stdout
    again = cleverscore(*command, "--out", tmp_path / "there")
    assert "3 of 3 scores are there already" in again.stderr


def test_a_cluster_that_is_not_there_is_an_error_with_its_address(tmp_path: Path) -> None:
    done = in_a_new_process(
        "score", "zoo:mnist-mlp", "zoo:mnist", "--limit", 1, "--preset", "paper", "--blocks", 12, "--block-size", 8,
        "--out", tmp_path / "run", "--executor", "ray", "--ray-address", "127.0.0.1:1",
    )  # fmt: skip
    assert done.returncode == 2 and "127.0.0.1:1" in done.stderr and "Traceback" not in done.stderr, done.stderr
