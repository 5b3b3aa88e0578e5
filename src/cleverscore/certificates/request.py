"""The request to a certification method: the margins to certify, the norm, the largest radius and the precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.certificates.tracing import Graph
from cleverscore.inputs.examples import Example
from cleverscore.models.classifier import Classifier

# A model computes in its own precision: margins below this many units in the last place of its logits prove nothing.
MARGIN_ROUNDING = 8.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CertificateRequest:
    """Norm, largest radius, relative precision, and whether only the smallest radius over targets is needed."""

    p: float
    limit: float
    precision: float
    smallest: bool
    region: str = "ball"
    workers: int = 1


def stacked(examples: list[Example]) -> torch.Tensor:
    """The inputs (n, *input_shape) in double precision."""
    return torch.stack([example.x for example in examples]).double()


def hidden_by_rounding(classifier: Classifier, graph: Graph, examples: list[Example]) -> torch.Tensor:
    """A bound on the rounding error of the model's margins for each input: (n,)."""
    logits = graph.forward(stacked(examples))[-1]
    eps = torch.finfo(classifier.dtype or examples[0].x.dtype).eps
    return MARGIN_ROUNDING * eps * logits.abs().amax(1)


def margins(classifier: Classifier, graph: Graph, examples: list[Example]) -> list[Floats]:
    """Margins (T,) of each input, from logits in double precision, less the bound on rounding errors."""
    logits = graph.forward(stacked(examples))[-1]
    hidden = hidden_by_rounding(classifier, graph, examples)
    return [
        (logits[i, example.predicted] - logits[i, list(example.targets)] - hidden[i]).cpu().numpy()
        for i, example in enumerate(examples)
    ]


def objectives(example: Example, num_classes: int) -> torch.Tensor:
    """Rows e_c - e_j (T, K), whose products with the logits are the margins."""
    rows = torch.zeros(len(example.targets), num_classes, dtype=torch.float64, device=example.x.device)
    rows[:, example.predicted] = 1.0
    rows[torch.arange(len(example.targets)), list(example.targets)] = -1.0
    return rows
