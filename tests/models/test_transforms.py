from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.models.margin_gradients import margin_gradient_norms
from cleverscore.models.structure import is_affine
from cleverscore.runs.study import fingerprint_model
from tests.helpers import affine_distance

FEW = {"blocks": 12, "block_size": 8}


def linear(dim: int = 6) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(dim, 3).double()


def test_values_go_through_the_transform_and_gradients_past_it() -> None:
    model = linear()
    classifier = cs.Classifier(model, transform=cs.transforms.bit_depth(2), mean=0.5, std=0.25)
    x = torch.rand(5, 6, dtype=torch.float64)
    rounded = (x * 3).round() / 3
    assert not torch.allclose(rounded, x)
    assert torch.equal(classifier(x), model((rounded - 0.5) / 0.25))
    norms = margin_gradient_norms(classifier, x, predicted=0, targets=(1,), q=2.0)
    expected = float((model.weight[0] - model.weight[1]).detach().norm()) / 0.25
    assert norms[:, 0].tolist() == pytest.approx([expected] * 5, rel=1e-12)


def test_a_surrogate_gives_the_gradient_where_one_is_given() -> None:
    model = linear()
    classifier = cs.Classifier(model, transform=torch.sign, transform_backward=lambda x: torch.tanh(2.0 * x))
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    logits = classifier.logits(x)
    assert torch.equal(logits, model(torch.sign(x)))
    (found,) = torch.autograd.grad((logits[:, 0] - logits[:, 1]).sum(), x)
    with torch.no_grad():
        expected = (model.weight[0] - model.weight[1]) * 2.0 / torch.cosh(2.0 * x) ** 2
    assert torch.allclose(found, expected, rtol=1e-10)


def test_scores_of_a_transformed_affine_model_are_known() -> None:
    """Margin of the rounded input over the gradient of the affine map; neither shortcut may take the transform away."""
    model = nn.Sequential(linear(), nn.Identity())
    x = torch.rand(4, 6, dtype=torch.float64)
    classifier = cs.Classifier(model, transform=cs.transforms.bit_depth(1))
    assert not is_affine(classifier) and is_affine(cs.Classifier(model))
    plain = cs.Classifier(model[0])
    for p in (1.0, 2.0, np.inf):
        scores = cs.clever(classifier, x, p=p, radius=100.0, targets="runner_up", **FEW)
        for score in scores:
            rounded = x[score.input].round()
            assert score.value == pytest.approx(affine_distance(plain, rounded, score.predicted, score.target, p))


def test_the_row_space_of_a_narrow_first_layer_is_left_alone() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 3))
    x = torch.rand(2, 20)
    classifier = cs.Classifier(model, transform=cs.transforms.bit_depth(3))
    # The same function as a plain callable, which no shortcut can look into.
    opaque = cs.Classifier(lambda x: classifier.logits(x))
    found, expected = (cs.clever(c, x, targets="runner_up", **FEW).values for c in (classifier, opaque))
    assert found == pytest.approx(expected, rel=1e-4)


def test_jpeg_compresses_images(mnist: tuple) -> None:
    x = torch.as_tensor(mnist[0][:3])
    good, poor = cs.transforms.jpeg(95)(x), cs.transforms.jpeg(5)(x)
    assert good.shape == x.shape and good.dtype == x.dtype and poor.min() >= 0 and poor.max() <= 1
    assert (good - x).abs().mean() < (poor - x).abs().mean() / 3
    colour = torch.rand(2, 3, 8, 8)
    assert cs.transforms.jpeg()(colour).shape == colour.shape
    module = cs.load_model("zoo:mnist-mlp").module
    classifier = cs.Classifier(module, bounds=(0.0, 1.0), mean=0.5, transform=cs.transforms.jpeg(20))
    scores = cs.clever(classifier, x[:1], targets="runner_up", **FEW)
    assert scores.values[0] > 0 and scores[0].margin == pytest.approx(
        float(cs.Classifier(module, mean=0.5)(cs.transforms.jpeg(20)(x[:1]))[0].topk(2).values.diff().abs()), rel=1e-5
    )


def test_fingerprints_tell_transforms_apart_and_stay_the_same() -> None:
    def rounding(levels: int) -> object:
        return lambda x: (x * levels).round() / levels

    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return (x * by).round()

    def same(transform: object) -> str:
        return fingerprint_model(cs.Classifier(linear(), transform=transform))

    makers = [
        lambda: None,
        lambda: cs.transforms.bit_depth(3),
        lambda: cs.transforms.bit_depth(4),
        lambda: cs.transforms.jpeg(75),
        lambda: rounding(3),
        lambda: rounding(4),
        lambda: partial(scaled, by=2.0),
        lambda: partial(scaled, by=3.0),
        lambda: torch.nn.Softshrink(0.1),
        lambda: torch.nn.Softshrink(0.2),
    ]
    first, second = [same(make()) for make in makers], [same(make()) for make in makers]
    assert first == second and len(set(first)) == len(makers)
    backward = cs.Classifier(linear(), transform=cs.transforms.bit_depth(3), transform_backward=torch.tanh)
    assert fingerprint_model(backward) not in first


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cs.transforms.bit_depth(0), "from 1 to 16"),
        (lambda: cs.transforms.jpeg(101), "from 1 to 100"),
        (lambda: cs.transforms.jpeg()(torch.zeros(2, 4)), "JPEG takes images"),
        (lambda: cs.Classifier(linear(), transform=3), "function of input tensors"),
        (lambda: cs.Classifier(linear(), transform_backward=torch.tanh), "without transform"),
        (
            lambda: cs.clever(cs.Classifier(linear(5), transform=lambda x: x[:, :5]), torch.rand(2, 6).double(), **FEW),
            "same shape",
        ),
        (lambda: cs.Classifier(linear(), transform=lambda x: None)(torch.rand(2, 6)), "NoneType"),
    ],
)
def test_mistakes_are_sentences(make: object, words: str) -> None:
    with pytest.raises(cs.CleverError, match=words):
        make()


def test_transforms_are_values() -> None:
    assert cs.transforms.bit_depth(3) == cs.transforms.BitDepth(3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cs.transforms.jpeg(3).quality = 4
