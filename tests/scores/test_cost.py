from __future__ import annotations

import torch
from torch import nn

import cleverscore as cs


def test_counts_are_exact_and_time_is_positive() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(60, 30), nn.Softplus(), nn.Linear(30, 5))
    cost = cs.estimate(cs.Classifier(model), torch.rand(3, 60), blocks=7, block_size=11, p=1)
    assert (cost.points, cost.gradients) == (3 * 77, 3 * 77 * 4)
    assert cost.seconds > 0 and cost.memory > 0 and "gradients" in str(cost)


def test_an_affine_network_costs_two_points() -> None:
    cost = cs.estimate(cs.Classifier(nn.Linear(4, 3)), torch.rand(3, 4))
    assert cost.points == 6
