"""Exact shortcuts for networks that begin with a matrix: the same law of gradient norms from smaller inputs.

Affine networks. The gradient is the same everywhere, so one point tells the maximum.

First layer of h < d units, p = 2. With W^T = Q S (Q has orthonormal columns), the network depends on x only through
z = Q^T x, and ||W^T v||_2 = ||S v||_2. So the network on z, with S^T for its first matrix, has gradients of the same l2
norm; and z is the projection of a uniform point of the ball, which is drawn directly: h normals, and one chi-square for
the d - h coordinates that do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import dropwhile

import numpy as np
import torch
from torch import nn

from cleverscore.inputs.balls import SECOND_STREAM, Draw, LpBall
from cleverscore.inputs.examples import Subject
from cleverscore.models.classifier import Classifier

# Below this share of the dimension the smaller matrix wins more than the decomposition and the extra copy cost.
WORTHWHILE = 0.75
_SHAPES = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_AFFINE = (
    *_SHAPES,
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
)


def layers_in_order(module: nn.Module) -> list[nn.Module] | None:
    """The layers of nested `Sequential`s, first to last; None where a module has a forward pass of its own."""
    if type(module) is nn.Sequential:
        parts = [layers_in_order(child) for child in module]
        return None if any(part is None for part in parts) else [layer for part in parts for layer in part or ()]
    return [module] if not list(module.children()) else None


def is_affine(classifier: Classifier) -> bool:
    """Whether logits are affine in the input, as far as layer types tell."""
    layers = layers_in_order(classifier.module)
    if layers is None or classifier.outputs != "logits" or not layers or classifier.transform is not None:
        return False
    return all(type(layer) in _AFFINE and getattr(layer, "track_running_stats", True) for layer in layers)


@dataclass(frozen=True)
class ProjectedBall(LpBall):
    """The projection of a uniform l2 ball onto a subspace: `hidden` coordinates are integrated out."""

    hidden: int = 0

    def draw(self, *, dim: int, count: int, seed: int, input_id: int, block: int, tile: int) -> Draw:
        """The first `count` points of a tile, around 0, in the subspace."""
        stream = self.stream(seed, input_id, block, tile)
        second = self.stream(seed, input_id, block, tile, SECOND_STREAM)
        normal = stream.standard_normal((count, dim), dtype=np.float32)
        rest = second.chisquare(self.hidden, (count, 1)) + 2.0 * second.standard_exponential((count, 1))
        total = np.square(normal, dtype=np.float64).sum(1, keepdims=True) + rest
        return Draw(torch.from_numpy(normal), torch.from_numpy((self.radius / np.sqrt(total)).astype(np.float32)))


@dataclass(frozen=True)
class Reduced:
    """A classifier and a ball in the row space of the first layer, or as they were; `move` brings subjects there."""

    classifier: Classifier
    ball: LpBall
    basis: torch.Tensor | None = None

    def move(self, subject: Subject) -> Subject:
        """The subject with its input in the coordinates of the classifier."""
        if self.basis is None:
            return subject
        return replace(subject, x=(subject.x.flatten().double() @ self.basis).to(subject.x.dtype))


def reduced(classifier: Classifier, shape: torch.Size, ball: LpBall) -> Reduced:
    """Classifier and ball for inputs of a shape in the row space of the first layer, or as they were."""
    same = Reduced(classifier, ball)
    if type(ball) is not LpBall or ball.p != 2.0 or ball.region != "ball" or classifier.outputs != "logits":
        return same
    if classifier.transform is not None:  # it acts on inputs, not on their projections
        return same
    layers = layers_in_order(classifier.module)
    rest = list(dropwhile(lambda layer: type(layer) in _SHAPES, layers or ()))
    dim = shape.numel()
    if not rest or type(rest[0]) is not nn.Linear:
        return same
    first = rest[0]
    if first.in_features != dim or first.out_features > WORTHWHILE * dim:
        return same
    # The preprocessing is affine too: pull it into the first matrix by its action on the unit box.
    offset = classifier.standardised(torch.zeros(1, *shape, device=classifier.device, dtype=first.weight.dtype))
    slope = classifier.standardised(torch.ones(1, *shape, device=classifier.device, dtype=first.weight.dtype)) - offset
    weight = first.weight.double() * slope.flatten().double()
    bias = first.weight.double() @ offset.flatten().double()
    bias = bias if first.bias is None else bias + first.bias.double()
    q, s = torch.linalg.qr(weight.T)
    small = nn.Linear(first.out_features, first.out_features, dtype=first.weight.dtype, device=classifier.device)
    with torch.no_grad():
        small.weight.copy_(s.T)
        small.bias.copy_(bias)
    lesser = Classifier(nn.Sequential(small, *rest[1:]), device=classifier.device, name=classifier.name)
    return Reduced(lesser, ProjectedBall(2.0, ball.radius, hidden=dim - first.out_features), q)
