from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import cleverscore as cs
from cleverscore.estimators.sampling import sampler
from cleverscore.estimators.sampling.many_classes import sketched_norms
from cleverscore.estimators.sampling.row_space import Reduced, reduced
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.inputs.balls import LpBall
from cleverscore.inputs.examples import prepare
from cleverscore.models.margin_gradients import margin_gradient_norms
from cleverscore.models.structure import is_affine
from cleverscore.norms import dual_exponent

# Two-sample K-S tests at this level with fixed seeds; 2,000 maxima against 2,000 tell laws 0.06 apart.
LEVEL = 0.001


def narrow(hidden: int = 12) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, hidden), nn.Softplus(), nn.Linear(hidden, 4))


def norms(classifier: cs.Classifier, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, plain: bool) -> np.ndarray:
    with monkeypatch.context() as patch:
        if plain:
            patch.setattr(sampler, "reduced", lambda classifier, shape, ball: Reduced(classifier, ball))
        scores = cs.clever(classifier, x, p=2, targets="runner_up", radius=2.0, blocks=2000, block_size=4)
    return scores[0].maxima


@pytest.mark.parametrize("preprocessing", [{}, {"mean": [0.1, 0.2, 0.3], "std": [0.5, 1.0, 0.25]}])
def test_a_narrow_first_layer_gives_the_same_law(preprocessing: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = cs.Classifier(narrow(), **preprocessing)
    x = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    short, long = (norms(classifier, x, monkeypatch, plain) for plain in (False, True))
    assert not np.allclose(short[:10], long[:10])
    assert stats.ks_2samp(short, long).pvalue > LEVEL


def test_the_reduced_network_is_the_same_function() -> None:
    classifier = cs.Classifier(narrow(), mean=[0.1, 0.2, 0.3], std=[0.5, 1.0, 0.25])
    x = torch.rand(5, 3, 4, 4)
    lesser = reduced(classifier, x[0].shape, LpBall(2.0, 5.0))
    moved = [lesser.move(example) for example in prepare(classifier, x)]
    assert moved[0].x.shape == (12,) and type(lesser.ball) is not LpBall
    assert torch.allclose(lesser.classifier(torch.stack([s.x for s in moved])), classifier(x), atol=1e-5)


@pytest.mark.parametrize(
    ("model", "ball"),
    [
        (narrow(40), LpBall(2.0, 1.0)),  # not narrow enough
        (narrow(), LpBall(1.0, 1.0)),
        (narrow(), LpBall(2.0, 1.0, "box")),
        (nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 3)), LpBall(2.0, 1.0)),
    ],
)
def test_where_it_does_not_hold_nothing_is_reduced(model: nn.Module, ball: LpBall) -> None:
    classifier = cs.Classifier(model, bounds=(0.0, 1.0))
    assert reduced(classifier, torch.Size([3, 4, 4]), ball).classifier is classifier


def test_affine_networks_are_recognised() -> None:
    affine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)).eval()
    assert is_affine(cs.Classifier(affine))
    assert not is_affine(cs.Classifier(nn.Sequential(affine, nn.ReLU())))
    assert not is_affine(cs.Classifier(lambda x: x.flatten(1)))
    assert not is_affine(cs.Classifier(nn.Sequential(nn.Linear(3, 3), nn.Softmax(1)), outputs="probabilities"))


def many_classes(classes: int = 200) -> cs.Classifier:
    torch.manual_seed(0)
    return cs.Classifier(nn.Sequential(nn.Linear(40, 64), nn.Softplus(), nn.Linear(64, classes)))


def test_many_classes_are_scouted_first() -> None:
    classifier = many_classes()
    x = torch.rand(2, 40, generator=torch.Generator().manual_seed(4))
    settings = {"blocks": 64, "block_size": 32, "radius": 20.0}
    fixed = cs.clever(classifier, x, **settings)
    adaptive = cs.clever(classifier, x, tolerance=0.0, **settings)
    assert adaptive.values == pytest.approx(fixed.values, rel=0.05)
    one_target = 64 * 32
    assert all(score.gradients < 30 * one_target for score in adaptive)
    sketched = [row for row in adaptive.rows if row.stopped == StopReason.SKETCHED]
    prefiltered = [row for row in adaptive.rows if row.stopped == StopReason.PREFILTERED]
    assert len(sketched) > 100 and all(row.gradients == 1 for row in sketched)
    assert all(row.block_size == 1 and len(row.maxima) == 32 for row in prefiltered)
    assert "of 199 targets per input" in str(adaptive)


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_sketches_are_about_the_norms(p: float) -> None:
    classifier = many_classes()
    points = torch.rand(8, 40, generator=torch.Generator().manual_seed(5))
    q = dual_exponent(p)
    targets = list(range(1, 200))
    settings = {"predicted": 0, "targets": targets, "q": q}
    exact = margin_gradient_norms(classifier, points, **settings).mean(0).numpy()
    rough = {"seed": 1, "input_id": 3, "directions": 64}
    found = sketched_norms(classifier, points, chunk_size=100, **rough, **settings)
    assert found is not None
    # 512 projections: 3% for root mean squares, 7% for medians; 199 of them within five deviations.
    assert np.abs(found / exact - 1.0).max() < 5.0 * (0.03 if p == 2.0 else 0.07)
    assert sketched_norms(classifier, points, chunk_size=7, **rough, **settings) == pytest.approx(found, rel=1e-5)
    assert sketched_norms(classifier, points, chunk_size=100, **rough, **{**settings, "q": 3.0}) is None


def test_a_model_without_forward_derivatives_is_scouted_by_gradients() -> None:
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return 2.0 * x

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            return 2.0 * gradient

    plain = many_classes()
    classifier = cs.Classifier(lambda x: plain.module(Backward.apply(x)))
    x = torch.rand(1, 40, generator=torch.Generator().manual_seed(4))
    scores = cs.clever(classifier, x, blocks=64, block_size=32, radius=10.0, tolerance=0.0)
    kinds = {row.stopped for row in scores.rows}
    assert StopReason.PREFILTERED in kinds and StopReason.SKETCHED not in kinds


def test_top_targets_are_a_restriction_that_the_result_names() -> None:
    classifier = many_classes()
    x = torch.rand(2, 40, generator=torch.Generator().manual_seed(4))
    scores = cs.clever(classifier, x, targets="top:5", blocks=20, block_size=8)
    order = classifier(x).argsort(dim=1, descending=True)[:, 1:6].tolist()
    for i, score in enumerate(scores):
        assert score.target_kind == "top:5"
        mine = [row for row in scores.rows if row.input == i and row.target_kind == "all"]
        assert [row.target for row in mine] == order[i]
        assert score.value == min(row.value for row in mine)
    with pytest.raises(cs.CleverError, match="top:N"):
        cs.clever(classifier, x, targets="top:0")
