"""Networks whose speed is measured: shapes matter, weights do not, so the large ones are random."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from cleverscore.loading.zoo import networks


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a shortcut."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.body = nn.Sequential(
            *_conv(inside, width, 1), nn.ReLU(), *_conv(width, width, 3, stride), nn.ReLU(), *_conv(width, outside, 1)
        )
        same = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv(inside, outside, 1, stride))
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


def _conv(inside: int, outside: int, size: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, nn.Module]:
    conv = nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(outside)


def resnet50() -> nn.Module:
    """He et al. (2016), 25.6 M parameters."""
    layers: list[nn.Module] = [*_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(depth):
            layers.append(Bottleneck(inside, width, stride if block == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def mobilenet_v1() -> nn.Module:
    """Howard et al. (2017), width 1.0, 4.2 M parameters."""
    layers: list[nn.Module] = [*_conv(3, 32, 3, 2), nn.ReLU6()]
    inside = 32
    steps = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for outside, stride in steps:
        layers += [*_conv(inside, inside, 3, stride, groups=inside), nn.ReLU6(), *_conv(inside, outside, 1), nn.ReLU6()]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


@dataclass(frozen=True)
class Measured:
    """A network, its input shape, and how many points one timing takes."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    points: int
    untargeted_points: int
    peer_batch: int = 10  # ART's own default


NETWORKS = {
    "MLP 784-1024-10": Measured(networks.mnist_mlp, (1, 28, 28), 32768, 8192),
    "MNIST CNN": Measured(networks.mnist_cnn, (1, 28, 28), 4096, 1024),
    "CIFAR CNN": Measured(lambda: networks.cnn(3, 32, widths=(64, 128), dense=256), (3, 32, 32), 2048, 512),
    "MobileNet-v1": Measured(mobilenet_v1, (3, 224, 224), 240, 0),
    "ResNet-50": Measured(resnet50, (3, 224, 224), 48, 0),
}
