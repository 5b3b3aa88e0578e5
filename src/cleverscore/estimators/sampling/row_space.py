"""Sampling in the row space of the first layer: the same distribution of gradient norms from smaller inputs.

Let the first layer be linear, with a matrix W (h, d) of h < d rows, and p = 2. With the decomposition W^T = Q S, where
Q (d, h) has orthonormal columns, the network depends on x only through z = Q^T x. If v is the gradient at the layer's
output, W^T v is the gradient at x, S v that at z, and ||W^T v||_2 = ||S v||_2. So the network on z, with the first
matrix S^T, has gradients of the same l2 norm. If x is uniform in a ball, its projection z is drawn directly: from h
normal numbers, and one chi-square number for the d - h coordinates that do not change the layer's output.
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

# If h is at most this share of d, the smaller matrix saves more time than the decomposition and an extra copy cost.
WORTHWHILE = 0.75


@dataclass(frozen=True)
class ProjectedBall(LpBall):
    """The uniform distribution in an l2 ball, projected onto a subspace; `hidden` coordinates are projected away."""

    hidden: int = 0

    def draw(self, *, dim: int, count: int, seed: int, input_id: int, block: int, tile: int) -> Draw:
        """The first `count` points of a tile of a block, as offsets in the subspace, which has `dim` dimensions."""
        stream = self.stream(seed, input_id, block, tile)
        second = self.stream(seed, input_id, block, tile, SECOND_STREAM)
        normal = stream.standard_normal((count, dim), dtype=np.float32)
        rest = second.chisquare(self.hidden, (count, 1)) + 2.0 * second.standard_exponential((count, 1))
        total = np.square(normal, dtype=np.float64).sum(1, keepdims=True) + rest
        return Draw(torch.from_numpy(normal), torch.from_numpy((self.radius / np.sqrt(total)).astype(np.float32)))


@dataclass(frozen=True)
class Reduced:
    """A classifier and a ball, in the row space of the first layer if possible; `move` maps examples to it.

    basis   the columns of Q (d, h); None if the classifier and the ball are unchanged.
    """

    classifier: Classifier
    ball: LpBall
    basis: torch.Tensor | None = None

    def move(self, example: Example) -> Example:
        """The example with its input in the coordinates z of the reduced classifier."""
        if self.basis is None:
            return example
        return replace(example, x=(example.x.flatten().double() @ self.basis).to(example.x.dtype))


def reduced(classifier: Classifier, shape: torch.Size, ball: LpBall) -> Reduced:
    """Classifier and ball in the row space of the first layer, or unchanged if that is not possible or does not pay.

    shape   the shape of an input.
    """
    same = Reduced(classifier, ball)
    if type(ball) is not LpBall or ball.p != 2.0 or ball.region != "ball" or classifier.outputs != "logits":
        return same
    if classifier.transform is not None:  # a transform can be applied to inputs x only, not to projections z
        return same
    layers = layers_in_order(classifier.module)
    rest = list(dropwhile(lambda layer: type(layer) in SHAPE_LAYERS, layers or ()))
    dim = shape.numel()
    if not rest or type(rest[0]) is not nn.Linear:
        return same
    first = rest[0]
    if first.in_features != dim or first.out_features > WORTHWHILE * dim:
        return same
    # The preprocessing is affine, too, so it becomes part of the first matrix and bias.
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
