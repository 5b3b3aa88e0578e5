"""Upper bounds of the operator norms of layers and of the Lipschitz constants of networks.

||A||_1 is the largest column sum of |A| and ||A||_inf the largest row sum; both are computed exactly. ||A||_2 of a
dense layer is its largest singular value. A convolution with zero padding is part of a circular convolution on a larger
torus, whose singular values are those of its Fourier coefficients (Sedghi, Gupta & Long, ICLR 2019); the largest of
them is an upper bound. For p = 2 of other layers and for every other p, the norm is bounded by interpolation:
||A||_p <= ||A||_1^(1/p) ||A||_inf^(1 - 1/p) (Riesz-Thorin).
"""

from __future__ import annotations

import math

import torch

from cleverscore.certificates.linear_layers import Affine, Concat, Convolution, Dense, Scale, Sum, transposed
from cleverscore.certificates.max_pool import MaxPool
from cleverscore.certificates.relaxations import Activation
from cleverscore.certificates.request import Floats
from cleverscore.certificates.tracing import Graph
from cleverscore.norms import dual_exponent

SAFETY = 1.0 + 1e-10  # more than the rounding errors of singular values and sums in double precision


def operator_norm(layer: Affine, p: float) -> float:
    """An upper bound of max ||A x||_p / ||x||_p, where A is the matrix of the layer."""
    if p == 2.0:
        if isinstance(layer, Dense):
            return float(torch.linalg.matrix_norm(layer.weight, 2)) * SAFETY
        if isinstance(layer, Scale):
            return float(layer.slope.abs().max()) * SAFETY
        if isinstance(layer, Convolution):
            return min(_spectral(layer), _interpolated(layer, p)) * SAFETY
    return _interpolated(layer, p) * SAFETY


def _interpolated(layer: Affine, p: float) -> float:
    like = layer.like
    ones = torch.ones(1, *layer.shape, dtype=like.dtype, device=like.device)
    rows = layer.magnitude(ones)
    largest_row = float(rows.max())
    if math.isinf(p):
        return largest_row
    largest_column = float(transposed(layer.magnitude, torch.ones_like(rows), layer.shape).max())
    return float(largest_column ** (1.0 / p) * largest_row ** (1.0 - 1.0 / p))


def _spectral(layer: Convolution) -> float:
    """The largest singular value of the circular convolution that contains this one."""
    sides = [side + reach - 1 for side, reach in zip(layer.shape[1:], layer.reach, strict=True)]
    weight = layer.weight
    kernel = weight.new_zeros(*weight.shape[:2], *layer.reach)
    kernel[:, :, :: layer.dilation[0], :: layer.dilation[1]] = weight
    waves = torch.fft.rfft2(kernel, s=sides).permute(2, 3, 0, 1).flatten(0, 1)  # (frequencies, out, in per group)
    parts = torch.chunk(waves, layer.groups, dim=1)
    return max(float(torch.linalg.matrix_norm(part, 2).max()) for part in parts)


def lipschitz(graph: Graph, objectives: torch.Tensor, p: float) -> Floats:
    """Upper bounds (T,) of the l_p Lipschitz constants of objectives (T, K) times the logits, over the whole space."""
    constants = [1.0]
    last = graph.nodes[-1]
    for node in graph.nodes[1:]:
        given = [constants[parent] for parent in node.parents]
        operation = node.operation
        if isinstance(operation, Affine):
            # The norm of the last matrix is not needed: the matrix is multiplied by the objectives below.
            constants.append(given[0] if node is last else given[0] * operator_norm(operation, p))
        elif isinstance(operation, Sum):
            constants.append(sum(abs(sign) * value for sign, value in zip(operation.signs, given, strict=True)))
        elif isinstance(operation, Concat):
            constants.append(max(given) if math.isinf(p) else sum(value**p for value in given) ** (1.0 / p))
        elif isinstance(operation, MaxPool):
            constants.append(given[0] * (1.0 if math.isinf(p) else operation.shares ** (1.0 / p)))
        else:
            assert isinstance(operation, Activation)
            constants.append(given[0] * operation.lipschitz)
    rows = last.operation.transposed(objectives) if isinstance(last.operation, Affine) else objectives
    norms = torch.linalg.vector_norm(rows.flatten(1), dual_exponent(p), dim=1)
    return (SAFETY * constants[-1] * norms).cpu().numpy()  # type: ignore[no-any-return]
