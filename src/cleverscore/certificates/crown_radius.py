"""Radii by CROWN: the largest ball over which the lower bound of every margin is positive."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from cleverscore.certificates.crown import Bounder, Region
from cleverscore.certificates.linear_layers import Convolution
from cleverscore.certificates.radius_search import RadiusSearch, largest_radii
from cleverscore.certificates.request import (
    CertificateRequest,
    Floats,
    hidden_by_rounding,
    margins,
    objectives,
    stacked,
)
from cleverscore.certificates.tracing import Graph, trace
from cleverscore.inputs.examples import Example
from cleverscore.models.classifier import Classifier
from cleverscore.models.input_box import box_of
from cleverscore.norms import dual_exponent

# The number of values, over all layers, of the inputs that a thread bounds at once. Small networks bound many inputs at
# once, so that there are few calls; in large networks the rows of a single input fill the cache.
TOGETHER_NUMBERS = 2**18


def crown_radii(classifier: Classifier, examples: list[Example], request: CertificateRequest) -> list[Floats]:
    """Certified radii of each input, (T,) for its T targets."""
    shape = tuple(examples[0].x.shape)
    exact = trace(classifier, shape, torch.float64)
    num_classes = exact.nodes[-1].shape[0]
    found = margins(classifier, exact, examples)
    bounder = make_bounder(classifier, exact, shape)
    if exact.affine[-1] and request.region == "ball":
        return [
            np.where(
                margin > 0,
                np.minimum(margin / _norms(bounder, objectives(example, num_classes), request.p), request.limit),
                0,
            )
            for example, margin in zip(examples, found, strict=True)
        ]
    if request.smallest:
        pairs = [(i, example) for i, example in enumerate(examples)]
    else:  # every target has a radius of its own, so it is searched for on its own
        pairs = [(i, replace(s, targets=(j,), margins=(m,))) for i, s in enumerate(examples)
                 for j, m in zip(s.targets, s.margins, strict=True)]  # fmt: skip
        found = [margin[k : k + 1] for margin in found for k in range(len(margin))]
    searches = [
        RadiusSearch(
            margin, gradient_norms(classifier, example, request.p), request.limit, request.precision, len(bounder.users)
        )
        for margin, (_, example) in zip(found, pairs, strict=True)
    ]
    x = stacked(examples)
    hidden = hidden_by_rounding(classifier, exact, examples)
    rows = [objectives(example, num_classes) for _, example in pairs]
    box = box_of(request.region, classifier.bounds)

    @torch.no_grad()
    def evaluate(some: list[int], radii: Floats) -> list[Floats]:
        which = [pairs[i][0] for i in some]
        counts = [len(rows[i]) for i in some]
        owner = torch.repeat_interleave(torch.tensor(counts)).to(x.device)
        region = Region(x[which], torch.from_numpy(radii).to(x.device), dual_exponent(request.p), box)
        bounds = bounder.margins(region, torch.cat([rows[i] for i in some]), owner) - hidden[which][owner]
        return [part.cpu().numpy() for part in torch.split(bounds, counts)]

    if box is None:
        bounder.prepare(dual_exponent(request.p))
    together = max(1, TOGETHER_NUMBERS // sum(math.prod(node.shape) for node in exact.nodes))
    largest_radii(searches, evaluate, together=together, workers=request.workers)
    if request.smallest:
        return [np.maximum(search.best, search.low) for search in searches]
    radii = [search.low for search in searches]
    ends = np.cumsum([len(example.targets) for example in examples])[:-1]
    return np.split(np.array(radii), ends)


def make_bounder(classifier: Classifier, exact: Graph, shape: tuple[int, ...]) -> Bounder:
    """The bounder of a graph, for inputs of `shape`.

    Bounds of intermediate layers of convolutional networks are computed in single precision and widened by the rounding
    errors, unless the classifier itself is in double precision.
    """
    single = any(isinstance(node.operation, Convolution) for node in exact.nodes) and classifier.dtype != torch.float64
    if not single:
        return Bounder(exact, exact, torch.float64)
    return Bounder(exact, trace(classifier, shape, torch.float32), torch.float32)


def _norms(bounder: Bounder, rows: torch.Tensor, p: float) -> Floats:
    """||gradient||_q of the margins of an affine network: (T,) for objectives `rows` (T, K)."""
    nothing = torch.zeros(1, *bounder.exact.nodes[0].shape, dtype=torch.float64, device=rows.device)
    region = Region(nothing, torch.ones(1, dtype=torch.float64, device=rows.device), dual_exponent(p))
    owner = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    offset = rows @ bounder.exact.forward(nothing)[-1][0]
    norms = offset - bounder.margins(region, rows, owner)
    return norms.clamp_min(torch.finfo(torch.float64).tiny).cpu().numpy()


def gradient_norms(classifier: Classifier, example: Example, p: float) -> Floats:
    """||grad(f_c - f_j)(x0)||_q for each target j: how fast its margin can decrease at the input x0: (T,)."""
    rows = objectives(example, int(classifier.logits(example.x[None]).shape[1])).to(example.x.dtype)
    x = example.x.expand(len(rows), *example.x.shape).clone().requires_grad_(True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad((classifier.logits(x) * rows).sum(), x)
    norms = torch.linalg.vector_norm(gradient.double().flatten(1), dual_exponent(p), dim=1)
    return norms.clamp_min(1e-12).cpu().numpy()  # type: ignore[no-any-return]
