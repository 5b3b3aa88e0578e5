"""What a certification method is asked for (`CertificateRequest`), and the margins that it has to certify."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.certificates.tracing import Graph
from cleverscore.inputs.examples import Example
from cleverscore.models.classifier import Classifier

# A model computes in its own precision: margins below this many units in the last place of the largest
# logit prove nothing.
MARGIN_ROUNDING = 8.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CertificateRequest:
    """The settings of a certification.

    p           the norm.
    limit       the largest radius that is tried.
    precision   the relative precision of the radius.
    smallest    whether only the smallest radius over the targets of an input is needed.
    region      "ball" or "box", as in `certify`.
    workers     number of threads.
    """

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
    """Margins of each input, (T,) for its T targets, from logits in double precision, less `hidden_by_rounding`."""
    logits = graph.forward(stacked(examples))[-1]
    hidden = hidden_by_rounding(classifier, graph, examples)
    return [
        (logits[i, example.predicted] - logits[i, list(example.targets)] - hidden[i]).cpu().numpy()
        for i, example in enumerate(examples)
    ]


def objectives(example: Example, num_classes: int) -> torch.Tensor:
    """Rows (T, K) with 1 for the predicted class and -1 for a target: their products with K logits are the margins."""
    rows = torch.zeros(len(example.targets), num_classes, dtype=torch.float64, device=example.x.device)
    rows[:, example.predicted] = 1.0
    rows[torch.arange(len(example.targets)), list(example.targets)] = -1.0
    return rows
