"""Models for the command line, most of which it must refuse, named on it as tests.bad_models:NAME."""

from __future__ import annotations

import torch
from torch import nn


def softmax() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Softmax(1))


def rank_three() -> nn.Module:
    return nn.Sequential(nn.Flatten(2), nn.Linear(784, 10))


def three_channels() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 26 * 26, 10))


def failing() -> nn.Module:
    raise RuntimeError("no weights today")


def linear(classes: str = "10") -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, int(classes)))


def affine() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 4).double()


class Rounding(nn.Module):
    """Rounds its inputs, which hides its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = affine()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear((x * 255).round() / 255)


def rounding() -> nn.Module:
    return Rounding()


number = 3
