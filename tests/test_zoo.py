from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

import cleverscore as cs
from cleverscore.zoo import mnist as idx
from cleverscore.zoo import shipped, train


@pytest.mark.parametrize(("name", "least"), [("mnist-cnn", 0.99), ("mnist-mlp", 0.975)])
def test_shipped_networks_reach_their_accuracy(name: str, least: float, mnist: tuple) -> None:
    images, labels = mnist
    classifier = cs.load_model(f"zoo:{name}")
    assert float((classifier(images).argmax(1).numpy() == labels).mean()) >= least


def test_what_is_shipped_is_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in shipped.DATA_FOLDER.iterdir()) < 8e6
    images, labels = shipped.data("mnist")
    assert images.shape == (200, 1, 28, 28) and set(labels) == set(range(10))
    assert images.min() == 0.0 and images.max() == 1.0


def test_idx_files_are_read_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = np.arange(2 * 784, dtype=np.uint32).astype(np.uint8)
    files = {
        "t10k-images-idx3-ubyte.gz": gzip.compress(bytes(16) + raw.tobytes()),
        "t10k-labels-idx1-ubyte.gz": gzip.compress(bytes(8) + bytes([3, 9])),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(cs.CleverError, match="MD5 differs"):
        idx.read(tmp_path, "t10k")
    monkeypatch.setattr(idx, "MD5", {name: hashlib.md5(content).hexdigest() for name, content in files.items()})
    images, labels = idx.read(tmp_path, "t10k")
    assert images.shape == (2, 1, 28, 28) and np.array_equal(images.ravel(), raw)
    assert labels.tolist() == [3, 9]
    with pytest.raises(cs.CleverError, match="does not exist"):
        idx.read(tmp_path, "train")


def test_training_learns(monkeypatch: pytest.MonkeyPatch, mnist: tuple) -> None:
    images, labels = mnist
    x, y = torch.from_numpy(images) - 0.5, torch.from_numpy(labels)
    monkeypatch.setattr(train, "HELD_OUT", 20)
    monkeypatch.setattr(train, "BATCH", 20)
    monkeypatch.setitem(train.RECIPES, "mnist-mlp", train.Recipe(epochs=8, rate=0.05, weight_decay=0.0, shift=1))
    network = train.train("mnist-mlp", x, y)
    assert train.accuracy(network, x[20:], y[20:]) > 0.8
