"""CIFAR-10 from its original binary files, checked against their published MD5 sums."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cleverscore.errors import LoadError

# MD5 sums of the files in Krizhevsky's cifar-10-binary.tar.gz.
MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
PARTS = {"test": ("test_batch.bin",), "train": tuple(name for name in MD5 if name.startswith("data"))}
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
RECORD = 1 + 3 * 32 * 32  # the label, then red, green and blue row by row


def read(folder: Path | str, part: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (n, 3, 32, 32) as bytes and labels (n,) of `part`: "train" (50,000) or "test" (10,000)."""
    batches = []
    for name in PARTS[part]:
        path = Path(folder) / name
        if not path.is_file():
            raise LoadError(
                f"{path} does not exist; unpack cifar-10-binary.tar.gz (https://www.cs.toronto.edu/~kriz/cifar.html) "
                "and name its folder"
            )
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise LoadError(f"{path} cannot be read: {error.strerror}") from error
        if hashlib.md5(raw, usedforsecurity=False).hexdigest() != MD5[name]:
            raise LoadError(f"{path} is not the published CIFAR-10 file (its MD5 differs); fetch it again")
        batches.append(np.frombuffer(raw, np.uint8).reshape(-1, RECORD))
    records = np.concatenate(batches)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
