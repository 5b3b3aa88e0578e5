"""Sampling in the row space of the first layer: the same distribution of gradient norms from smaller inputs.

First layer of h < d units, p = 2. With W^T = Q S (Q has orthonormal columns), the network depends on x only through z =
Q^T x, and ||W^T v||_2 = ||S v||_2. So the network on z, with S^T for its first matrix, has gradients of the same l2
norm; and z is the projection of a uniform point of the ball, which is drawn directly: h normal numbers, and one
chi-square number for the d - h coordinates that do not change the layer's output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import dropwhile

import numpy as np
import torch
from torch import nn

from cleverscore.inputs.balls import SECOND_STREAM, Draw, LpBall
from cleverscore.inputs.examples import Example
from cleverscore.models.classifier import Classifier
from cleverscore.models.structure import SHAPE_LAYERS, layers_in_order

# Below this share of the dimension the smaller matrix wins more than the decomposition and the extra copy cost.
WORTHWHILE = 0.75


@dataclass(frozen=True)
class ProjectedBall(LpBall):
    """The uniform distribution in an l2 ball, projected onto a subspace: `hidden` coordinates are integrated out."""

    hidden: int = 0

    def draw(self, *, dim: int, count: int, seed: int, input_id: int, block: int, tile: int) -> Draw:
        """The first `count` points of a tile, as offsets from the input, in the subspace."""
        stream = self.stream(seed, input_id, block, tile)
        second = self.stream(seed, input_id, block, tile, SECOND_STREAM)
        normal = stream.standard_normal((count, dim), dtype=np.float32)
        rest = second.chisquare(self.hidden, (count, 1)) + 2.0 * second.standard_exponential((count, 1))
        total = np.square(normal, dtype=np.float64).sum(1, keepdims=True) + rest
        return Draw(torch.from_numpy(normal), torch.from_numpy((self.radius / np.sqrt(total)).astype(np.float32)))


@dataclass(frozen=True)
class Reduced:
    """A classifier and a ball, in the row space of the first layer if possible; `move` maps examples to it."""

    classifier: Classifier
    ball: LpBall
    basis: torch.Tensor | None = None

    def move(self, example: Example) -> Example:
        """The example with its input in the coordinates of the reduced classifier."""
        if self.basis is None:
            return example
        return replace(example, x=(example.x.flatten().double() @ self.basis).to(example.x.dtype))


def reduced(classifier: Classifier, shape: torch.Size, ball: LpBall) -> Reduced:
    """Classifier and ball in the row space of the first layer, or unchanged where that is not possible."""
    same = Reduced(classifier, ball)
    if type(ball) is not LpBall or ball.p != 2.0 or ball.region != "ball" or classifier.outputs != "logits":
        return same
    if classifier.transform is not None:  # it acts on inputs, not on their projections
        return same
    layers = layers_in_order(classifier.module)
    rest = list(dropwhile(lambda layer: type(layer) in SHAPE_LAYERS, layers or ()))
    dim = shape.numel()
    if not rest or type(rest[0]) is not nn.Linear:
        return same
    first = rest[0]
    if first.in_features != dim or first.out_features > WORTHWHILE * dim:
        return same
    # The preprocessing is affine too: pull it into the first matrix by its action on the unit box.
    slope, offset = classifier.preprocessing(torch.zeros(shape, device=classifier.device, dtype=first.weight.dtype))
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
