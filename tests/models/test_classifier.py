from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs

X = torch.rand(5, 3, 4, 4)


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))


class Shifting(nn.Module):
    """A model with noise of its own, as some defences have."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + torch.randn_like(x))


class WithLogits(nn.Module):
    """Returns an object with the logits inside, as Hugging Face models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, x: torch.Tensor) -> object:
        return type("Output", (), {"logits": self.inner(x)})()


def test_preprocessing_is_part_of_the_function() -> None:
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    model = small()
    expected = model((X - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1))
    assert torch.allclose(cs.Classifier(model, mean=mean, std=std)(X), expected, atol=1e-6)
    assert torch.allclose(cs.Classifier(model, mean=0.5)(X), model(X - 0.5), atol=1e-6)


def test_arrays_and_objects_with_logits_are_taken() -> None:
    model = WithLogits()
    assert torch.allclose(cs.Classifier(model)(X.numpy()), model.inner(X))


def test_the_users_model_is_not_changed_and_weights_are_shared() -> None:
    model = nn.Sequential(small(), nn.Dropout(0.5)).train()
    with pytest.warns(cs.CleverWarning, match="training mode"):
        classifier = cs.Classifier(model)
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert not classifier.module.training and not any(p.requires_grad for p in classifier.module.parameters())
    theirs, ours = next(model.parameters()), next(classifier.module.parameters())
    assert theirs.data_ptr() == ours.data_ptr()


def test_precision_is_kept() -> None:
    assert cs.Classifier(small().double())(X).dtype == torch.float64


def test_a_function_is_a_model() -> None:
    model = small()
    assert cs.Classifier(lambda x: model(x)).check(X).num_classes == 5


def test_softmax_is_refused_and_its_logarithm_offered() -> None:
    model = nn.Sequential(small(), nn.Softmax(1))
    with pytest.raises(cs.CleverError, match="outputs='probabilities'"):
        cs.Classifier(model).check(X)
    logits = small()(X)
    log_p = cs.Classifier(model, outputs="probabilities")(X)
    assert torch.allclose(log_p[:, 0] - log_p[:, 1], logits[:, 0] - logits[:, 1], atol=1e-5)


def test_logits_are_not_taken_for_probabilities() -> None:
    with pytest.raises(cs.CleverError, match="do not sum to one"):
        cs.Classifier(small(), outputs="probabilities").check(X)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Shifting(), "different outputs"),
        (nn.Sequential(small(), nn.Linear(5, 1)), "one output"),
        (nn.Conv2d(3, 4, 3), "shape"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(48 * 5, 3)), "shape"),
        (lambda x: x.mul_(2.0).flatten(1), "in place"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.BatchNorm1d(8, track_running_stats=False)).eval(),
            "one input alone",
        ),
        (lambda x: x.flatten(1).sum(0, keepdim=True) + x.flatten(1), "depends on the other inputs"),
        (lambda x: torch.log(x.flatten(1) - 2), "NaN"),
        (lambda x: [1, 2], "list"),
        (nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).to(torch.float16), "float16"),
    ],
)
def test_models_that_are_no_classifiers_are_refused(model: nn.Module, words: str) -> None:
    classifier = cs.Classifier(model)
    with pytest.raises(cs.CleverError, match=words):
        classifier.check(classifier.inputs(X))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(0, 3, 4, 4), "empty"),
        (torch.zeros(3), "x\\[None\\]"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "floats"),
        (torch.full((2, 3, 4, 4), torch.nan), "NaN"),
        (torch.full((2, 3, 4, 4), 1.5), "outside the bounds"),
        (torch.zeros(2, 1, 4, 4), "channels|cannot take"),
    ],
)
def test_inputs_that_cannot_be_scored_are_refused(x: torch.Tensor, words: str) -> None:
    with pytest.raises(cs.CleverError, match=words):
        cs.clever(cs.Classifier(small(), bounds=(0, 1)), x, blocks=1, block_size=1)


@pytest.mark.parametrize(
    "arguments",
    [{"bounds": (1, 0)}, {"outputs": "scores"}, {"std": 0.0}, {"std": [1, -1, 1]}, {"mean": np.nan}],
)
def test_impossible_settings_are_refused(arguments: dict) -> None:
    with pytest.raises(cs.CleverError):
        cs.Classifier(small(), **arguments)


def test_preprocessing_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(cs.CleverError, match="2 values and the inputs have 3 channels"):
        cs.Classifier(small(), mean=[0.1, 0.2])(X)


def test_a_model_without_gradients_is_refused() -> None:
    model = small()
    with pytest.raises(cs.CleverError, match="cut off"):
        cs.clever(cs.Classifier(lambda x: model(x.detach())), X, blocks=1, block_size=1)


@pytest.mark.parametrize("flat", [False, True])
def test_one_output_becomes_two_logits(flat: bool) -> None:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)) if flat else nn.Linear(4, 1)
    x = torch.rand(3, 4)
    with pytest.raises(cs.CleverError, match="outputs='logit'"):
        cs.Classifier(one).check(x)
    classifier = cs.Classifier(one, outputs="logit")
    assert torch.equal(classifier(x), torch.stack([torch.zeros(3), one(x).reshape(-1)], dim=1))
    weight = one[0].weight if flat else one.weight
    distance = (one(x).reshape(-1).abs() / weight.norm()).detach().numpy()
    assert cs.clever(classifier, x, radius=20.0, blocks=12, block_size=8).values == pytest.approx(distance, rel=1e-4)
