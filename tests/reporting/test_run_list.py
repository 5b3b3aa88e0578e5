"""The list of runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cleverscore.reporting.run_list import listed
from cleverscore.runs.store import FILE_NAME, Store
from tests.stored_runs import made_run


def test_reading_a_run_does_not_make_it_younger(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", inputs=3, norms=("2",))
    written = time.time() - 7200.0
    os.utime(run / FILE_NAME, (written, written))
    with Store.open(run) as store:
        assert store.done()
        log = run / f"{FILE_NAME}-wal"
        assert log.stat().st_mtime > written + 7000.0  # a reader makes this file, and may leave it behind
        (found,) = listed(tmp_path)
    assert abs(found.changed - written) < 1.0


def test_what_a_running_study_has_written_counts(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", inputs=3, norms=("2",))
    written = time.time() - 7200.0
    with Store.open(run, write=True) as store:
        os.utime(run / FILE_NAME, (written, written))
        store.remember("note", "still running")
        (found,) = listed(tmp_path)
    assert found.changed > written + 7000.0
