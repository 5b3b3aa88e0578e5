"""A budget of time covers everything that a command does: scores, attacks, certificates and checks."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from cleverscore.brackets import masking
from cleverscore.runs import time_budget
from cleverscore.runs.add_bounds import Bounds, probed_signs
from cleverscore.runs.results import what_is_missing
from cleverscore.runs.signals import Stop
from cleverscore.runs.study import Study
from cleverscore.runs.time_budget import TimeBudget, run_within
from tests.helpers import cleverscore
from tests.runs.studies import INPUTS, study

BOUNDS = Bounds(("best:quick",), ("crown",))


class Clock:
    """A clock that goes on only when work is done: seconds by the number of inputs of each kind of work."""

    def __init__(self, made: Study, monkeypatch: pytest.MonkeyPatch, *, scores: float, bounds: float) -> None:
        self.seconds, self.made, self.scores = 0.0, made, scores
        self.groups: list[list[int]] = []
        self.shares: list[float] = []
        run_bounds = time_budget.run_bounds

        def counted(*arguments: object, only: set[int], **options: object) -> dict[str, float]:
            self.seconds += bounds * len(only)
            return run_bounds(*arguments, only=only, **options)

        monkeypatch.setattr(time_budget, "run_bounds", counted)

    def run(self, store: object) -> object:
        def counted(**options: object) -> dict[str, float]:
            self.groups.append([example.input_id for example in options["only"]])
            self.shares.append(sum(options["most_seconds"].values()))
            self.seconds += self.scores * len(options["only"])
            self.made.run(store, chunk_size=64, **options)
            return dict.fromkeys(self.made.settings, self.scores / len(self.made.settings))

        return counted


@pytest.mark.parametrize(
    ("seconds", "groups"), [(10.0, [[0], [1, 2]]), (16.0, [[0], [1, 2], [3, 4], [5]]), (1.0, [[0]]), (100.0, None)]
)
def test_whole_inputs_are_computed_while_scores_and_bounds_fit(
    seconds: float, groups: list[list[int]] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(blocks=12, budget=f"{seconds:g}s", targets="runner_up")
    clock = Clock(made, monkeypatch, scores=2.0, bounds=0.5)
    with made.open_store(tmp_path) as store:
        budget = TimeBudget(seconds, 0.0, lambda: clock.seconds)
        left = run_within(budget, made, store, BOUNDS, clock.run(store), Stop())
        computed = [number for group in clock.groups for number in group]
        assert groups is None or clock.groups == groups
        assert clock.seconds <= max(seconds, 2.5)
        # What is computed is whole: every norm, the attack and the certificate; the rest has not begun.
        assert {input_id for input_id, _norm in store.done()} == set(computed)
        assert {record.input for record in store.above()} == {record.input for record in store.below()} == set(computed)
        assert [example.input_id for example in left] == list(range(len(computed), INPUTS))
        assert (what_is_missing(store) is None) == (not left)
        # The first input may take the rest of the time, a later one somewhat more than was expected of it.
        assert clock.shares[0] <= seconds and all(share >= 1.5 * 2.0 for share in clock.shares[1:])


def test_the_same_command_goes_on_where_the_budget_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = study(blocks=12, budget="10s", targets="runner_up")
    clock = Clock(made, monkeypatch, scores=2.0, bounds=0.5)
    with made.open_store(tmp_path) as store:
        for begun in (0, 3, 6):
            budget = TimeBudget(10.0, clock.seconds, lambda: clock.seconds)
            assert time_budget.incomplete(made, store, BOUNDS)[0].input_id == begun
            left = run_within(budget, made, store, BOUNDS, clock.run(store), Stop())
        assert not left and [i for group in clock.groups for i in group] == list(range(INPUTS))


def test_bounds_that_are_added_to_a_run_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = study(blocks=12, budget="10s", targets="runner_up")
    clock = Clock(made, monkeypatch, scores=0.0, bounds=4.0)
    with made.open_store(tmp_path) as store:
        made.run(store, chunk_size=64)
        left = run_within(TimeBudget(10.0, 0.0, lambda: clock.seconds), made, store, BOUNDS, clock.run(store), Stop())
        assert clock.seconds == 8.0 and len(left) == INPUTS - 2


def test_probes_of_masking_end_with_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[int] = []
    probe = masking.probe
    monkeypatch.setattr(masking, "probe", lambda *arguments: (probed.append(1), probe(*arguments))[1])
    for folder, seconds, count in (("short", 0.0, 1), ("long", 1e9, 4)):
        made = study(targets="runner_up")
        with made.open_store(tmp_path / folder) as store:
            probed_signs(made, store, most_seconds=seconds)
        assert sum(probed) == count
        probed.clear()


def test_the_command_ends_with_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with 2 ms of sleep per point, which takes minutes without a budget."""
    monkeypatch.setenv("WAIT", "0.002")
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).random((20, 3, 4, 4), np.float32))
    began = time.monotonic()
    command = ("score", "tests.runs.studies:Waiting", tmp_path / "data.npz", "--bounds", "0,1")
    ended = cleverscore(*command, "--budget", "8s", "--out", tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - began < 60.0
    assert "the budget of 8s is used up" in ended.stderr and "of 20 inputs are complete" in ended.stderr
    assert "unfinished" in cleverscore("show", tmp_path / "run").stderr
