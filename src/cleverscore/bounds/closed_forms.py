"""Radii from Lipschitz constants that need no propagation of lines: r <= margin / L.

local-lipschitz   one hidden layer: f_c - f_j = sum_k d_k s(u_k . x + b_k), so its gradient is sum_k d_k s'_k u_k. Over a
                  ball each pre-activation keeps to u_k . x0 + b_k +- r ||u_k||_q, and each slope s'_k to [a_k, z_k].
                  Each coordinate of the gradient lies in a sum of intervals, which bounds any norm. For p = 2 also
                      ||gradient||_2^2 <= sum_kl max(g_kl, 0) z_k z_l + min(g_kl, 0) a_k a_l,   g_kl = d_k d_l u_k . u_l
                  (Hein & Andriushchenko, NeurIPS 2017, for increasing slopes between 0 and 1); the smaller one counts.
norm-product      L = ||w_c - w_j||_q times the operator norms of all layers before (Szegedy et al., ICLR 2014).
"""

from __future__ import annotations

import math

import numpy as np
import torch

from cleverscore.balls import dual_exponent
from cleverscore.bounds.affine import Affine, Concat, Convolution, Dense, Scale, Sum, transposed
from cleverscore.bounds.crown_radii import gradient_norms
from cleverscore.bounds.graph import Graph, Node, trace
from cleverscore.bounds.pooling import MaxPool
from cleverscore.bounds.questions import Asked, Floats, margins, objectives
from cleverscore.bounds.relaxations import Activation
from cleverscore.bounds.search import Track, largest_radii
from cleverscore.classifier import Classifier
from cleverscore.errors import CertificateError
from cleverscore.subjects import Subject

LARGEST_HIDDEN = 2**14  # a Gram matrix of this side takes 2 GB
UNITS_AT_ONCE = 2**22


class _OneHidden:
    """f(x) = V s(U x + b) + c, read off a graph with one activation."""

    def __init__(self, graph: Graph, name: str) -> None:
        bends = [v for v, node in enumerate(graph.nodes) if isinstance(node.operation, Activation | MaxPool)]
        if len(bends) != 1 or isinstance(graph.nodes[bends[0]].operation, MaxPool):
            extra = graph.nodes[bends[1]].path if len(bends) > 1 else graph.nodes[bends[0]].path if bends else "output"
            raise CertificateError(
                f"method='local-lipschitz' is for one hidden layer with an activation, and layer '{extra}' of {name} is "
                "not part of such a network; use method='crown'"
            )
        place = bends[0]
        if not graph.affine[graph.nodes[place].parents[0]] or _skips(graph, place):
            raise CertificateError(f"{name} passes by its hidden layer '{graph.nodes[place].path}'; use method='crown'")
        self.activation = graph.nodes[place].operation
        inner, count = graph.nodes[place].parents[0], math.prod(graph.nodes[place].shape)
        if count > LARGEST_HIDDEN:
            raise CertificateError(
                f"layer '{graph.nodes[place].path}' of {name} has {count} units, above {LARGEST_HIDDEN} for "
                "method='local-lipschitz'; use method='crown'"
            )
        self.graph, self.inner, self.place = graph, inner, place
        self.inputs = self._matrix(0, inner)
        self.outputs = self._matrix(place, len(graph.nodes) - 1)

    def _matrix(self, start: int, end: int) -> torch.Tensor:
        """The matrix of the affine part between two nodes: (values at the end, values at the start)."""
        first, last = self.graph.nodes[start].shape, self.graph.nodes[end].shape
        like = next(n.operation.like for n in self.graph.nodes if isinstance(n.operation, Affine))
        eye = torch.eye(math.prod(last), dtype=torch.float64, device=like.device).view(-1, *last)
        return transposed(lambda x: self.graph.between(start, end, x), eye, first).flatten(1)


def _skips(graph: Graph, place: int) -> bool:
    """Whether anything after node `place` uses a node before it."""
    return any(parent < place for node in graph.nodes[place + 1 :] for parent in node.parents)
