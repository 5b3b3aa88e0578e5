from __future__ import annotations

import os
import signal
from pathlib import Path

import pandas as pd
import pytest

from cleverscore.run.store import Store
from tests.run.studies import maxima, run, table
from tests.test_cli import ROOT, cleverscore

ray = pytest.importorskip("ray")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    run(tmp_path / "whole")
    return tmp_path / "whole"


def test_a_lost_worker_and_a_lost_node_cost_only_what_was_under_way(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.cluster_utils import Cluster

    from cleverscore.run.ray import Ray

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        cluster.connect()
        seen = 0

        def disturb(_points: int) -> None:
            nonlocal seen
            seen += 1
            if seen == 20:
                with Store.open(tmp_path / "run") as store:
                    last = [worker for *_, worker in store.shards() if worker][-1]
                os.kill(int(last.split()[1]), signal.SIGKILL)
            if seen == 50:
                cluster.remove_node(second, allow_graceful=False)

        executor = Ray()
        assert executor.slots == 2
        run(tmp_path / "run", executor=executor, on_points=disturb)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert maxima(tmp_path / "run") == maxima(whole)
    pd.testing.assert_frame_equal(table(tmp_path / "run"), table(whole), check_exact=True)
    with Store.open(tmp_path / "run") as store:
        shards = store.shards()
    # A shard is noted when it is given out; a lost one is given to another worker under the same number.
    assert all(seconds is not None for *_, seconds, _ in shards) and len(shards) == 96
    assert 1 <= executor.repeated <= 3  # at most what two workers had under way


def test_the_command_line_starts_a_cluster_of_its_own(tmp_path: Path) -> None:
    command = [
        "score",
        "zoo:mnist-mlp",
        "zoo:mnist",
        "--limit",
        3,
        "--blocks",
        12,
        "--block-size",
        32,
        "--chunk-size",
        32,
    ]
    here = cleverscore(*command, "--out", tmp_path / "here")
    there = cleverscore(*command, "--out", tmp_path / "there", "--executor", "ray", "--workers", 2)
    assert there.returncode == 0 and "Ray: 2 workers" in there.stderr, there.stderr
    assert there.stdout == here.stdout
    again = cleverscore(*command, "--out", tmp_path / "there")
    assert "3 of 3 scores are there already" in again.stderr


def test_a_cluster_that_is_not_there_is_an_error_with_its_address(tmp_path: Path) -> None:
    done = cleverscore(
        "score", "zoo:mnist-mlp", "zoo:mnist", "--limit", 1, "--blocks", 12, "--block-size", 8,
        "--out", tmp_path / "run", "--executor", "ray", "--ray-address", "127.0.0.1:1",
    )  # fmt: skip
    assert done.returncode == 2 and "127.0.0.1:1" in done.stderr and "Traceback" not in done.stderr, done.stderr
