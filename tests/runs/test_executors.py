from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.errors import CleverError, SettingError, StoreError
from cleverscore.runs.local_executor import InProcess, Processes
from cleverscore.runs.results import StudyConfig
from cleverscore.runs.shards import WorkerContext, plan
from cleverscore.runs.signals import Stop, stopping
from cleverscore.runs.store import Store
from cleverscore.runs.study import Study
from tests.helpers import ROOT, cleverscore
from tests.runs.studies import COSTS, INPUTS, maxima, run, study, table


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(folder, workers=1)
    return folder


def test_threads_and_processes_give_the_same_maxima(whole: Path, tmp_path: Path) -> None:
    run(tmp_path / "threads", workers=2)
    run(tmp_path / "processes", executor=Processes(2))
    run(tmp_path / "large", shard_seconds=1000.0)
    for other in ("threads", "processes", "large"):
        assert maxima(tmp_path / other) == maxima(whole), other
    pd.testing.assert_frame_equal(table(tmp_path / "processes"), table(whole), check_exact=True)


@pytest.mark.parametrize("settings", [{"tolerance": 0.1}, {"budget": "8000"}, {"method": "sharp"}])
def test_adaptive_scores_do_not_depend_on_shards_or_executors(tmp_path: Path, settings: dict) -> None:
    run(tmp_path / "one", made=study(inputs=3, **settings), shard_seconds=1000.0)
    run(tmp_path / "many", made=study(inputs=3, **settings), shard_seconds=0.1, executor=Processes(2))
    pd.testing.assert_frame_equal(table(tmp_path / "one"), table(tmp_path / "many"), check_exact=True)


def test_a_killed_worker_is_replaced_and_its_shard_computed_again(whole: Path, tmp_path: Path) -> None:
    killed = []

    def kill(_points: int) -> None:
        with Store.open(tmp_path / "run") as store:
            names = [worker for *_, worker in store.shards() if worker]
        if len(killed) < 2 and len(names) > 10 * (len(killed) + 1):
            killed.append(int(names[-1].split()[1]))
            os.kill(killed[-1], signal.SIGKILL)

    run(tmp_path / "run", executor=Processes(2), on_points=kill)
    assert len(set(killed)) == 2
    pd.testing.assert_frame_equal(table(tmp_path / "run"), table(whole), check_exact=True)


class Deadly(nn.Module):
    """Kills every process but the one that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.home = os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tanh(self.inner(x))


def test_a_shard_that_kills_its_workers_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    config = StudyConfig("made", "drawn", blocks=12, block_size=8)
    made = Study(config, cs.Classifier(Deadly()), np.zeros((1, 4), np.float32), None, [0])
    with made.open_store(tmp_path / "run") as store, pytest.raises(CleverError, match="3 workers died over the same"):
        made.run(store, executor=Processes(1))


def test_a_model_that_cannot_be_sent_says_what_to_do() -> None:
    made = study()
    context = WorkerContext(cs.Classifier(lambda x: x.flatten(1)), made.settings, made.examples, {}, 1)
    with pytest.raises(SettingError, match="cannot be sent"):
        context.packed()
    assert WorkerContext.unpacked(
        WorkerContext(cs.Classifier(lambda x: x), made.settings, made.examples, {}, 1,
              recipe=(cs.load_model, ("zoo:mnist-mlp",), {})).packed()
    ).classifier.name  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripted_models_are_loaded_by_each_process(tmp_path: Path) -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)).eval())
    scripted.save(str(tmp_path / "model.ts"))
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).random((3, 3, 2, 2), np.float32))
    command = [
        "score",
        tmp_path / "model.ts",
        tmp_path / "data.npz",
        "--preset",
        "paper",
        "--blocks",
        12,
        "--block-size",
        16,
    ]
    one = cleverscore(*command, "--out", tmp_path / "one", "--chunk-size", 16)
    two = cleverscore(*command, "--out", tmp_path / "two", "--chunk-size", 16, "--processes", 2)
    assert one.returncode == two.returncode == 0 and one.stdout == two.stdout, two.stderr


def test_early_shards_cover_every_input() -> None:
    made = study()
    shards = plan(
        made.examples, made.settings, dict.fromkeys(made.settings, True), {}, chunk_sizes={"2": 64, "inf": 64},
        seconds_per_input={"2": 6.0, "inf": 6.0}, shard_seconds=1.0,
    )  # fmt: skip
    assert len(shards) == 96
    first = {(shard.norm, task.example.input_id) for shard in shards[: 2 * INPUTS] for task in shard.tasks}
    assert len(first) == 2 * INPUTS
    together = plan(
        made.examples, made.settings, dict.fromkeys(made.settings, True), {}, chunk_sizes={"2": 64, "inf": 64},
        seconds_per_input={"2": 0.3, "inf": 0.3}, shard_seconds=1.0,
    )  # fmt: skip
    assert len(together) == 2 * 3 and max(len(shard.tasks) for shard in together) == 3


def test_partial_results_are_shown_with_wider_intervals(whole: Path, tmp_path: Path) -> None:
    stop = Stop()

    def ask(_points: int) -> None:
        with Store.open(tmp_path / "run") as store:
            stop.asked = len(store.covered()) == 2 * INPUTS

    run(tmp_path / "run", stop=stop, on_points=ask)
    early, late = table(tmp_path / "run"), table(whole)
    assert len(early) == len(late) and set(early.stopped) == {"unfinished"}
    widths = [(frame.score_high - frame.score_low).median() for frame in (early, late)]
    assert widths[0] > widths[1]
    run(tmp_path / "run")
    pd.testing.assert_frame_equal(table(tmp_path / "run"), late, check_exact=True)


def interrupted(command: list, *, signals: list[int], ready: int, wait: str, tmp_path: Path) -> tuple[int, str, float]:
    """Start a run, send signals after `ready` shards, and tell how it ended and how long that took."""
    program = "import cleverscore.cli.main as c; c.main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, command)], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "WAIT": wait}, text=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if (tmp_path / "run" / "run.sqlite").exists():
                try:
                    with Store.open(tmp_path / "run") as store:
                        if sum(row[3] is not None for row in store.shards()) >= ready:
                            break
                except StoreError:
                    pass
            time.sleep(0.02)
        began = time.monotonic()
        for number in signals:
            process.send_signal(number)
            time.sleep(0.3)
        _, errors = process.communicate(timeout=120)
    return process.returncode, errors, time.monotonic() - began


@pytest.fixture
def lasting(tmp_path: Path) -> list:
    """A command that takes long where the model waits at each point, and a second where it does not."""
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).random((20, 3, 4, 4), np.float32))
    command = ["score", "tests.runs.studies:Waiting", tmp_path / "data.npz", "--targets", "runner_up"]
    return [*command, "--bounds", "0,1", "--preset", "paper", "--blocks", 32, "--block-size", 64, "--chunk-size", 64]


@pytest.mark.parametrize(("number", "options"), [(signal.SIGINT, []), (signal.SIGTERM, ["--processes", 2])])
def test_one_signal_finishes_the_shard_and_the_same_command_resumes(
    lasting: list, tmp_path: Path, number: int, options: list
) -> None:
    command = [*lasting, "--shard-seconds", 0.2, "--out", tmp_path / "run"]
    code, errors, _ = interrupted([*command, *options], signals=[number], ready=2, wait="0.001", tmp_path=tmp_path)
    assert code == 130 and "Ctrl-C again" in errors and "the same command resumes" in errors.replace("\n", " "), errors
    with Store.open(tmp_path / "run") as store:
        kept = len(store.done())
        assert all(seconds is not None for *_, seconds, _ in store.shards())  # none was broken off
    assert kept < 20 and f"{kept} of 20 scores are complete" in errors
    assert cleverscore("show", tmp_path / "run").returncode == 0
    resumed = cleverscore(*command)
    assert f"{kept} of 20 scores" in resumed.stderr
    assert resumed.stdout == cleverscore(*lasting, "--out", tmp_path / "whole").stdout


def test_two_signals_stop_at_once_and_keep_what_is_stored(lasting: list, tmp_path: Path) -> None:
    command = [*lasting, "--blocks", 320, "--shard-seconds", 4, "--out", tmp_path / "run"]
    code, _, seconds = interrupted(
        command, signals=[signal.SIGINT, signal.SIGINT], ready=1, wait="0.01", tmp_path=tmp_path
    )
    assert code == 130 and seconds < 15.0
    with Store.open(tmp_path / "run") as store:
        assert any(row[3] is None for row in store.shards()) and store.covered()


def test_signals_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stopping() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert stop.asked
    assert signal.getsignal(signal.SIGTERM) is before


def test_settings_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="processes=0"):
        Processes(0)
    for options in (["--ray-address", "auto"], ["--executor", "ray", "--processes", "2"]):
        done = cleverscore("score", "zoo:mnist-mlp", "zoo:mnist", "--limit", 1, "--out", tmp_path / "run", *options)
        assert done.returncode == 2, options


def test_an_error_in_a_worker_is_the_error_of_the_run(tmp_path: Path) -> None:
    made = study()
    with made.open_store(tmp_path / "run") as store, pytest.raises(RuntimeError, match="in a worker process"):
        made.run(store, executor=Broken(1), costs=COSTS, chunk_size=64)


class Broken(Processes):
    """Sends shards that cannot be computed."""

    def run(self, context, shards):
        context.settings = {}
        return super().run(context, shards)


def test_in_process_is_the_default() -> None:
    assert InProcess().slots == 1
