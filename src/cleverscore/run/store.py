"""The run directory: one SQLite file in WAL mode with the settings, all block maxima and what attacks and proofs found.

Scores are not stored: they follow from the maxima, so a better estimator can be applied to an old run.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cleverscore.balls import norm_name, parse_norm
from cleverscore.bounds.evidence import Above, Below
from cleverscore.errors import StoreError
from cleverscore.profile import Profile
from cleverscore.run.thumbnails import Picture
from cleverscore.score import Evidence

Array = npt.NDArray[np.float64]

FILE_NAME = "run.sqlite"
SCHEMA_VERSION = 2  # 1 had no bounds; such a run is read as it is and upgraded when bounds are added to it
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE profiles (
    input INTEGER NOT NULL, norm TEXT NOT NULL, target INTEGER NOT NULL,
    radii BLOB NOT NULL, norms BLOB NOT NULL, gradients INTEGER NOT NULL, outcome TEXT NOT NULL,
    PRIMARY KEY (input, norm, target)
);
CREATE TABLE maxima (
    input INTEGER NOT NULL, norm TEXT NOT NULL, target INTEGER NOT NULL, first_block INTEGER NOT NULL,
    rank INTEGER NOT NULL, label INTEGER, predicted INTEGER NOT NULL, margin REAL NOT NULL, block_size INTEGER NOT NULL,
    maxima BLOB NOT NULL, seconds REAL NOT NULL, stopped TEXT NOT NULL,
    PRIMARY KEY (input, norm, target, first_block)
);
"""
# A target of -1 stands for any other class.
BOUNDS_SCHEMA = """
CREATE TABLE IF NOT EXISTS attacks (
    input INTEGER NOT NULL, target INTEGER NOT NULL, attack TEXT NOT NULL, norm TEXT NOT NULL, found INTEGER NOT NULL,
    distortion REAL NOT NULL, l1 REAL NOT NULL, l2 REAL NOT NULL, linf REAL NOT NULL, seconds REAL NOT NULL,
    PRIMARY KEY (input, target, attack, norm)
);
CREATE TABLE IF NOT EXISTS certificates (
    input INTEGER NOT NULL, target INTEGER NOT NULL, method TEXT NOT NULL, norm TEXT NOT NULL, radius REAL NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (input, target, method, norm)
);
"""
ANY_CLASS = -1
# Made when pictures come: runs of inputs that are no pictures, and older runs, have no such table.
PICTURES_SCHEMA = """
CREATE TABLE IF NOT EXISTS pictures (
    input INTEGER PRIMARY KEY, height INTEGER NOT NULL, width INTEGER NOT NULL, channels INTEGER NOT NULL,
    pixels BLOB NOT NULL
)
"""


class Store:
    """A run directory, open for reading or for appending.

    One transaction holds all targets of an (input, norm), so an input is there whole or not at all.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._connection = connection

    @classmethod
    def create(cls, folder: Path, meta: dict[str, Any]) -> Store:
        """A new run; the folder may exist but holds no run yet."""
        path = folder / FILE_NAME
        if path.exists():
            raise StoreError(f"{folder} holds a run already")
        # Made under another name and then renamed, so that a reader never sees a store without its tables.
        new = path.with_suffix(f".new-{os.getpid()}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(new)) as connection, connection:
                connection.executescript(SCHEMA + BOUNDS_SCHEMA)
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                connection.executemany("INSERT INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in meta.items()])
            new.replace(path)
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA journal_mode = WAL")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{folder} cannot be written: {error}") from error
        return cls(folder, connection)

    @classmethod
    def open(cls, folder: Path | str) -> Store:
        """An existing run."""
        folder = Path(folder)
        path = folder / FILE_NAME
        if not path.is_file():
            raise StoreError(
                f"{folder} holds no run (no {FILE_NAME} in it); make one with: cleverscore score ... --out {folder}"
            )
        try:
            connection = sqlite3.connect(path)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            connection.execute("SELECT count(*) FROM meta").fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"{path} is not a run that can be read: {error}") from error
        if version > SCHEMA_VERSION:
            raise StoreError(f"{folder} was written by a newer cleverscore (format {version}); upgrade to read it")
        return cls(folder, connection)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def meta(self) -> dict[str, Any]:
        """What the run was made with: settings, model, data, versions."""
        return {key: json.loads(value) for key, value in self._connection.execute("SELECT key, value FROM meta")}

    def remember(self, key: str, value: Any) -> None:
        """Keep something about the run as a whole, in place of what was kept under this key."""
        try:
            with self._connection:
                self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))
        except sqlite3.Error as error:
            raise StoreError(f"{key} cannot be written to {self.folder}: {error}") from error

    def append_pictures(self, pictures: Mapping[int, Picture]) -> None:
        """Keep small pictures of inputs; those that are there already stay."""
        rows = [(i, *picture.shape, zlib.compress(picture.tobytes())) for i, picture in pictures.items()]
        if not rows:
            return
        try:
            with self._connection:
                self._connection.execute(PICTURES_SCHEMA)
                self._connection.executemany("INSERT OR IGNORE INTO pictures VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise StoreError(f"pictures of inputs cannot be written to {self.folder}: {error}") from error

    def pictures(self) -> dict[int, Picture]:
        """Small pictures of the inputs, (height, width, channels) each."""
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'pictures'").fetchone():
            return {}
        return {
            row[0]: np.frombuffer(zlib.decompress(row[4]), np.uint8).reshape(row[1:4])
            for row in self._connection.execute("SELECT * FROM pictures ORDER BY input")
        }

    def done(self) -> set[tuple[int, str]]:
        """The (input, norm) pairs that are complete."""
        return set(self._connection.execute("SELECT DISTINCT input, norm FROM maxima"))

    def append(self, norm: str, item: Evidence) -> None:
        """Store one input's evidence in one transaction."""
        rows = [
            (
                item.input_id, norm, target, 0, rank, item.label, item.predicted, item.margins[rank],
                item.block_sizes[rank], _bytes(item.maxima[rank]), item.seconds,
                item.stopped[rank],
            )
            for rank, target in enumerate(item.targets)
        ]  # fmt: skip
        profiles = [
            (
                item.input_id,
                norm,
                target,
                _bytes(profile.radii),
                _bytes(profile.norms),
                profile.gradients,
                profile.outcome,
            )
            for target, profile in zip(item.targets, item.profiles, strict=bool(item.profiles))
        ]
        try:
            with self._connection:
                self._connection.executemany(f"INSERT INTO maxima VALUES ({', '.join('?' * 12)})", rows)
                if profiles:
                    self._connection.executemany(f"INSERT INTO profiles VALUES ({', '.join('?' * 7)})", profiles)
        except sqlite3.Error as error:
            raise StoreError(f"results of input {item.input_id} cannot be written to {self.folder}: {error}") from error

    def append_bounds(self, records: Sequence[Above | Below]) -> None:
        """Store what attacks or proofs found for a batch of inputs in one transaction."""
        try:
            with self._connection:
                if self._version() < SCHEMA_VERSION:
                    for statement in filter(str.strip, BOUNDS_SCHEMA.split(";")):
                        self._connection.execute(statement)
                    self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                for record in records:
                    name, *numbers = list(astuple(record))[2:]
                    target = ANY_CLASS if record.target is None else record.target
                    row = (record.input, target, name, norm_name(record.p), *numbers[1:])
                    place = "attacks" if isinstance(record, Above) else "certificates"
                    self._connection.execute(f"INSERT INTO {place} VALUES ({', '.join('?' * len(row))})", row)
        except sqlite3.Error as error:
            raise StoreError(f"bounds cannot be written to {self.folder}: {error}") from error

    def above(self) -> list[Above]:
        """All that attacks found."""
        return [Above(*row) for row in self._bounds("attacks")]

    def below(self) -> list[Below]:
        """All that was proved."""
        return [Below(*row) for row in self._bounds("certificates")]

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    def _bounds(self, place: str) -> Iterator[tuple[Any, ...]]:
        if self._version() < SCHEMA_VERSION:
            return
        for input_id, target, name, norm, *rest in self._connection.execute(f"SELECT * FROM {place} ORDER BY rowid"):
            yield input_id, None if target == ANY_CLASS else target, name, parse_norm(norm), *rest

    def evidence(self, norm: str) -> list[Evidence]:
        """All evidence for a norm, in the order of the inputs."""
        cursor = self._connection.execute(
            "SELECT input, label, predicted, target, margin, maxima, block_size, seconds, stopped FROM maxima "
            "WHERE norm = ? ORDER BY input, rank",
            (norm,),
        )
        grouped: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for row in cursor:
            grouped[row[0]].append(row)
        profiles = self._profiles(norm)
        return [_evidence(rows, profiles) for rows in grouped.values()]

    def _profiles(self, norm: str) -> dict[tuple[int, int], Profile]:
        """What ascents found, per input and target; runs made before there was a method that ascends have no table."""
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'profiles'").fetchone():
            return {}
        cursor = self._connection.execute(
            "SELECT input, target, radii, norms, gradients, outcome FROM profiles WHERE norm = ?", (norm,)
        )
        return {
            (row[0], row[1]): Profile(_floats(row[2]), _floats(row[3]), gradients=row[4], outcome=row[5])
            for row in cursor
        }


def _bytes(values: Array) -> bytes:
    return np.ascontiguousarray(values, "<f8").tobytes()


def _floats(blob: bytes) -> Array:
    return np.frombuffer(blob, "<f8").astype(np.float64)


def _evidence(rows: list[tuple[Any, ...]], profiles: dict[tuple[int, int], Profile]) -> Evidence:
    def column(position: int) -> Iterable[Any]:
        return (row[position] for row in rows)

    first = rows[0]
    return Evidence(
        input_id=first[0],
        label=first[1],
        predicted=first[2],
        targets=tuple(column(3)),
        margins=tuple(column(4)),
        maxima=tuple(map(_floats, column(5))),
        block_sizes=tuple(column(6)),
        seconds=first[7],
        stopped=tuple(column(8)),
        profiles=tuple(profiles[first[0], target] for target in column(3) if (first[0], target) in profiles),
    )
