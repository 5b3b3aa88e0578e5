from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

import cleverscore as cs
from cleverscore.loading.zoo import mnist as idx
from cleverscore.loading.zoo import networks, shipped, train


@pytest.mark.parametrize(
    ("name", "least"), [("mnist-cnn", 0.99), ("mnist-mlp", 0.975), ("mnist-dd", 0.99), ("mnist-brelu", 0.99)]
)
def test_shipped_networks_reach_their_accuracy(name: str, least: float, mnist: tuple) -> None:
    images, labels = mnist
    classifier = cs.load_model(f"zoo:{name}")
    assert float((classifier(images).argmax(1).numpy() == labels).mean()) >= least


def test_what_is_shipped_is_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in shipped.DATA_FOLDER.iterdir()) < 25e6
    for name, network in shipped.NETWORKS.items():
        x = torch.rand(2, *network.input_shape)
        assert cs.load_model(f"zoo:{name}")(x).isfinite().all()
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
    recipe = train.Recipe(epochs=8, rate=0.05, weight_decay=0.0, shift=1, batch=20)
    network = train.train("mnist-mlp", x, y, recipe=recipe)
    assert train.accuracy(network, x[20:], y[20:]) > 0.8


def test_a_student_learns_its_teachers_labels_at_the_temperature(monkeypatch: pytest.MonkeyPatch, mnist: tuple) -> None:
    images, labels = mnist
    x, y = torch.from_numpy(images) - 0.5, torch.from_numpy(labels)
    monkeypatch.setattr(train, "HELD_OUT", 20)
    recipe = train.Recipe(epochs=15, rate=0.05, weight_decay=0.0, batch=20, he=0.3, mirror=False, warm_up=0.1)
    teacher = shipped.network("mnist-mlp")
    student = train.train("mnist-mlp", x, torch.zeros_like(y), recipe=recipe, teacher=teacher)
    # The labels it was given are wrong: what it knows, it has from its teacher.
    assert train.accuracy(student, x[20:], y[20:]) > 0.8
    with torch.no_grad():
        logits, soft = student(x[20:]), teacher(x[20:]).softmax(1)
    at_temperature = (logits / train.TEMPERATURE).softmax(1)
    assert (at_temperature - soft).abs().mean() < 0.05
    assert logits.abs().max() > train.TEMPERATURE  # so that at temperature 1 the softmax saturates


def test_bounded_relu_is_between_zero_and_one() -> None:
    assert networks.BoundedReLU()(torch.tensor([-1.0, 0.5, 7.0])).tolist() == [0.0, 0.5, 1.0]
    kinds = [type(layer) for layer in networks.cifar_brelu().modules()]
    assert networks.BoundedReLU in kinds and torch.nn.ReLU not in kinds


def test_training_says_which_folder_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr("sys.argv", ["train", "--only", "cifar-mlp"])
    with pytest.raises(SystemExit):
        train.main()
    assert "cifar-mlp needs --cifar" in capsys.readouterr().err
