"""How long a run takes is told from its first inputs, and progress never goes past its end."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch

from cleverscore import progress
from cleverscore.brackets import run_bounds
from cleverscore.runs import add_bounds, forecast
from cleverscore.runs.add_bounds import Bounds
from cleverscore.runs.local_executor import InProcess
from cleverscore.runs.signals import Stop
from cleverscore.threads import default_workers
from tests.runs.studies import INPUTS, study


def test_progress_stays_between_0_and_100_percent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with progress.progress(10, "searching", lines=True) as advance:
        for done in (3, 6, 9):  # more than was promised
            advance(done)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].split(",")[0].strip() for line in lines] == ["30%", "90%", "100%"]
    assert not any("-" in line for line in lines)


def test_pilots_are_few_and_none_where_inputs_are_few() -> None:
    assert [forecast.pilot_inputs(count) for count in (1, 3, 4, 11, 20, 1000)] == [0, 0, 1, 2, 4, 4]


def test_adaptive_work_is_forecast_from_inputs_that_are_then_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast, "PILOT_SECONDS", 1e9)  # on any machine
    made = study(blocks=40, tolerance=0.0, targets="runner_up")
    with made.open_store(tmp_path) as store:
        runs: list[dict] = []

        def run(**options: object) -> dict[str, float]:
            runs.append(options)
            return made.run(store, chunk_size=64, **options)

        bounds = Bounds(("best:quick",), ("crown",))
        work = forecast.plan_work(made, store, bounds, made.missing(store), run, InProcess(), Stop(), chunk_size=64)
        pilots = forecast.pilot_inputs(INPUTS, default_workers(torch.device("cpu")))
        assert [len(options["only"]) for options in runs] == [pilots]
        left = made.missing(store)
        assert all(len(parts) == INPUTS - pilots for parts in left.parts.values())
        assert work.words.startswith("about ") and "CLEVER" in work.words
        assert {"descent:quick in l2", "descent:quick in linf", "crown in l2", "crown in linf"} < set(
            work.forecast.parts
        )
        done = sum(work.units_of(series, len(parts)) for series, parts in left.parts.items())
        assert done == pytest.approx(work.units, abs=2)


def test_bounds_that_were_measured_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attacked: list[int] = []
    attack = run_bounds.attack

    def counted(classifier: object, x: torch.Tensor, *arguments: object, **options: object) -> object:
        attacked.append(len(x))
        return attack(classifier, x, *arguments, **options)

    monkeypatch.setattr(run_bounds, "attack", counted)
    made, bounds = study(blocks=12, tolerance=0.0, targets="runner_up"), Bounds(("best:quick",), ("crown",))
    with made.open_store(tmp_path) as store:
        run = partial(made.run, store, chunk_size=64)
        forecast.plan_work(made, store, bounds, made.missing(store), run, InProcess(), Stop(), chunk_size=64)
        pilots = forecast.pilot_inputs(INPUTS, default_workers(torch.device("cpu")))
        assert len(store.above()) == len(store.below()) == 2 * pilots
        add_bounds.run_bounds(made, store, bounds)
        assert sum(attacked) == 2 * INPUTS  # each input once in each norm


def test_the_forecast_is_of_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is over when the forecast is printed counts, and so do inputs that it was measured on."""
    monkeypatch.setattr(forecast, "PILOT_SECONDS", 1e9)
    made = study(blocks=12, tolerance=0.0, targets="runner_up")
    with made.open_store(tmp_path) as store:

        def run(**options: object) -> dict[str, float]:
            made.run(store, chunk_size=64, **options)
            return dict.fromkeys(made.settings, 50.0)

        work = forecast.plan_work(
            made, store, Bounds(), made.missing(store), run, InProcess(), Stop(), began=time.monotonic() - 1000.0
        )
        pilots = forecast.pilot_inputs(INPUTS, default_workers(torch.device("cpu")))
        assert work.forecast.parts["CLEVER"] == pytest.approx(2 * INPUTS * 50.0)
        assert work.forecast.seconds == pytest.approx(1000.0 + 2 * (INPUTS - pilots) * 50.0, rel=0.05)
        assert work.words.endswith("are over")


def test_shorter_options_leave_out_what_was_chosen() -> None:
    assert "--preset quick" in forecast.shorter_options(study(), "paper")
    options = forecast.shorter_options(study(method="sharp", budget="10m"), "quick")
    assert (
        "--preset" not in options
        and "--budget" not in options
        and "--method" not in options
        and "--limit" not in options
    )
