"""Finished units as compressed files of arrays, written whole or not at all; the same arrays give the same bytes."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paper.medium.plan import Unit, words
from paper.sizes import Size

Arrays = Mapping[str, npt.NDArray[Any]]
UNITS = Path(__file__).parent / "units"
MADE = (1980, 1, 1, 0, 0, 0)  # the date of every member, so that bytes do not depend on the day
UNREADABLE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


def about(unit: Unit, size: Size, weights: str) -> str:
    """What a unit was computed from: its question, the sizes that matter for it, and the weights of its network."""
    return json.dumps({"question": unit.question, "size": words(unit, size), "weights": weights}, sort_keys=True)


def matches(text: str, unit: Unit, size: Size, weights: str | None) -> bool:
    """Whether a unit that says this of itself is the one that is wanted."""
    return text == about(unit, size, json.loads(text)["weights"] if weights is None else weights)


class Store:
    """A folder of units, and beside it the seconds that each took on the machine that computed it."""

    def __init__(self, folder: Path = UNITS) -> None:
        self.folder = folder

    def has(self, unit: Unit, size: Size, weights: str | None) -> bool:
        """Whether a unit is there, whole, in this size and of these weights (None: whichever)."""
        try:
            with (self.folder / unit.file).open("rb") as file, np.load(file, allow_pickle=False) as content:
                return matches(str(content["about"]), unit, size, weights)
        except UNREADABLE:
            return False

    def load(self, unit: Unit) -> Arrays | None:
        """The arrays of a unit; None where it is not there or torn."""
        try:
            with (self.folder / unit.file).open("rb") as file, np.load(file, allow_pickle=False) as content:
                return {name: content[name] for name in content.files}
        except UNREADABLE:
            return None

    def save(self, unit: Unit, arrays: Arrays) -> None:
        """Keep the arrays of a unit."""
        path = self.folder / unit.file
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.part")
        with draft.open("wb") as file:
            file.write(packed(arrays))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)

    def note(self, unit: Unit, seconds: float) -> None:
        """Append what a unit took: it differs from machine to machine, so it is no part of the unit."""
        with (self.folder / "seconds.csv").open("a") as file:
            file.write(f"{unit.file},{seconds:.1f}\n")

    def seconds(self) -> dict[str, float]:
        """Seconds by file; the last note counts."""
        try:
            lines = (self.folder / "seconds.csv").read_text().splitlines()
        except OSError:
            return {}
        parts = (line.rsplit(",", 1) for line in lines if "," in line)
        return {name: float(value) for name, value in parts}


def packed(arrays: Arrays) -> bytes:
    """The bytes of a .npz file; unlike those of numpy they hold no date and no name of a machine."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(arrays):
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(arrays[name], order="C"), allow_pickle=False)
            about = zipfile.ZipInfo(f"{name}.npy", MADE)
            about.compress_type, about.create_system = zipfile.ZIP_DEFLATED, 3
            archive.writestr(about, member.getvalue(), compresslevel=9)
    return target.getvalue()
