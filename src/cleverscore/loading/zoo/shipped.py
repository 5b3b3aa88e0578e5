"""Shipped files: weights of the paper's eight small networks and the first 200 test images of MNIST.

Weights of all networks but the MNIST MLP and CNN are stored in half precision; the accuracies that `train` prints at
the end are those of the rounded weights.

MNIST is by Yann LeCun, Corinna Cortes and Christopher Burges, derived from NIST's Special Databases 1 and 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file
from torch import nn

from cleverscore.errors import LoadError
from cleverscore.loading.zoo import networks

DATA_FOLDER = Path(__file__).parent / "data"
SHIPPED_IMAGES = 200


@dataclass(frozen=True)
class ZooNetwork:
    """A shipped network: how to build it, and what its inputs are.

    input_shape     the shape of one image.
    bounds          the range of pixels.
    mean, std       what the network expects to be subtracted from pixels, and what they are then divided by.
    """

    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    bounds: tuple[float, float] = (0.0, 1.0)
    mean: float = 0.5
    std: float = 1.0


NETWORKS = {
    "mnist-mlp": ZooNetwork(networks.mnist_mlp, (1, 28, 28)),
    "mnist-cnn": ZooNetwork(networks.mnist_cnn, (1, 28, 28)),
    "mnist-dd": ZooNetwork(networks.mnist_cnn, (1, 28, 28)),
    "mnist-brelu": ZooNetwork(networks.mnist_brelu, (1, 28, 28)),
    "cifar-mlp": ZooNetwork(networks.cifar_mlp, (3, 32, 32)),
    "cifar-cnn": ZooNetwork(networks.cifar_cnn, (3, 32, 32)),
    "cifar-dd": ZooNetwork(networks.cifar_cnn, (3, 32, 32)),
    "cifar-brelu": ZooNetwork(networks.cifar_brelu, (3, 32, 32)),
}
DATA = ("mnist",)


def network(name: str, folder: Path = DATA_FOLDER) -> nn.Module:
    """The trained network `name` with the weights in `folder`, for images shifted to [-0.5, 0.5]."""
    if name not in NETWORKS:
        raise LoadError(f"there is no network '{name}' in the zoo; choose one of: {', '.join(NETWORKS)}")
    module = NETWORKS[name].build()
    module.load_state_dict(load_file(folder / f"{name}.safetensors"))
    return module.eval()


def data(name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The shipped data `name`, "mnist": images (200, 1, 28, 28) in [0, 1] and labels (200,)."""
    if name not in DATA:
        raise LoadError(f"there is no data '{name}' in the zoo; choose one of: {', '.join(DATA)}")
    with np.load(DATA_FOLDER / f"{name}.npz") as stored:
        return stored["x"].astype(np.float32) / 255.0, stored["y"].astype(np.int64)
