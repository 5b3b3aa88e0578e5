"""A fully connected ReLU network around one input, in float64, on the unit ball: x = x0 + radius * d, ||d||_p <= 1.

The phase of a hidden unit is 1 if it is active, -1 if inactive, 0 if not fixed. Bounds are linear functions of d that
enclose every unit on the ball; they are propagated backward through the layers, with each ReLU bounded by two lines
(Zhang et al., "Efficient Neural Network Robustness Certification with General Activation Functions", 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from cleverscore.errors import ModelError
from cleverscore.models.classifier import Classifier
from cleverscore.models.structure import layers_in_order
from cleverscore.norms import dual_exponent

Array = npt.NDArray[np.float64]
Phases = tuple[npt.NDArray[np.int8], ...]

_SKIPPED = (nn.Flatten, nn.Identity, nn.Dropout)


@dataclass(frozen=True)
class Network:
    """z_1 = W_1 d + b_1, z_k = W_k relu(z_(k-1)) + b_k on the unit ball of l_p; the last z holds the outputs."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    p: float
    radius: float = 1.0

    @property
    def dim(self) -> int:
        """Number of inputs."""
        return int(self.weights[0].shape[1])

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return len(self.weights) - 1

    def margin(self, predicted: int, target: int, *, scale: float = 1.0) -> Network:
        """The network with the single output scale * (f_c - f_j)."""
        weight, bias = self.weights[-1], self.biases[-1]
        return replace(
            self,
            weights=(*self.weights[:-1], (weight[predicted] - weight[target])[None] * scale),
            biases=(*self.biases[:-1], (bias[predicted] - bias[target])[None] * scale),
        )

    def at(self, radius: float) -> Network:
        """The same network on the ball of another radius."""
        scaled = self.weights[0] * (radius / self.radius)
        return replace(self, weights=(scaled, *self.weights[1:]), radius=radius)

    def layers(self, points: Array) -> list[Array]:
        """All z_k of points d (n, dim): one (n, units) array per layer, the outputs last."""
        found, values = [], points
        for weight, bias in zip(self.weights, self.biases, strict=True):
            found.append(values @ weight.T + bias)
            values = np.maximum(found[-1], 0.0)
        return found

    def phases(self, point: Array) -> Phases:
        """The phase of each hidden unit at one point d."""
        return tuple(np.where(z[0] > 0.0, 1, -1).astype(np.int8) for z in self.layers(point[None])[:-1])

    def affine(self, phases: Phases) -> tuple[list[Array], list[Array]]:
        """Matrices A_k and offsets c_k with z_k = A_k d + c_k at all points with the given phases."""
        matrices, offsets = [self.weights[0]], [self.biases[0]]
        for weight, bias, phase in zip(self.weights[1:], self.biases[1:], phases, strict=True):
            gated = weight * (phase > 0)
            matrices.append(gated @ matrices[-1])
            offsets.append(gated @ offsets[-1] + bias)
        return matrices, offsets

    def free(self) -> Phases:
        """Phases in which no unit is fixed."""
        return tuple(np.zeros(len(bias), np.int8) for bias in self.biases[:-1])

    def projected(self) -> tuple[Network, Array]:
        """The network restricted to the row space of its first layer, and an orthonormal basis of this space.

        The restricted network takes a shorter vector z instead of the move d = basis @ z of the input. The l2 norms of
        z and d are equal; for other norms the network itself is returned, with the identity as basis.
        """
        if self.p != 2.0 or self.weights[0].shape[0] >= self.dim or not self.depth:
            return self, np.eye(self.dim)
        basis, triangle = np.linalg.qr(self.weights[0].T)
        return replace(self, weights=(triangle.T, *self.weights[1:])), basis


def read(classifier: Classifier, image: torch.Tensor, p: float) -> Network:
    """The network of a classifier with its preprocessing, around `image`; an error unless Linear and ReLU alternate."""
    if classifier.transform is not None:
        raise ModelError(
            "the classifier has a transform, which no exact answer can follow; ask for the model without it"
        )
    layers = layers_in_order(classifier.module)
    kinds = [layer for layer in layers or [] if not isinstance(layer, _SKIPPED)]
    right = all(type(layer) is (nn.ReLU if k % 2 else nn.Linear) for k, layer in enumerate(kinds))
    if layers is None or classifier.outputs != "logits" or len(kinds) % 2 == 0 or not right:
        names = ", ".join(type(layer).__name__ for layer in layers or [classifier.module])
        raise ModelError(
            f"exact answers need a torch.nn.Sequential of Linear and ReLU in turn that gives logits, not {names}; "
            "for smooth networks use dense_multistart_lipschitz"
        )
    linear = [layer for layer in kinds if isinstance(layer, nn.Linear)]
    weights = [layer.weight.detach().double().cpu().numpy() for layer in linear]
    biases = [
        np.zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach().double().cpu().numpy()
        for layer in linear
    ]
    x = image.detach().double()
    # The preprocessing is affine, so its value at the input and its slope describe it completely.
    centre = classifier.standardised(x[None]).flatten().cpu().numpy()
    slope = classifier.preprocessing(x)[0].flatten().cpu().numpy()
    biases[0] = biases[0] + weights[0] @ centre
    weights[0] = weights[0] * slope
    return Network(tuple(weights), tuple(biases), p)


@dataclass(frozen=True)
class Bounds:
    """Bounds of all layers at those points d of the unit ball where the units have the given phases.

    low, high       per layer, bounds (units,) of its values z.
    lower, upper    per layer, the matrix A and the offset c of linear functions A d + c below and above z.
    influence       per hidden layer (units,), how much each unit's unknown phase loosens the lower bound of the last
                    output.
    possible        False if the bounds show that no point has the given phases.
    """

    low: tuple[Array, ...]
    high: tuple[Array, ...]
    lower: tuple[tuple[Array, Array], ...]
    upper: tuple[tuple[Array, Array], ...]
    influence: tuple[Array, ...]
    possible: bool

    @property
    def phases(self) -> Phases:
        """The phases of all units: those that the bounds or the given phases fix, 0 for the others."""
        return tuple(
            np.where(low >= 0.0, 1, np.where(high <= 0.0, -1, 0)).astype(np.int8)
            for low, high in zip(self.low[:-1], self.high[:-1], strict=True)
        )


def bounds(network: Network, phases: Phases | None = None) -> Bounds:
    """Bounds of all layers on the unit ball, where the units have the given phases; default: no phase is fixed."""
    phases = network.free() if phases is None else phases
    q = dual_exponent(network.p)
    lows: list[Array] = []
    highs: list[Array] = []
    lower, upper = [], []
    influence: list[Array] = []
    possible = True
    for k in range(network.depth + 1):
        below, influence = _backward(network, lows, highs, k, sign=1.0)
        above, _ = _backward(network, lows, highs, k, sign=-1.0)
        low = below[1] - np.linalg.norm(below[0], q, axis=1)
        high = above[1] + np.linalg.norm(above[0], q, axis=1)
        lower.append(below)
        upper.append(above)
        if k < network.depth:
            low = np.where(phases[k] > 0, np.maximum(low, 0.0), low)
            high = np.where(phases[k] < 0, np.minimum(high, 0.0), high)
            possible = possible and bool(np.all(low <= high))
        lows.append(low)
        highs.append(high)
    return Bounds(tuple(lows), tuple(highs), tuple(lower), tuple(upper), tuple(influence), possible)


def _backward(
    network: Network, lows: Sequence[Array], highs: Sequence[Array], k: int, *, sign: float
) -> tuple[tuple[Array, Array], list[Array]]:
    """A linear function (matrix, offset) of d below (sign 1) or above (sign -1) the values z of layer k, from 0.

    Also, per hidden layer before k, how much the relaxation of each of its units loosens the bound of the last value of
    z. `lows` and `highs` are bounds of the layers before k.
    """
    matrix, offset = sign * network.weights[k], sign * network.biases[k]
    costs: list[Array] = []
    for j in reversed(range(k)):
        low, high = lows[j], highs[j]
        unsure = (low < 0.0) & (high > 0.0)
        width = np.where(unsure, high - low, 1.0)
        chord = np.where(unsure, high / width, low >= 0.0)
        intercept = np.where(unsure, -low * high / width, 0.0)
        line = np.where(unsure, high > -low, chord)  # the lower line's slope: 1 or 0, for the smaller area
        positive, negative = np.maximum(matrix, 0.0), np.minimum(matrix, 0.0)
        costs.append((-negative[-1]) * intercept)
        offset = offset + negative @ intercept
        matrix = positive * line + negative * chord
        offset = offset + matrix @ network.biases[j]
        matrix = matrix @ network.weights[j]
    return (sign * matrix, sign * offset), costs[::-1]
