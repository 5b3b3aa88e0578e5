"""The paper's eleven networks, and the images they are scored on.

Everything that is not shipped lies in one folder (--data):

    mnist/                    the two t10k files of MNIST, for accuracies alone
    cifar-10-batches-bin/     the six binary files of CIFAR-10
    imagenet/                 pictures whose names begin with the number of their class (007_cock.JPEG), or a
                              sub-folder for each class, named by its number
    mobilenet_v1.onnx, resnet50.onnx, inception_v3.onnx
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import cleverscore as cs
from cleverscore.errors import LoadError
from cleverscore.inputs.image_preprocessing import CENTRE_SHARE, ImagePreprocessing
from cleverscore.inputs.targets import choose
from cleverscore.loading.image_folder import open_picture, preprocessed
from cleverscore.loading.zoo import shipped

KINDS = ("least_likely", "random", "runner_up")
SEED = 0
CANDIDATES = 1000  # the first test images of CIFAR-10, among which correctly classified ones are sought


@dataclass(frozen=True)
class Network:
    """One of the paper's networks: its name here, its name there, and what torchvision calls it."""

    name: str
    title: str
    family: str
    side: int
    torchvision: str = ""

    @property
    def file(self) -> str:
        """The file of an ImageNet network."""
        return f"{self.name}.onnx"


NETWORKS = {
    network.name: network
    for network in (
        Network("mnist-mlp", "MNIST-MLP", "mnist", 28),
        Network("mnist-cnn", "MNIST-CNN", "mnist", 28),
        Network("mnist-dd", "MNIST-DD", "mnist", 28),
        Network("mnist-brelu", "MNIST-BReLU", "mnist", 28),
        Network("cifar-mlp", "CIFAR-MLP", "cifar", 32),
        Network("cifar-cnn", "CIFAR-CNN", "cifar", 32),
        Network("cifar-dd", "CIFAR-DD", "cifar", 32),
        Network("cifar-brelu", "CIFAR-BReLU", "cifar", 32),
        Network("inception_v3", "Inception-v3", "imagenet", 299, "inception_v3"),
        Network("resnet50", "Resnet-50", "imagenet", 224, "resnet50"),
        Network("mobilenet_v1", "MobileNet", "imagenet", 224, "mobilenet_v2"),
    )
}
SMALL = tuple(name for name, network in NETWORKS.items() if network.family != "imagenet")
LARGE = tuple(name for name, network in NETWORKS.items() if network.family == "imagenet")


@dataclass(frozen=True)
class CorrectImages:
    """Correctly classified images of one network, with the classes that the three kinds of targets mean for each."""

    ids: tuple[int, ...]
    x: npt.NDArray[np.float32]
    labels: tuple[int, ...]
    kinds: tuple[dict[str, int], ...]

    def __len__(self) -> int:
        return len(self.ids)


def missing(name: str, data: Path) -> list[str]:
    """What is not there of a network's files, and where to get it."""
    network = NETWORKS[name]
    if network.family == "cifar" and not (data / "cifar-10-batches-bin" / "test_batch.bin").is_file():
        return [
            f"{data / 'cifar-10-batches-bin'} is not there; unpack cifar-10-binary.tar.gz from "
            f"https://www.cs.toronto.edu/~kriz/cifar.html into {data}"
        ]
    if network.family != "imagenet":
        return []
    found = []
    if not (data / network.file).is_file() and importlib.util.find_spec("torchvision") is None:
        found.append(
            f"{data / network.file} is not there; put an ONNX file of that name there (inputs RGB in [0, 1], "
            f"{network.side} x {network.side}, outputs 1000 logits), or install torchvision"
        )
    if not _pictures(data):
        found.append(
            f"{data / 'imagenet'} holds no pictures; put some of ImageNet's validation images there, each in a "
            "sub-folder named by the number of its class, or with that number first in its name"
        )
    return found


@lru_cache(maxsize=1)
def classifier_of(name: str, data: Path) -> cs.Classifier:
    """The network, ready to be scored."""
    network = NETWORKS[name]
    if network.family != "imagenet":
        return cs.load_model(f"zoo:{name}")
    if (data / network.file).is_file():
        return cs.load_model(data / network.file, bounds=(0.0, 1.0))
    return _from_torchvision(network)


def _from_torchvision(network: Network) -> cs.Classifier:
    """Weights that torchvision fetches; it has no MobileNet-v1, so its v2 takes that place."""
    import torchvision

    module: torch.nn.Module = torchvision.models.get_model(network.torchvision, weights="DEFAULT").eval()
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    return cs.Classifier(module, bounds=(0.0, 1.0), mean=mean, std=std)


@cache
def fingerprint(name: str, data: Path) -> str:
    """A short hash of the weights, and of the pictures where they are the user's: results of others are not used."""
    network = NETWORKS[name]
    if network.family != "imagenet":
        return hashlib.sha256((shipped.DATA_FOLDER / f"{name}.safetensors").read_bytes()).hexdigest()[:12]
    path = data / network.file
    found = hashlib.sha256(path.read_bytes() if path.is_file() else network.torchvision.encode())
    found.update(repr([(path.name, path.stat().st_size, label) for path, label in _pictures(data)]).encode())
    return found.hexdigest()[:12]


def test_data(name: str, data: Path) -> str | None:
    """What `cs.load_data` calls the test images of a small network; None where the files are not there."""
    if NETWORKS[name].family == "cifar":
        return f"cifar10:{data / 'cifar-10-batches-bin'}"
    return f"mnist:{data / 'mnist'}" if (data / "mnist").is_dir() else None


def images_of(name: str, data: Path) -> Iterator[tuple[int, npt.NDArray[np.float32], int]]:
    """(number, image, label) of the images that a network may be scored on, one after the other."""
    network = NETWORKS[name]
    if network.family == "imagenet":
        preprocessing = ImagePreprocessing((network.side, network.side), 3, round(network.side / CENTRE_SHARE))
        for i, (path, label) in enumerate(_spread(_pictures(data))):
            yield i, preprocessed(open_picture(path, path.name), preprocessing), label
        return
    images, labels = cs.load_data("zoo:mnist" if network.family == "mnist" else test_data(name, data) or "")
    assert labels is not None  # these data have labels
    for i, (x, label) in enumerate(zip(images[:CANDIDATES], labels, strict=False)):
        yield i, x, int(label)


@lru_cache(maxsize=2)
def correct_images_of(name: str, data: Path, count: int) -> CorrectImages:
    """The first `count` images that the network classifies correctly."""
    classifier = classifier_of(name, data)
    ids: list[int] = []
    parts, labels, kinds = [], [], []
    for i, x, label in images_of(name, data):
        logits = classifier(torch.from_numpy(x[None]))
        if int(logits.argmax()) != label:
            continue
        ids.append(i)
        parts.append(x)
        labels.append(label)
        kinds.append({kind: choose(logits, kind, ids=[i], seed=SEED)[0][0] for kind in KINDS})
        if len(ids) == count:
            return CorrectImages(tuple(ids), np.stack(parts), tuple(labels), tuple(kinds))
    raise LoadError(f"only {len(ids)} images of {NETWORKS[name].title} are classified correctly; {count} are wanted")


def _pictures(data: Path) -> list[tuple[Path, int]]:
    """Pictures and their classes."""
    found = []
    for path in sorted((data / "imagenet").glob("**/*")):
        if path.suffix.lower() in (".jpeg", ".jpg", ".png"):
            name = path.name if path.parent.name == "imagenet" else path.parent.name
            number = re.match(r"\d+", name)
            if number is not None:
                found.append((path, int(number[0])))
    return found


def _spread(pictures: list[tuple[Path, int]]) -> list[tuple[Path, int]]:
    """The same pictures in an order in which the first few are of distant classes."""
    order = np.random.default_rng(SEED).permutation(len(pictures))
    return [pictures[i] for i in order]
