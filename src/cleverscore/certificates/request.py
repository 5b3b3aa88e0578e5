"""What is asked of a method of certification: margins of inputs to their targets, and how far they are to hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.certificates.tracing import Graph
from cleverscore.inputs.examples import Subject
from cleverscore.models.classifier import Classifier

# A model computes in its own precision: margins below this many units in the last place of its logits prove nothing.
MARGIN_ROUNDING = 8.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Asked:
    """The norm, the largest radius, the relative precision, and whether only the smallest over targets matters."""

    p: float
    limit: float
    precision: float
    smallest: bool
    region: str = "ball"
    workers: int = 1


def stacked(subjects: list[Subject]) -> torch.Tensor:
    """The inputs (n, *input_shape) in double precision."""
    return torch.stack([subject.x for subject in subjects]).double()


def hidden_by_rounding(classifier: Classifier, graph: Graph, subjects: list[Subject]) -> torch.Tensor:
    """How much of each input's margins the model's own rounding can hide: (n,)."""
    logits = graph.forward(stacked(subjects))[-1]
    eps = torch.finfo(classifier.dtype or subjects[0].x.dtype).eps
    return MARGIN_ROUNDING * eps * logits.abs().amax(1)


def margins(classifier: Classifier, graph: Graph, subjects: list[Subject]) -> list[Floats]:
    """Margins (T,) of each input, from logits in double precision, less what rounding can hide."""
    logits = graph.forward(stacked(subjects))[-1]
    hidden = hidden_by_rounding(classifier, graph, subjects)
    return [
        (logits[i, subject.predicted] - logits[i, list(subject.targets)] - hidden[i]).cpu().numpy()
        for i, subject in enumerate(subjects)
    ]


def objectives(subject: Subject, num_classes: int) -> torch.Tensor:
    """Rows e_c - e_j (T, K) that make margins from logits."""
    rows = torch.zeros(len(subject.targets), num_classes, dtype=torch.float64, device=subject.x.device)
    rows[:, subject.predicted] = 1.0
    rows[torch.arange(len(subject.targets)), list(subject.targets)] = -1.0
    return rows
