"""Inputs and labels by name: zoo:NAME, or an npz file with arrays x (inputs) and, if there are labels, y."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cleverscore.errors import CleverWarning, InputError, LoadError
from cleverscore.zoo import shipped

FORMS = "zoo:NAME or file.npz with arrays x and y"
Images = npt.NDArray[np.floating]
Labels = npt.NDArray[np.int64]


def load_data(data: str) -> tuple[Images, Labels | None]:
    """Inputs (n, *input_shape) and labels (n,), or None where the data has no labels.

    >>> images, labels = load_data("zoo:mnist")
    >>> images.shape
    (200, 1, 28, 28)
    """
    if data.startswith("zoo:"):
        return shipped.data(data.removeprefix("zoo:"))
    path = Path(data)
    if not path.exists():
        raise LoadError(f"the data '{data}' does not exist; give {FORMS}")
    if path.suffix != ".npz":
        raise LoadError(f"'{data}' is not an npz file; give {FORMS}")
    return _npz(path)


def _npz(path: Path) -> tuple[Images, Labels | None]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            if "x" not in stored:
                raise LoadError(f"'{path}' has no array 'x' (it has: {', '.join(stored.files) or 'nothing'})")
            x = stored["x"]
            y = stored.get("y")
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise LoadError(f"'{path}' cannot be read as an npz file: {error}") from error
    if x.dtype == np.uint8:
        x = x.astype(np.float32) / 255.0
        warnings.warn(f"'{path}' holds bytes; they are read as 0 to 1 (divided by 255)", CleverWarning, stacklevel=3)
    if not np.issubdtype(x.dtype, np.floating):
        raise InputError(
            f"array 'x' of '{path}' is of type {x.dtype}; store floats, or bytes (0 to 255, read as 0 to 1)"
        )
    if x.ndim < 2:
        raise InputError(f"array 'x' of '{path}' has shape {x.shape}; its first axis must count the inputs")
    if len(x) == 0:
        raise InputError(f"array 'x' of '{path}' is empty: there are no inputs")
    return x, None if y is None else _labels(y, len(x), path)


def _labels(y: npt.NDArray[np.generic], count: int, path: Path) -> Labels:
    if y.shape != (count,) or not np.issubdtype(y.dtype, np.integer):
        raise InputError(
            f"array 'y' of '{path}' has shape {y.shape} and type {y.dtype}; there are {count} inputs, give one whole "
            "number each"
        )
    return y.astype(np.int64)
