from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from cleverscore.errors import CleverError, StoreError
from cleverscore.runs.results import stored_scores
from cleverscore.runs.schema import StoredBlocks, measurements_of
from cleverscore.runs.store import Store
from tests.helpers import ROOT, SCORE_DIGITS, cleverscore
from tests.runs.studies import run, study, table
from tests.stored_runs import made_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(folder)
    return folder


def test_a_run_killed_twenty_times_equals_one_that_was_not(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.killed", folder, "20", "1"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}, cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    killed = done.stdout.split().count("killed")
    assert killed >= 10, done.stdout  # the last ones may find nothing left to do
    run(folder)
    pd.testing.assert_frame_equal(table(folder), table(whole), check_exact=True)
    with Store.open(folder) as store, Store.open(whole) as other:
        shards = store.shards()
        finished = [content for _, _, content, seconds, _ in shards if seconds is not None]
        assert len(other.shards()) >= 60
        # A shard that is stored is never given out again, and each kill costs at most the one under way.
        assert sorted(finished) == sorted(content for _, _, content, _, _ in other.shards())
        assert len(shards) - len(finished) <= killed


def test_two_writers_are_refused_and_readers_are_not(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    with Store.open(folder, write=True) as store:
        with pytest.raises(StoreError, match=rf"written by process {os.getpid()} on .*: wait until"):
            Store.open(folder, write=True)
        with Store.open(folder) as reader:
            assert len(reader.done()) == 16
        with pytest.raises(StoreError, match="is being written"):
            study().open_store(folder, fresh=True)
        store.remember("note", 1)
        with Store.open(folder) as reader:
            assert reader.meta["note"] == 1  # what is written is seen at once
    Store.open(folder, write=True).close()


def test_the_command_line_refuses_a_second_writer(tmp_path: Path) -> None:
    command = [*SCORE_DIGITS, "--limit", 2, "--preset", "paper", "--blocks", 12, "--block-size", 16]
    assert cleverscore(*command, "--out", tmp_path / "run").returncode == 0
    with Store.open(tmp_path / "run", write=True):
        refused = cleverscore(*command, "--out", tmp_path / "run")
        assert refused.returncode == 2 and "is being written by process" in refused.stderr
        assert cleverscore("show", tmp_path / "run").returncode == 0


def test_a_run_in_a_folder_that_cannot_be_written_is_read(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "run.lock").unlink(missing_ok=True)
    folder.chmod(0o555)
    try:
        with Store.open(folder) as store:
            assert len(store.done()) == 16
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize(("version", "words"), [(3, "an older cleverscore"), (99, "a newer cleverscore")])
def test_other_formats_are_refused(tmp_path: Path, version: int, words: str) -> None:
    run = made_run(tmp_path / "run", inputs=2, pictures=False)
    with sqlite3.connect(run / "run.sqlite") as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    for write in (False, True):
        with pytest.raises(StoreError, match=words):
            Store.open(run, write=write)


def test_a_truncated_file_is_refused(whole: Path, tmp_path: Path) -> None:
    content = (whole / "run.sqlite").read_bytes()
    for share in (0.0, 0.001, 0.1, 0.5, 0.9, 0.999):
        folder = tmp_path / str(share)
        folder.mkdir()
        (folder / "run.sqlite").write_bytes(content[: int(len(content) * share)])
        for command in (["show", folder], ["export", folder], ["report", folder]):
            done = cleverscore(*command)
            assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
            assert "not a run" in done.stderr or "is damaged" in done.stderr, done.stderr
        if share < 0.999:  # the end of the file holds rows that are dropped and computed again
            with pytest.raises(StoreError, match="not a run"):
                Store.open(folder, write=True)


def table_or_words(folder: Path) -> pd.DataFrame | str:
    try:
        return table(folder)
    except CleverError as error:
        return str(error)


def test_flipped_bits_are_never_taken_for_results(whole: Path, tmp_path: Path) -> None:
    content = bytearray((whole / "run.sqlite").read_bytes())
    before = table(whole)
    chance = random.Random(5)
    said = mended = 0
    for trial in range(60):
        folder = tmp_path / str(trial)
        folder.mkdir()
        place, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
        content[place] ^= bit
        (folder / "run.sqlite").write_bytes(content)
        content[place] ^= bit
        seen = table_or_words(folder)
        if isinstance(seen, str):
            said += 1
            assert any(word in seen for word in ("damaged", "can be read", "newer")), seen
        else:
            pd.testing.assert_frame_equal(seen, before)
        try:  # the same command again either refuses or brings everything back
            run(folder)
        except CleverError:
            continue
        mended += 1
        pd.testing.assert_frame_equal(table(folder), before)
    assert said > 10 and mended > 10


def test_damaged_rows_are_named_and_computed_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [*SCORE_DIGITS, "--limit", 3, "--preset", "paper", "--blocks", 12, "--block-size", 16, "--out", folder]
    first = cleverscore(*command)
    with sqlite3.connect(folder / "run.sqlite") as connection:
        connection.execute("UPDATE parts SET maxima = zeroblob(length(maxima)) WHERE input = 1")
        connection.execute("DELETE FROM tails")
    connection.close()
    shown = cleverscore("show", folder)
    assert shown.returncode == 2 and "results of input 1" in shown.stderr
    again = cleverscore(*command)
    assert "damaged and dropped, to be computed again: parts of input 1" in again.stderr
    assert again.stdout == first.stdout and cleverscore("show", folder).stdout == first.stdout


def test_kept_fits_are_used_and_renewed(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    with Store.open(folder) as store:
        full, light = stored_scores(store), stored_scores(store, maxima=False)
    pd.testing.assert_frame_equal(full.to_frame(), light.to_frame())
    assert len(light[0].maxima) == 0 and len(full[0].maxima) == 30
    from cleverscore.runs import results as reading

    def refused(*_: object) -> list:
        raise AssertionError("fitted again")

    read: list[bool] = []
    by_norm = Store.measurements_by_norm

    def noted(store: Store, norms: list[str], *, maxima: bool = True, **options: object) -> dict:
        read.append(maxima)
        return by_norm(store, norms, maxima=maxima, **options)

    with Store.open(folder, write=True) as store:
        with monkeypatch.context() as patch:
            patch.setattr(reading, "fit_tails", lambda items, rule: refused() if items else [])
            pd.testing.assert_frame_equal(stored_scores(store, maxima=False).to_frame(), full.to_frame())
            patch.setattr(Store, "measurements_by_norm", noted)
            for command in ("show", "export"):  # fast for runs of many inputs: no fit, and no maxima from the disk
                assert cleverscore(command, folder).returncode == 0
            assert read and not any(read)
        store._connection.execute("UPDATE tails SET estimator = 'older', crc = NULL")
        store._connection.commit()
        pd.testing.assert_frame_equal(stored_scores(store, maxima=False).to_frame(), full.to_frame())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_costs_nothing_that_was_stored(small_disk: Path, whole: Path) -> None:
    folder = small_disk / "run"
    made = study()
    with made.open_store(folder) as store:
        made.run(store, chunk_size=64, costs=_first_norm(), shard_seconds=1.0)
    kept = table(folder)
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(bytes(free.f_bavail * free.f_frsize - 100_000))
    with pytest.raises(StoreError, match=r"cannot be written to .*(disk is full|No space left|disk I/O error)"):
        run(folder)
    pd.testing.assert_frame_equal(table(folder).head(len(kept)), kept)
    filler.unlink()
    run(folder)
    pd.testing.assert_frame_equal(table(folder), table(whole), check_exact=True)


def _first_norm() -> dict:
    from tests.runs.studies import COSTS

    return {"2": COSTS["2"]}


def test_the_command_line_tells_of_a_full_disk(small_disk: Path) -> None:
    command = [*SCORE_DIGITS, "--limit", 40, "--preset", "paper", "--blocks", 100, "--block-size", 4]
    command += ["--out", small_disk / "run", "--shard-seconds", 0.05]
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1_100_000))
    done = cleverscore(*command)
    assert done.returncode == 2 and "cannot be written" in done.stderr and "Traceback" not in done.stderr, done.stderr
    shown = cleverscore("show", small_disk / "run")
    assert shown.returncode == 0, shown.stderr
    filler.unlink()
    resumed = cleverscore(*command)
    assert resumed.returncode == 0 and "resuming" in resumed.stderr, resumed.stderr


def test_parts_in_any_order_are_one_input(tmp_path: Path, whole: Path) -> None:
    with Store.open(whole) as store:
        rows = list(store._rows("parts", "WHERE norm = '2' AND input = 3 ORDER BY first_block DESC", (), "maxima"))
        meta, wanted = store.meta, store.measurements("2", inputs=[3])[0]
    with Store.create(tmp_path / "other", meta) as store:
        for row in rows[:-1]:
            item = measurements_of(row[0], row[4], row[5])
            store.append([StoredBlocks("2", item, row[2], whole=False)])
        partial = store.measurements("2")[0]
        assert partial.stopped[0] == "unfinished" and partial.counts[0] == 25 and store.done() == set()
        last = rows[-1]
        store.append([StoredBlocks("2", measurements_of(last[0], last[4], last[5]), last[2], whole=False)])
        merged = store.measurements("2")[0]
    assert merged.stopped == wanted.stopped and all(map(lambda a, b: (a == b).all(), merged.maxima, wanted.maxima))
