"""Data that is read row by row, so that scoring a few pictures of a large folder does not load all of them."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cleverscore.errors import CleverWarning, InputError

Images = npt.NDArray[np.floating]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """A data set that is read row by row.

    count           number of rows.
    read            function of k row numbers; returns their inputs (k, *input_shape).
    labels          (count,), or None if the data has no labels.
    fingerprint     function that returns a hash of the data; for a folder of pictures, of names and sizes of files.
    class_names     names of the classes, if the data has them.
    """

    count: int
    read: Callable[[Sequence[int]], Images]
    labels: Labels | None
    fingerprint: Callable[[], str]
    class_names: tuple[str, ...] | None = None


def array_source(x: Images, labels: Labels | None, class_names: Sequence[str] | None = None) -> Source:
    """A source of inputs (n, *input_shape) and labels (n,) that are in memory."""

    def fingerprint() -> str:
        digest = hashlib.sha256(np.ascontiguousarray(x).tobytes())
        digest.update(str((x.shape, str(x.dtype))).encode())
        if labels is not None:
            digest.update(np.ascontiguousarray(labels).tobytes())
        return digest.hexdigest()[:16]

    def read(rows: Sequence[int]) -> Images:
        return x if len(rows) == len(x) and list(rows) == list(range(len(x))) else x[np.asarray(rows, np.int64)]

    return Source(len(x), read, labels, fingerprint, None if class_names is None else tuple(class_names))


def checked_inputs(x: npt.NDArray[Any], where: str) -> Images:
    """Inputs (n, *input_shape) as floats, bytes divided by 255; else an InputError that names them as `where`."""
    if x.dtype == np.uint8:
        x = x.astype(np.float32) / 255.0
        warnings.warn(f"{where} holds bytes; they are read as 0 to 1 (divided by 255)", CleverWarning, stacklevel=4)
    if not np.issubdtype(x.dtype, np.floating):
        raise InputError(f"{where} is of type {x.dtype}; store floats, or bytes (0 to 255, read as 0 to 1)")
    if x.ndim < 2:
        raise InputError(f"{where} has shape {x.shape}; its first axis must count the inputs")
    if x.size == 0:
        raise InputError(f"{where} is empty: there are no inputs")
    return x


def checked_labels(y: npt.NDArray[Any], count: int, where: str) -> Labels:
    """Labels (count,) as int64. Raises an InputError, which names them as `where`, if they are no class numbers."""
    if y.shape != (count,) or not np.issubdtype(y.dtype, np.integer):
        raise InputError(
            f"{where} has shape {y.shape} and type {y.dtype}; there are {count} inputs, give one whole number each"
        )
    if len(y) and (y.min() < 0 or y.max() > np.iinfo(np.int32).max):
        raise InputError(f"{where} has the label {y.min() if y.min() < 0 else y.max()}; labels count classes from 0")
    return y.astype(np.int64)


def named_labels(
    values: Sequence[str], known: Sequence[str] | None, where: str
) -> tuple[Labels, tuple[str, ...] | None]:
    """The class numbers (n,) of labels that are given as texts, and the names of the classes, None if unknown.

    known   the names of the model's classes, if it has them. Labels that are all among them get the model's numbers.
            Else texts that are all whole numbers are the class numbers, and without `known` other names are numbered
            in sorted order; with it they raise an InputError, which names the labels as `where`.

    >>> named_labels(["owl", "cat", "owl"], None, "data")
    (array([1, 0, 1]), ('cat', 'owl'))
    """
    if any(not isinstance(value, str) for value in values):  # a missing value: NaN in a table, None in a data set
        raise InputError(f"{where} has a row without a label")
    if known is not None and set(values) <= set(known):
        places = {name: place for place, name in reversed(list(enumerate(known)))}
        return np.array([places[value] for value in values], np.int64), tuple(known)
    if all(value.isascii() and value.isdecimal() and len(value) < 10 for value in values):
        return np.array([int(value) for value in values], np.int64), None
    if known is not None:
        unknown = next(value for value in values if value not in set(known))
        raise InputError(
            f"{where} has the class '{unknown}', which the model does not know ({', '.join(known[:5])}, ...)"
        )
    names = tuple(sorted(set(values)))
    places = {name: place for place, name in enumerate(names)}
    return np.array([places[value] for value in values], np.int64), names
