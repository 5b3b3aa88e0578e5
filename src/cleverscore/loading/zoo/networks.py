"""The small networks of the paper (section 5.1): a softplus MLP and a 7-layer CNN, for MNIST and CIFAR-10.

Layer sizes follow the code that the authors released, which in turn follows Carlini & Wagner (2017): 3x3 convolutions
without padding, two pooling steps, two hidden dense layers. Inputs are images in [0, 1] minus one half;
`Classifier(mean=0.5, std=1.0)` does the subtraction, so that scores are in units of the images.
"""

from __future__ import annotations

import torch
from torch import nn


class SharpSoftplus(nn.Module):
    """0.1 * softplus(10 x): a smooth function close to ReLU, the activation of the authors' MLP."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(x, beta=10.0)


class BoundedReLU(nn.Module):
    """clip(x, 0, 1): the bounded ReLU of Zantedeschi et al. (2017), with bound 1 at every activation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, 0.0, 1.0)


def mlp(channels: int, side: int, *, hidden: int = 1024, num_classes: int = 10) -> nn.Sequential:
    """One hidden layer of `hidden` units with a sharp softplus, for images (channels, side, side)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * side * side, hidden),
        SharpSoftplus(),
        nn.Linear(hidden, num_classes),
    )


def cnn(
    channels: int,
    side: int,
    *,
    widths: tuple[int, int],
    dense: int,
    activation: type[nn.Module] = nn.ReLU,
    num_classes: int = 10,
) -> nn.Sequential:
    """Four convolutions (two of each width, pooled by two after each pair), two dense layers, one output layer.

    Images are (channels, side, side), and a dense layer has `dense` units. Dropout after the first dense layer acts in
    training only.
    """
    narrow, wide = widths
    reduced = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, narrow, 3),
        activation(),
        nn.Conv2d(narrow, narrow, 3),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(narrow, wide, 3),
        activation(),
        nn.Conv2d(wide, wide, 3),
        activation(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(wide * reduced * reduced, dense),
        activation(),
        nn.Dropout(0.5),
        nn.Linear(dense, dense),
        activation(),
        nn.Linear(dense, num_classes),
    )


def mnist_mlp() -> nn.Sequential:
    """The MLP for MNIST: 784-1024-10 units."""
    return mlp(1, 28)


def mnist_cnn() -> nn.Sequential:
    """Convolutions of 32, 32, 64, 64 channels and dense layers of 200, 200, 10 units."""
    return cnn(1, 28, widths=(32, 64), dense=200)


def mnist_brelu() -> nn.Sequential:
    """The layers of `mnist_cnn` with every activation clipped to [0, 1]."""
    return cnn(1, 28, widths=(32, 64), dense=200, activation=BoundedReLU)


def cifar_mlp() -> nn.Sequential:
    """The MLP for CIFAR-10: 3072-1024-10 units."""
    return mlp(3, 32)


def cifar_cnn() -> nn.Sequential:
    """Convolutions of 64, 64, 128, 128 channels and dense layers of 256, 256, 10 units."""
    return cnn(3, 32, widths=(64, 128), dense=256)


def cifar_brelu() -> nn.Sequential:
    """The layers of `cifar_cnn` with every activation clipped to [0, 1]."""
    return cnn(3, 32, widths=(64, 128), dense=256, activation=BoundedReLU)
