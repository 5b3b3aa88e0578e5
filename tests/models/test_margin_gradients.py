from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.estimators.sampling.chunk_size import default_chunk_size, footprint
from cleverscore.models.margin_gradients import dual_norms, margin_gradient_norms


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 6)
    ).eval()


@pytest.mark.parametrize("q", [1.0, 1.5, 2.0, 3.0, math.inf])
def test_norms_equal_one_backward_pass_per_point_and_target(q: float) -> None:
    model = network()
    x = torch.rand(5, 2, 6, 6)
    found = margin_gradient_norms(cs.Classifier(model, mean=0.3, std=0.2), x, predicted=2, targets=(0, 5, 1), q=q)
    for i in range(len(x)):
        for column, target in enumerate((0, 5, 1)):
            point = x[i : i + 1].clone().requires_grad_(True)
            logits = model((point - 0.3) / 0.2)[0]
            (logits[2] - logits[target]).backward()
            expected = np.linalg.norm(point.grad.double().flatten().numpy(), q)
            assert found[i, column] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("q", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e25])
def test_norms_neither_underflow_nor_overflow(q: float, scale: float) -> None:
    g = torch.randn(3, 40)
    expected = np.linalg.norm(g.double().numpy() * scale, q, axis=1)
    assert dual_norms(g * scale, q).double().numpy() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("q", [1.0, 1.5, 2.0, math.inf])
def test_a_broken_gradient_is_seen(q: float) -> None:
    g = torch.zeros(2, 4)
    g[1, 2] = torch.nan
    norms = dual_norms(g, q)
    assert norms[0] == 0 and torch.isnan(norms[1])


def test_half_precision_is_measured_in_single() -> None:
    assert dual_norms(torch.full((1, 100_000), 0.1, dtype=torch.bfloat16), 1.0).dtype == torch.float32


def test_footprint_counts_activations_and_not_weights() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(100, 1000), nn.Softplus(), nn.Linear(1000, 10))
    need = footprint(cs.Classifier(model), torch.zeros(100))
    assert 4000 <= need.largest <= 4600
    assert 4000 <= need.total <= 10_000
    assert default_chunk_size(cs.Classifier(model), torch.zeros(100), workers=2) == 1024
