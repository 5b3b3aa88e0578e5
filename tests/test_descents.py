"""A descent that meets the other class refutes a score beyond it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.ascent import Climbs, random_starts
from cleverscore.descent import nearest_crossings
from cleverscore.profile import Profile


def affine(weights: list[float], bias: float) -> cs.Classifier:
    model = nn.Linear(len(weights), 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights, [0.0] * len(weights)]))
        model.bias.copy_(torch.tensor([bias, 0.0]))
    return cs.Classifier(model)


@pytest.mark.parametrize(("p", "q"), [(2.0, 2.0), (math.inf, 1.0), (1.0, math.inf)])
def test_a_plane_is_met_at_its_distance(p: float, q: float) -> None:
    classifier, x = affine([3.0, -4.0, 1.0], 2.0), torch.zeros(1, 3)
    exact = 2.0 / float(np.linalg.norm([3.0, -4.0, 1.0], q))
    zero, one = torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.long)
    near, far = (
        nearest_crossings(classifier, Climbs(x, zero, one, torch.tensor([share * exact]), torch.zeros(1, 3)), p=p)
        for share in (0.98, 1.5)
    )
    # In l1 a step moves several coordinates alike, so that the way is not quite the shortest.
    assert math.isinf(near.item()) and far.item() >= exact * (1 - 1e-6)
    assert far.item() == pytest.approx(exact, rel=0.1 if p == 1.0 else 0.01)


def test_what_was_met_bounds_the_score() -> None:
    profile = Profile(np.array([0.0, 1.0]), np.array([1.0, 1.0]), 0, "ascended", met=0.5)
    assert profile.distance(0.8, 5.0) == 0.5 and profile.distance(0.3, 5.0) == pytest.approx(0.3)
    broken = Profile(np.array([0.0, 1.0]), np.array([1.0, math.nan]), 0, "not_finite", met=0.5)
    assert math.isnan(broken.distance(0.8, 5.0))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_every_other_start_is_on_the_surface_in_few_dimensions(p: float) -> None:
    ball = cs.LpBall(p, 2.0)
    few = random_starts(ball, dim=5, count=40, seed=0, input_id=0, batch=0)
    lengths = torch.linalg.vector_norm(few, p, dim=1)
    assert torch.allclose(lengths[1::2], torch.ones(20)) and float(lengths[::2].min()) < 0.99
    many = random_starts(ball, dim=50, count=40, seed=0, input_id=0, batch=0)
    assert not torch.allclose(torch.linalg.vector_norm(many, p, dim=1)[1::2], torch.ones(20))
