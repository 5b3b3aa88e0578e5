"""Radii r with r L <= margin, where L is a closed-form upper bound of the margin's Lipschitz constant.

local-lipschitz   for one hidden layer. With activation s, the margin is f_c - f_j = sum_k d_k s(u_k . x + b_k) plus a
                  constant, so its gradient is sum_k d_k s'_k u_k. Over the ball of radius r around x0, the
                  pre-activation of unit k lies in u_k . x0 + b_k +- r ||u_k||_q, and so the slope s'_k in an interval
                  [a_k, z_k]. Each component of the gradient then lies in a sum of intervals, which bounds its norm for
                  every q. For p = 2 also
                      ||gradient||_2^2 <= sum_kl max(g_kl, 0) z_k z_l + min(g_kl, 0) a_k a_l,   g_kl = d_k d_l u_k . u_l
                  (Hein & Andriushchenko, NeurIPS 2017; needs s' >= 0). The smaller of the two bounds is L(r).
norm-product      L = ||w_c - w_j||_q times the l_p operator norms of all layers before, where w_c and w_j are rows of
                  the last layer's matrix (Szegedy et al., ICLR 2014).
"""

from __future__ import annotations

import math

import numpy as np
import torch

from cleverscore.certificates.crown_radius import gradient_norms
from cleverscore.certificates.linear_layers import Function, transposed
from cleverscore.certificates.max_pool import MaxPool
from cleverscore.certificates.operator_norms import lipschitz
from cleverscore.certificates.radius_search import RadiusSearch, largest_radii
from cleverscore.certificates.relaxations import Activation
from cleverscore.certificates.request import CertificateRequest, Floats, margins, objectives, stacked
from cleverscore.certificates.tracing import Graph, trace
from cleverscore.errors import CertificateError
from cleverscore.inputs.examples import Example
from cleverscore.models.classifier import Classifier
from cleverscore.norms import dual_exponent

MOST_UNITS = 2**13  # hidden units; the Gram matrix of so many takes 0.5 GB


def norm_product_radii(classifier: Classifier, examples: list[Example], request: CertificateRequest) -> list[Floats]:
    """Certified radii of each input, (T,) for its T targets, from the product of the layers' operator norms.

    The product bounds the margin's gradient everywhere.
    """
    graph = trace(classifier, tuple(examples[0].x.shape), torch.float64)
    found = margins(classifier, graph, examples)
    rows = torch.cat([objectives(example, graph.nodes[-1].shape[0]) for example in examples])
    constants = np.split(lipschitz(graph, rows, request.p), np.cumsum([len(margin) for margin in found])[:-1])
    return [
        np.clip(margin / np.maximum(constant, np.finfo(np.float64).tiny), 0.0, request.limit)
        for margin, constant in zip(found, constants, strict=True)
    ]


def local_lipschitz_radii(classifier: Classifier, examples: list[Example], request: CertificateRequest) -> list[Floats]:
    """Certified radii of each input, (T,) for its T targets: the largest r with r L(r) <= margin.

    L(r) is an upper bound of the gradient norm of the target's margin in the ball of radius r.
    """
    graph = trace(classifier, tuple(examples[0].x.shape), torch.float64)
    hidden = OneHiddenLayer(graph, classifier.name, dual_exponent(request.p))
    radii = []
    for example, margin in zip(examples, margins(classifier, graph, [*examples]), strict=True):
        rows = objectives(example, graph.nodes[-1].shape[0]) @ hidden.outer
        centre = hidden.inside(stacked([example]))
        slopes = gradient_norms(classifier, example, request.p)
        searches = [
            RadiusSearch(margin[j : j + 1], slopes[j : j + 1], request.limit, request.precision)
            for j in range(len(margin))
        ]

        def evaluate(some: list[int], at: Floats) -> list[Floats]:
            found = [hidden.gradient(rows[j], centre, radius) for j, radius in zip(some, at, strict=True)]  # noqa: B023
            return [margin[j : j + 1] - r * bound for j, r, bound in zip(some, at, found, strict=True)]  # noqa: B023

        largest_radii(searches, evaluate, together=len(searches))
        radii.append(np.array([search.low for search in searches]))
    return radii


class OneHiddenLayer:
    """A network f(x) = V s(U x + b) + v with d inputs, H hidden units, K classes and activation s, from a graph.

    Raises a CertificateError for a graph that is not of this form or has more than MOST_UNITS hidden units.

    inner   (H, d), the matrix U.
    outer   (K, H), the matrix V.
    norms   (H,), the l_q norms of the rows of U.
    gram    (H, H), U U^T if q = 2, else None.
    """

    def __init__(self, graph: Graph, name: str, q: float) -> None:
        self.graph, self.q = graph, q
        bends = [v for v, node in enumerate(graph.nodes) if isinstance(node.operation, Activation | MaxPool)]
        if not bends:
            raise CertificateError(
                f"{name} has no hidden layer, which method='local-lipschitz' needs; use method='crown'"
            )
        place = bends[0]
        node = graph.nodes[place]
        odd = graph.nodes[bends[1]].path if len(bends) > 1 else node.path
        passed = any(parent < place for later in graph.nodes[place + 1 :] for parent in later.parents)
        if len(bends) > 1 or passed or not isinstance(node.operation, Activation):
            raise CertificateError(
                f"method='local-lipschitz' is for one hidden layer, and layer '{odd}' of {name} makes it more than "
                "that; use method='crown'"
            )
        units = math.prod(node.shape)
        if units > MOST_UNITS:
            raise CertificateError(
                f"layer '{node.path}' of {name} has {units} units, and method='local-lipschitz' takes {MOST_UNITS} at "
                "most; use method='crown'"
            )
        self.activation = node.operation
        self.before = node.parents[0]
        self.inner = _matrix(lambda x: graph.forward(x)[self.before], graph.nodes[0].shape, node.shape, graph.device)
        self.outer = _matrix(lambda h: graph.forward(h, place)[-1], node.shape, graph.nodes[-1].shape, graph.device)
        self.norms = torch.linalg.vector_norm(self.inner, q, dim=1)
        self.gram = self.inner @ self.inner.T if q == 2.0 else None

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """The pre-activations (H,) of the hidden units at one input."""
        return self.graph.forward(x)[self.before].flatten()

    def gradient(self, weights: torch.Tensor, centre: torch.Tensor, radius: float) -> float:
        """An upper bound of ||gradient of weights . s(U x + b)||_q over the ball of `radius` around an input.

        weights     (H,), the weights of the hidden units in the margin.
        centre      (H,), the pre-activations at the input.
        """
        spread = radius * self.norms
        least, most = self.activation.slopes(centre - spread, centre + spread)
        middle, half = 0.5 * (least + most), 0.5 * (most - least)
        sizes = ((weights * middle) @ self.inner).abs() + (weights.abs() * half) @ self.inner.abs()
        bound = float(torch.linalg.vector_norm(sizes, self.q))
        if self.gram is not None:
            products = weights[:, None] * self.gram * weights
            square = most @ products.clamp_min(0.0) @ most + least @ products.clamp_max(0.0) @ least
            bound = min(bound, math.sqrt(max(0.0, float(square))))
        return bound


def _matrix(function: Function, first: tuple[int, ...], last: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """The matrix (size of `last`, size of `first`) of an affine function from shape `first` to shape `last`."""
    eye = torch.eye(math.prod(last), dtype=torch.float64, device=device).view(-1, *last)
    return transposed(function, eye, first).flatten(1)
