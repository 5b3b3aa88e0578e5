"""Loads inputs and labels by name: arrays, pictures, tables, saved data sets, MNIST and CIFAR-10."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from cleverscore.errors import LoadError
from cleverscore.inputs.image_preprocessing import ImagePreprocessing
from cleverscore.loading import safe_files as files
from cleverscore.loading.arrow import arrow_source, is_dataset_folder
from cleverscore.loading.csv import table_source
from cleverscore.loading.image_folder import SUFFIXES, picture_source, with_options
from cleverscore.loading.sources import Images, Labels, Source, array_source, checked_inputs, checked_labels
from cleverscore.loading.zoo import cifar10, mnist, shipped
from cleverscore.models.classifier import Classifier

FORMS = (
    "zoo:NAME, a file (.npz with arrays x and y, .npy, .safetensors, .csv), a folder of pictures or a saved data set, "
    "mnist:FOLDER or cifar10:FOLDER"
)
CANONICAL = {
    "mnist": (mnist.read, {"test": "t10k", "train": "train"}),
    "cifar10": (cifar10.read, {"test": "test", "train": "train"}),
}


def load_data(data: str | Path, classifier: Classifier | None = None) -> tuple[Images, Labels | None]:
    """Inputs (n, *input_shape) and their labels (n,); in place of labels None if the data has none.

    data        npz, npy, safetensors or csv, a folder of pictures, a saved Hugging Face data set, "mnist:FOLDER",
                "cifar10:FOLDER" or "zoo:mnist" (docs/models.md).
    classifier  the classifier for which the data is loaded: it says how pictures are preprocessed, texts embedded and
                classes numbered.

    >>> images, labels = load_data("zoo:mnist")
    >>> images.shape
    (200, 1, 28, 28)
    """
    source = open_data(data, classifier)
    return source.read(range(source.count)), source.labels


def open_data(data: str | Path, classifier: Classifier | None = None) -> Source:
    """The data with this name, as a source that is read row by row."""
    text = str(data)
    scheme, _, rest = text.partition(":")
    if scheme == "zoo":
        return array_source(*shipped.data(rest))
    exists = "\0" not in text and Path(text).exists()
    canonical = scheme in CANONICAL and not exists
    name, _, query = (text, "", "") if exists else (rest if canonical else text).partition("?")
    options = files.options_of(query, name)
    if canonical:
        source = _canonical(scheme, name, options)
    else:
        path = Path(name)
        files.existing(path, "the data", FORMS)
        source = (_folder if path.is_dir() else _file)(path, classifier, options)
    if options:
        raise LoadError(f"'{next(iter(options))}' is not an option of '{name}'")
    return source


def _canonical(scheme: str, folder: str, options: dict[str, str]) -> Source:
    read, parts = CANONICAL[scheme]
    part = options.pop("split", "test")
    if part not in parts:
        raise LoadError(f"split={part}: choose one of {', '.join(parts)}")
    images, labels = read(folder, parts[part])
    return array_source(images.astype(np.float32) / np.float32(255.0), labels)


def _folder(path: Path, classifier: Classifier | None, options: dict[str, str]) -> Source:
    preparation, names = _asked(classifier)
    if is_dataset_folder(path):
        return arrow_source(path, preparation, names, options)
    preprocessing = with_options(preparation if isinstance(preparation, ImagePreprocessing) else None, options)
    return picture_source(path, preprocessing, names)


def _asked(classifier: Classifier | None) -> tuple[Any, tuple[str, ...] | None]:
    return (None, None) if classifier is None else (classifier.preparation, classifier.class_names)


def _file(path: Path, classifier: Classifier | None, options: dict[str, str]) -> Source:
    kind = files.kind(path)
    suffix = path.suffix.lower()
    if kind == "npz":
        return _npz(path)
    if kind == "npy":
        with files.reading(path, "an npy file"), path.open("rb") as file:
            x = _array(file, path.stat().st_size, str(path))
        return array_source(checked_inputs(x, f"'{path}'"), None)
    if kind == "safetensors":
        return _safetensors(path)
    if suffix in (".csv", ".tsv") and kind == "text":
        preparation, names = _asked(classifier)
        return table_source(path, preparation, names, None if classifier is None else classifier.input_shape, options)
    if suffix in SUFFIXES:
        raise LoadError(f"'{path}' is one picture; name the folder that holds it")
    known = {".npz": "an npz file", ".npy": "an npy file", ".safetensors": "a safetensors file", ".csv": "a table"}
    if suffix in known:
        raise LoadError(f"'{path}' is not {known[suffix]} that can be read (it looks like: {kind}); give {FORMS}")
    raise LoadError(f"'{path}' is of no kind that is known; give {FORMS}")


def _array(file: IO[bytes], size: int, where: str) -> npt.NDArray[Any]:
    """The array in an npy file of `size` bytes.

    Raises a LoadError, which names the array as `where`, if the header says that it is larger.
    """
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise LoadError(f"{where} is an npy array of version {version}; store plain numbers")
    shape, fortran, dtype = read_header[version](file)
    if dtype.hasobject:
        raise LoadError(f"{where} holds Python objects, which could run code; store plain numbers")
    count = 1
    for side in shape:
        count *= side
    if min((0, *shape)) < 0 or count * dtype.itemsize > size:
        raise LoadError(f"{where} says that it has shape {shape}, but the file is shorter")
    content = file.read(count * dtype.itemsize)
    values = np.frombuffer(content, dtype, count)
    return values.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="), order="C")


def _npz(path: Path) -> Source:
    with files.reading(path, "an npz file"):
        members = {member.filename.removesuffix(".npy"): member for member in files.checked_zip(path)}
        if "x" not in members:
            raise LoadError(
                f"'{path}' has no array 'x' (it has: {', '.join(members) or 'nothing'}); name the inputs x and the "
                "labels y: np.savez(file, x=inputs, y=labels)"
            )
        arrays: dict[str, npt.NDArray[Any]] = {}
        with zipfile.ZipFile(path) as archive:
            for name in ("x", "y"):
                if name in members:
                    with archive.open(members[name]) as file:
                        arrays[name] = _array(file, members[name].file_size, f"array '{name}' of '{path}'")
                        file.read(1)  # at the end of the member, zipfile compares its checksum
    return _xy(arrays, path)


def _xy(arrays: dict[str, npt.NDArray[Any]], path: Path) -> Source:
    x = checked_inputs(arrays["x"], f"array 'x' of '{path}'")
    y = arrays.get("y")
    return array_source(x, None if y is None else checked_labels(y, len(x), f"array 'y' of '{path}'"))


def _safetensors(path: Path) -> Source:
    with files.reading(path, "a safetensors file"):
        from safetensors.torch import load_file

        tensors = load_file(path)
        if "x" not in tensors:
            raise LoadError(f"'{path}' has no tensor 'x' (it has: {', '.join(list(tensors)[:5]) or 'nothing'})")
        kept = {name: tensors[name] for name in ("x", "y") if name in tensors}
        wide = {n: t.float() if t.is_floating_point() and t.itemsize < 4 else t for n, t in kept.items()}
        return _xy({name: tensor.numpy() for name, tensor in wide.items()}, path)
