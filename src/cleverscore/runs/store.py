"""The run directory: an SQLite file in WAL mode with settings, block maxima, and results of attacks and proofs.

Scores are computed from the stored maxima, so a better tail fit can be applied to an old run. Fitted tails are also
stored, with the name of the fit, so that large runs open fast.

Every row carries a checksum. A row that does not match its checksum is never used: reading reports it, and a resumed
run computes it again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from cleverscore.brackets.records import AttackRecord, CertificateRecord
from cleverscore.errors import StoreError
from cleverscore.estimators.measurements import Measurements
from cleverscore.norms import norm_name, parse_norm
from cleverscore.runs.lock import RunLock
from cleverscore.runs.schema import (
    ANY_CLASS,
    COLUMNS,
    EVERYTHING,
    SCHEMA_VERSION,
    TABLES,
    StoredBlocks,
    crc,
    measurements_of,
    merged,
    numbers_of,
    part_row,
    tail_of,
    with_crc,
)
from cleverscore.runs.thumbnails import Picture
from cleverscore.scores.score import Tail

Array = npt.NDArray[np.float64]

FILE_NAME = "run.sqlite"
BALLAST = "run.ballast"  # deleted when the disk is full: its space lets SQLite close the file in a readable state
BALLAST_BYTES = 2**19
CHECKED_BYTES = 64 * 2**20  # readers check the structure of files up to this size, writers that of every file
BUSY_SECONDS = 30.0


class Store:
    """A run directory, open for reading or, by one process at a time, for writing.

    The results of a shard are written in one transaction, so a shard is stored completely or not at all.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock: RunLock | None = None) -> None:
        self.folder = folder
        self._connection = connection
        self._lock = lock

    @classmethod
    def create(cls, folder: Path, meta: dict[str, Any]) -> Store:
        """Create a run with these entries of `meta` and open it for writing; the folder must not contain a run."""
        path = folder / FILE_NAME
        lock = RunLock(folder)
        # Made under another name and then renamed, so that a reader never sees a store without its tables.
        new = path.with_suffix(f".new-{os.getpid()}")
        try:
            if path.exists():
                raise StoreError(f"{folder} holds a run already")
            with closing(sqlite3.connect(new)) as connection, connection:
                for name, columns in TABLES.items():
                    connection.execute(f"CREATE TABLE {name} ({columns})")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                rows = [with_crc((key, json.dumps(value))) for key, value in meta.items()]
                connection.executemany("INSERT INTO meta VALUES (?, ?, ?)", rows)
            new.replace(path)
            return cls(folder, _writable(path), lock)
        except (OSError, sqlite3.Error) as error:
            lock.release()
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise StoreError(f"{folder} cannot be written: {error}") from error
        except StoreError:
            lock.release()
            raise

    @classmethod
    def open(cls, folder: Path | str, *, write: bool = False) -> Store:
        """Open an existing run; for writing, it is locked and checked."""
        folder = Path(folder)
        path = folder / FILE_NAME
        if not path.is_file():
            raise StoreError(
                f"{folder} holds no run (no {FILE_NAME} in it); make one with: cleverscore score ... --out {folder}"
            )
        lock = RunLock(folder) if write else None
        connection = None
        try:
            connection = _writable(path) if write else _readable(path)
            _check(connection, path, thorough=write)
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version != SCHEMA_VERSION:
                age, way_out = ("a newer", "upgrade") if version > SCHEMA_VERSION else ("an older", "score again")
                raise StoreError(
                    f"{folder} was written by {age} cleverscore (format {version}, this one knows {SCHEMA_VERSION}); "
                    f"{way_out} to use it"
                )
        except (sqlite3.Error, StoreError, ValueError) as error:
            if connection is not None:
                connection.close()
            if lock is not None:
                lock.release()
            raise error if isinstance(error, StoreError) else _unreadable(path, error) from error
        return cls(folder, connection, lock)

    def close(self) -> None:
        """Close the file and release the lock."""
        with suppress(sqlite3.Error):
            self._connection.close()
        if self._lock is not None:
            with suppress(OSError):
                (self.folder / BALLAST).unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _writing(self, what: str) -> Iterator[sqlite3.Connection]:
        """One transaction; `what` names its content in an error. If it fails, perhaps because the disk is full, the
        reserve file is deleted, so that there is space to close the database.
        """
        ballast = self.folder / BALLAST
        try:
            if self._lock is not None and not ballast.exists():
                ballast.write_bytes(bytes(BALLAST_BYTES))
            with self._connection:
                yield self._connection
        except (OSError, sqlite3.Error) as error:
            with suppress(OSError):
                ballast.unlink(missing_ok=True)
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            raise StoreError(
                f"{what} cannot be written to {self.folder}: {error}; what was stored before is kept, and the same "
                "command goes on from there"
            ) from error

    def _rows(self, table: str, rest: str = "", values: Sequence[Any] = (), more: str = "") -> Iterator[Any]:
        """The rows of a table; a row that does not match its checksum raises a StoreError.

        rest, values    the end of the query, such as "WHERE norm = ?", and the values of its question marks.
        more            further columns to read, which the checksum does not cover.
        """
        columns = COLUMNS[table]
        width = columns.count(",") + 1
        extra = f", {more}" if more else ""
        try:
            # The table itself and not its index: a row that only the index has lost would be lost silently.
            query = f"SELECT {columns}, crc{extra} FROM {table} NOT INDEXED {rest}"
            for row in self._connection.execute(query, values):
                if row[width] is not None and row[width] != crc(row[:width]):
                    raise self._damaged(table, row[0])
                yield (*row[:width], *row[width + 1 :])
        except sqlite3.Error as error:
            raise _unreadable(self.folder / FILE_NAME, error) from error

    def _damaged(self, table: str, key: Any) -> StoreError:
        what, way_out = f"the results of input {key}", "the command that made the run, given again, computes them anew"
        if table == "meta":
            what, way_out = f"the entry {key!r}", "restore a copy, or start over with --fresh"
        return StoreError(
            f"{self.folder / FILE_NAME} is damaged: {what} ({table}) do not match their checksum; {way_out}"
        )

    @property
    def meta(self) -> dict[str, Any]:
        """Entries about the whole run by key, such as "config", "versions", "class_names" and "chunk_sizes"."""
        return {key: json.loads(value) for key, value in self._rows("meta")}

    def remember(self, key: str, value: Any) -> None:
        """Store a value about the whole run under a key, replacing the previous one."""
        with self._writing(key) as connection:
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", with_crc((key, json.dumps(value))))

    def drop_corrupt_rows(self) -> list[str]:
        """Delete rows that do not match their checksums, so that they are computed again.

        Returns a text for each deleted row, such as "parts of input 3". A damaged entry of `meta` raises a StoreError.
        """
        dropped = []
        with self._writing("repairs") as connection:
            for table, columns in COLUMNS.items():
                bad = [
                    (row[0], row[1])
                    for row in connection.execute(f"SELECT rowid, {columns}, crc FROM {table}")
                    if row[-1] is not None and row[-1] != crc(row[1:-1])
                ]
                if table == "parts":
                    blobs = connection.execute("SELECT rowid, input, maxima, blob_crc FROM parts")
                    bad += [(row[0], row[1]) for row in blobs if row[3] is not None and row[3] != zlib.crc32(row[2])]
                if bad and table == "meta":
                    raise self._damaged(table, bad[0][1])
                for rowid, key in dict(bad).items():
                    connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
                    dropped.append(f"{table} of input {key}")
        return dropped

    def forget(self, places: Collection[tuple[int, str]]) -> None:
        """Delete the measurements and tails of (input, series) pairs, so that they are computed again."""
        with self._writing("results to be computed again") as connection:
            for table in ("parts", "tails"):
                connection.executemany(f"DELETE FROM {table} WHERE input = ? AND norm = ?", list(places))

    def append_pictures(self, pictures: Mapping[int, Picture]) -> None:
        """Store small pictures of inputs; pictures that are already stored stay."""
        rows = [with_crc((i, *picture.shape, zlib.compress(picture.tobytes()))) for i, picture in pictures.items()]
        if rows:
            with self._writing("pictures of inputs") as connection:
                connection.executemany("INSERT OR IGNORE INTO pictures VALUES (?, ?, ?, ?, ?, ?)", rows)

    def pictures(self) -> dict[int, Picture]:
        """Small pictures of the inputs by id, (height, width, channels) each."""
        return {
            row[0]: np.frombuffer(zlib.decompress(row[4]), np.uint8).reshape(row[1:4])
            for row in self._rows("pictures", "ORDER BY input")
        }

    def append_adversarials(self, found: Mapping[tuple[int, str], tuple[float, int, Picture]]) -> None:
        """Store adversarial inputs by (input, norm): distance, class and picture; earlier ones are replaced."""
        rows = [
            with_crc((i, norm, float(length), int(other), *picture.shape, zlib.compress(picture.tobytes())))
            for (i, norm), (length, other, picture) in found.items()
        ]
        if rows:
            with self._writing("pictures of attacks") as connection:
                connection.executemany(
                    f"INSERT OR REPLACE INTO adversarials VALUES ({', '.join('?' * len(rows[0]))})", rows
                )

    def adversarials(self) -> dict[tuple[int, str], tuple[float, int, Picture]]:
        """The nearest adversarial input per (input, norm): its distance, its class and its picture."""
        return {
            (row[0], row[1]): (row[2], row[3], np.frombuffer(zlib.decompress(row[7]), np.uint8).reshape(row[4:7]))
            for row in self._rows("adversarials", "ORDER BY input")
        }

    def pictured(self) -> set[int]:
        """Inputs whose picture is stored."""
        return {row[0] for row in self._connection.execute("SELECT input FROM pictures")}

    def began(self, norm: str, content: str) -> int:
        """Record that a shard (its series and `Shard.content`) was given to a worker; returns the shard's number."""
        with self._writing("a new shard") as connection:
            row = (norm, content)
            return int(connection.execute("INSERT INTO shards (norm, content) VALUES (?, ?)", row).lastrowid or 0)

    def append(
        self, parts: Sequence[StoredBlocks], *, shard: int | None = None, seconds: float = 0.0, worker: str = ""
    ) -> None:
        """Store the results of a shard in one transaction, with its seconds and worker.

        shard   the number that `began` gave; without it, only the results are stored.
        """
        rows = [part_row(part) for part in parts]
        names = ", ".join(str(part.measurements.input_id) for part in parts)
        with self._writing(f"results of input {names}") as connection:
            connection.executemany("INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            if shard is not None:
                values = (seconds, worker, shard)
                connection.execute("UPDATE shards SET seconds = ?, worker = ? WHERE number = ?", values)

    def shards(self) -> list[tuple[int, str, str, float | None, str | None]]:
        """All shards that were given to a worker: number, series, content, and, if finished, seconds and worker."""
        return list(self._connection.execute("SELECT number, norm, content, seconds, worker FROM shards"))

    def covered(self) -> dict[tuple[int, str], list[range]]:
        """The stored blocks of each (input, series); an input that was measured as a whole has `range(EVERYTHING)`."""
        found: dict[tuple[int, str], list[range]] = {}
        for input_id, norm, first, whole, metadata in self._rows("parts", "ORDER BY input, norm, first_block"):
            blocks = range(EVERYTHING) if whole else range(first, first + max(json.loads(metadata)["counts"]))
            found.setdefault((input_id, norm), []).append(blocks)
        return found

    def done(self, covered: Mapping[tuple[int, str], Sequence[range]] | None = None) -> set[tuple[int, str]]:
        """The (input, series) pairs of which all blocks are stored; pass `covered` to avoid reading it again."""
        wanted = self._blocks
        there = self.covered() if covered is None else covered
        return {key for key, ranges in there.items() if sum(map(len, ranges)) >= wanted}

    @property
    def _blocks(self) -> int:
        config = self.meta.get("config", {})
        return int(config.get("blocks", 0))

    def append_bounds(self, records: Sequence[AttackRecord | CertificateRecord]) -> None:
        """Store the results of attacks or certificates for a batch of inputs in one transaction."""
        with self._writing("bounds") as connection:
            for record in records:
                name, _norm, *numbers = list(astuple(record))[2:]
                if isinstance(record, AttackRecord):
                    numbers[0] = int(numbers[0])
                plain = [n if type(n) is int else float(n) for n in numbers]
                target = ANY_CLASS if record.target is None else int(record.target)
                row = with_crc((int(record.input), target, name, norm_name(record.p), *plain))
                place = "attacks" if isinstance(record, AttackRecord) else "certificates"
                connection.execute(f"INSERT INTO {place} VALUES ({', '.join('?' * len(row))})", row)

    def above(self) -> list[AttackRecord]:
        """The records of all attacks."""
        return [AttackRecord(*row) for row in self._bounds("attacks")]

    def below(self) -> list[CertificateRecord]:
        """The records of all certificates."""
        return [CertificateRecord(*row) for row in self._bounds("certificates")]

    def _bounds(self, place: str) -> Iterator[tuple[Any, ...]]:
        for input_id, target, name, norm, *rest in self._rows(place, "ORDER BY rowid"):
            yield input_id, None if target == ANY_CLASS else target, name, parse_norm(norm), *rest

    def measurements(
        self, norm: str, *, maxima: bool = True, inputs: Collection[int] | None = None
    ) -> list[Measurements]:
        """The measurements of all or some inputs in one series, sorted by input; without `maxima`, no block maxima."""
        return self.measurements_by_norm([norm], maxima=maxima, inputs=inputs)[norm]

    def measurements_by_norm(
        self, norms: Sequence[str], *, maxima: bool = True, inputs: Collection[int] | None = None
    ) -> dict[str, list[Measurements]]:
        """As `measurements`, for several series, with one pass over the table."""
        wanted = self._blocks
        chosen = "" if inputs is None else f"WHERE input IN ({', '.join(str(int(i)) for i in inputs)})"
        # Rows of all norms are compared with their checksums: one that claims another norm may be a damaged one.
        asked = f"CASE WHEN norm IN ({', '.join('?' * len(norms))}) THEN maxima END, blob_crc"
        more, values = (asked, norms) if maxima else ("NULL, NULL", ())
        found: dict[str, dict[int, list[tuple[bool, Measurements]]]] = {norm: {} for norm in norms}
        for row in self._rows("parts", f"{chosen} ORDER BY input, first_block", values, more):
            input_id, norm, _first, whole, text, blob, seal = row
            if norm not in found:
                continue
            if blob is not None and seal is not None and seal != zlib.crc32(blob):
                raise self._damaged("parts", input_id)
            found[norm].setdefault(input_id, []).append((bool(whole), measurements_of(input_id, text, blob)))
        return {norm: [merged(parts, wanted) for parts in inputs.values()] for norm, inputs in found.items()}

    def append_tails(self, norm: str, estimator: str, found: Mapping[int, Sequence[Tail]]) -> None:
        """Store the tails of a series by input, one tail per target; earlier ones are replaced.

        estimator   the key of the fit (`ScoreRule.tail_fit`).
        """
        rows = [
            with_crc((input_id, norm, estimator, json.dumps([numbers_of(tail) for tail in each])))
            for input_id, each in found.items()
        ]
        with self._writing("fitted tails") as connection:
            connection.executemany("INSERT OR REPLACE INTO tails VALUES (?, ?, ?, ?, ?)", rows)

    def tails(self, norm: str, estimator: str) -> dict[int, list[Tail]]:
        """The stored tails of a series by input, those whose fit has this key (`ScoreRule.tail_fit`)."""
        rows = self._rows("tails", "WHERE norm = ? AND estimator = ?", (norm, estimator))
        return {row[0]: [tail_of(numbers) for numbers in json.loads(row[3])] for row in rows}


def _readable(path: Path) -> sqlite3.Connection:
    """Open for reading, also while another process writes, or in a read-only folder."""
    address = f"file:{quote(str(path.resolve()))}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        if path.with_name(path.name + "-wal").exists():
            raise
        # Readers and a writer share files beside the database. Without write permission there can be none, but no
        # writer either: `immutable` opens the database without them.
        connection = sqlite3.connect(f"{address}&immutable=1", uri=True)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return connection


def _writable(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def _check(connection: sqlite3.Connection, path: Path, *, thorough: bool) -> None:
    """Raise a StoreError if the file's structure is damaged; checksums of rows are checked when rows are read."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        raise _unreadable(path, "it has no such tables")
    if thorough or path.stat().st_size <= CHECKED_BYTES:
        found = connection.execute(f"PRAGMA {'integrity_check' if thorough else 'quick_check'}(1)").fetchone()[0]
        if found != "ok":
            raise _unreadable(path, found)


def _unreadable(path: Path, error: object) -> StoreError:
    return StoreError(
        f"{path} is not a run that can be read ({error}): if it was one, restore a copy of it, or start over with "
        "--fresh"
    )
