"""MNIST from its four original idx files, checked against their published MD5 sums."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cleverscore.errors import LoadError

# MD5 sums of the files as LeCun, Cortes and Burges published them.
MD5 = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
HEADERS = {"images": 16, "labels": 8}  # bytes before the values: magic number and one size per axis


def _read(folder: Path, name: str, header: int) -> npt.NDArray[np.uint8]:
    path = folder / name
    if not path.is_file():
        raise LoadError(
            f"{path} does not exist; put the four MNIST files ({', '.join(MD5)}) into one folder and name that folder"
        )
    raw = path.read_bytes()
    if hashlib.md5(raw, usedforsecurity=False).hexdigest() != MD5[name]:
        raise LoadError(f"{path} is not the published MNIST file (its MD5 differs); fetch it again")
    return np.frombuffer(gzip.decompress(raw), np.uint8, offset=header)


def read(folder: Path | str, part: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (n, 1, 28, 28) as bytes and labels (n,) of `part`: "train" (60,000) or "t10k" (10,000)."""
    folder = Path(folder)
    images = _read(folder, f"{part}-images-idx3-ubyte.gz", HEADERS["images"]).reshape(-1, 1, 28, 28)
    labels = _read(folder, f"{part}-labels-idx1-ubyte.gz", HEADERS["labels"]).astype(np.int64)
    return images, labels
