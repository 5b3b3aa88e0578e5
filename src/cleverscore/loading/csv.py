"""CSV tables: a column of labels, and columns of numbers or one column of texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cleverscore.errors import InputError, LoadError
from cleverscore.loading.safe_files import reading
from cleverscore.loading.sources import Source, array_source, named_labels


def table_source(
    path: Path,
    preparation: Any,
    class_names: Sequence[str] | None,
    input_shape: Sequence[int] | None,
    options: dict[str, str],
) -> Source:
    """A source of the rows of a CSV file, with one input per row.

    preparation     how the classifier makes inputs of texts; for other classifiers, columns are numbers.
    class_names     the names of the classifier's classes, if it has them, by which labels are numbered.
    input_shape     the shape of the classifier's inputs, if known: a row with as many numbers gets this shape.
    options         label=COLUMN, drop=COLUMN,COLUMN and, for text classifiers, text=COLUMN. Options that were used are
                    removed.
    """
    import pandas

    with reading(path, "a table (CSV)"):
        frame = pandas.read_csv(path, sep=None, engine="python", dtype=str, keep_default_na=False)
    if frame.empty:
        raise LoadError(f"the table '{path}' has no rows below its first line, which names the columns")
    columns = [str(name) for name in frame.columns]
    label = options.pop("label", None)
    text = options.pop("text", None)
    dropped = [name for name in options.pop("drop", "").split(",") if name]
    for name in filter(None, [label, text, *dropped]):
        if name not in columns:
            raise LoadError(f"the table '{path}' has no column '{name}' (it has: {', '.join(columns[:20])})")
    labels, names = None, None
    if label is not None:
        labels, names = named_labels(frame[label].tolist(), class_names, f"the column '{label}' of '{path}'")
    if hasattr(preparation, "encode"):
        if text is None:
            raise LoadError(f"say which column of '{path}' holds the texts: {path}?text=COLUMN&label=COLUMN")
        return array_source(preparation.encode(frame[text].tolist()), labels, names)
    if text is not None:
        raise LoadError(f"text={text}: the model takes numbers, not texts")
    kept = [name for name in columns if name != label and name not in dropped]
    if not kept:
        raise InputError(f"the table '{path}' has no columns but '{label}'")
    x = np.stack([_numbers(frame[name].tolist(), name, path) for name in kept], 1)
    if input_shape is not None and len(input_shape) > 1 and math.prod(input_shape) == x.shape[1]:
        x = x.reshape(-1, *input_shape)
    return array_source(x, labels, names)


def _numbers(values: list[str], name: str, path: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    try:
        return np.array(values, np.float32)
    except ValueError:
        row = next(i for i, value in enumerate(values) if not _is_number(value))
        hint = "if it holds the classes, say ?label=" if not values[row].strip().isdecimal() else "leave it out: ?drop="
        raise InputError(
            f"row {row} of the column '{name}' of '{path}' is '{values[row][:40]}', not a number; {hint}{name}"
        ) from None


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
