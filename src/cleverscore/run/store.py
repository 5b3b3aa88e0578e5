"""The run directory: one SQLite file in WAL mode that holds the settings and every block maximum.

Scores are not stored: they follow from the maxima, so a better estimator can be applied to an old run.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from cleverscore.errors import StoreError
from cleverscore.run.thumbnails import Picture
from cleverscore.score import Evidence

FILE_NAME = "run.sqlite"
SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE maxima (
    input INTEGER NOT NULL, norm TEXT NOT NULL, target INTEGER NOT NULL, first_block INTEGER NOT NULL,
    rank INTEGER NOT NULL, label INTEGER, predicted INTEGER NOT NULL, margin REAL NOT NULL, block_size INTEGER NOT NULL,
    maxima BLOB NOT NULL, seconds REAL NOT NULL, stopped TEXT NOT NULL,
    PRIMARY KEY (input, norm, target, first_block)
);
"""
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
                connection.executescript(SCHEMA)
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
                item.block_sizes[rank], np.ascontiguousarray(item.maxima[rank], "<f8").tobytes(), item.seconds,
                item.stopped[rank],
            )
            for rank, target in enumerate(item.targets)
        ]  # fmt: skip
        try:
            with self._connection:
                self._connection.executemany(f"INSERT INTO maxima VALUES ({', '.join('?' * 12)})", rows)
        except sqlite3.Error as error:
            raise StoreError(f"results of input {item.input_id} cannot be written to {self.folder}: {error}") from error

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
        return [_evidence(rows) for rows in grouped.values()]


def _evidence(rows: list[tuple[Any, ...]]) -> Evidence:
    def column(position: int) -> Iterable[Any]:
        return (row[position] for row in rows)

    first = rows[0]
    return Evidence(
        input_id=first[0],
        label=first[1],
        predicted=first[2],
        targets=tuple(column(3)),
        margins=tuple(column(4)),
        maxima=tuple(np.frombuffer(blob, "<f8").astype(np.float64) for blob in column(5)),
        block_sizes=tuple(column(6)),
        seconds=first[7],
        stopped=tuple(column(8)),
    )
