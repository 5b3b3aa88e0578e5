"""Hugging Face data sets saved on disk (`save_to_disk`): Arrow files, read without the `datasets` package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cleverscore.errors import LoadError, MissingExtraError
from cleverscore.inputs.image_preprocessing import ImagePreprocessing
from cleverscore.loading.image_folder import open_picture, preprocessed
from cleverscore.loading.safe_files import reading
from cleverscore.loading.sources import Images, Source, array_source, checked_inputs, checked_labels, named_labels

STATE, INFO, PARTS = "state.json", "dataset_info.json", "dataset_dict.json"
USUAL_PARTS = ("test", "validation", "train")
USUAL_LABELS = ("label", "labels", "y", "target")
USUAL_INPUTS = ("x", "pixel_values", "inputs", "features", "data")


def is_dataset_folder(path: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return (path / STATE).is_file() or (path / PARTS).is_file()


def arrow_source(folder: Path, preparation: Any, class_names: Sequence[str] | None, options: dict[str, str]) -> Source:
    """Inputs and labels of a saved data set.

    preparation     how the classifier makes inputs of pictures or texts; None: pictures get the size of the first.
    class_names     the names of the classifier's classes, if it has them, by which labels are numbered.
    options         split, input and label: names of the split and of the two columns. Default: a usual split (test
                    first), and columns found by their type or a usual name. Options that were used are removed.
    """
    with reading(folder, "a saved data set"):
        folder = _part(folder, options.pop("split", None))
        features = json.loads((folder / INFO).read_text())["features"]
        table = _table(folder)
        label = _column(options.pop("label", None), features, _is_label, USUAL_LABELS)
        column = _column(options.pop("input", None), features, _is_input, USUAL_INPUTS)
        if column is None:
            raise LoadError(
                f"'{folder}' has no column of pictures or arrays ({', '.join(features)}); say ?input=COLUMN"
            )
        labels, names = (None, None) if label is None else _labels(table, label, features[label], class_names, folder)
        values = table[column]
        where = f"the column '{column}' of '{folder}'"
        if features[column].get("_type") == "Image":
            return _pictures(values, where, preparation, labels, names)
        if hasattr(preparation, "encode"):
            return array_source(preparation.encode(values.to_pylist()), labels, names)
        x = np.array(values.to_pylist())
        x = x.astype(np.float32) if x.dtype == np.float64 and "float64" not in json.dumps(features[column]) else x
        return array_source(checked_inputs(x, where), labels, names)


def _part(folder: Path, wanted: str | None) -> Path:
    if not (folder / PARTS).is_file():
        return folder
    parts = [str(name) for name in json.loads((folder / PARTS).read_text())["splits"]]
    chosen = wanted or next((name for name in USUAL_PARTS if name in parts), None)
    if chosen not in parts or Path(chosen).name != chosen:
        raise LoadError(f"'{folder}' has the parts {', '.join(parts)}; say which: ?split=NAME")
    return folder / chosen


def _table(folder: Path) -> Any:
    try:
        import pyarrow as arrow
    except ImportError:
        raise MissingExtraError.of("pyarrow", "hf", "a saved data set") from None
    state = json.loads((folder / STATE).read_text())
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise LoadError(f"'{folder}' is a selection of another data set; save it with flatten_indices()")
    tables = []
    for entry in state["_data_files"]:
        name = entry["filename"]
        if Path(name).name != name:
            raise LoadError(f"'{folder}' keeps its rows in '{name}', outside its own folder: refused")
        with arrow.OSFile(str(folder / name)) as file, arrow.ipc.open_stream(file) as stream:
            tables.append(stream.read_all())
    table = arrow.concat_tables(tables)
    table.validate(full=True)  # offsets of a damaged file could point anywhere
    if table.num_rows == 0:
        raise LoadError(f"'{folder}' has no rows")
    return table


def _is_label(feature: Any) -> bool:
    return isinstance(feature, dict) and feature.get("_type") == "ClassLabel"


def _is_input(feature: Any) -> bool:
    return isinstance(feature, dict) and feature.get("_type") in ("Image", "Array2D", "Array3D", "Array4D")


def _column(wanted: str | None, features: dict[str, Any], fits: Any, usual: Sequence[str]) -> str | None:
    if wanted is not None:
        if wanted not in features:
            raise LoadError(f"there is no column '{wanted}' ({', '.join(features)})")
        return wanted
    fitting = [name for name, feature in features.items() if fits(feature)] or [n for n in usual if n in features]
    if not fitting and fits is _is_input:
        fitting = [name for name, feature in features.items() if feature.get("dtype") == "string"]
    return fitting[0] if fitting else None


def _labels(table: Any, label: str, feature: Any, known: Sequence[str] | None, folder: Path) -> Any:
    values = table[label].to_pylist()
    where = f"the column '{label}' of '{folder}'"
    own = feature.get("names") if isinstance(feature, dict) else None
    if own and known is not None and set(own) <= set(known):  # labels get the model's numbers if it knows all names
        return named_labels([own[value] for value in values], known, where)
    if values and isinstance(values[0], str):
        return named_labels(values, known, where)
    return checked_labels(np.array(values), len(values), where), tuple(own) if own else None


def _pictures(values: Any, where: str, preparation: Any, labels: Any, names: Any) -> Source:
    def bytes_of(row: int) -> bytes:
        stored = values[row].as_py()
        if not isinstance(stored, dict) or not isinstance(stored.get("bytes"), bytes):
            raise LoadError(
                f"row {row} of {where} holds no picture (only a path?); save the data set with its pictures"
            )
        content: bytes = stored["bytes"]
        return content

    first = open_picture(bytes_of(0), where)
    own = ImagePreprocessing((first.height, first.width), 1 if first.mode in ("1", "L") else 3, resize=None)
    preprocessing = preparation if isinstance(preparation, ImagePreprocessing) else own

    def read(rows: Sequence[int]) -> Images:
        return np.stack(
            [preprocessed(open_picture(bytes_of(row), f"row {row} of {where}"), preprocessing) for row in rows]
        )

    def fingerprint() -> str:
        digest = hashlib.sha256(repr((len(values), preprocessing)).encode())
        for row in range(len(values)):
            digest.update(bytes_of(row))
        return digest.hexdigest()[:16]

    return Source(len(values), read, labels, fingerprint, names)
