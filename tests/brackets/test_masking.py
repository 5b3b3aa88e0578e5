from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.brackets.agreement import above_attack

IMAGES = 6


@pytest.fixture(scope="module")
def images(mnist: tuple) -> torch.Tensor:
    return torch.as_tensor(mnist[0][:IMAGES])


def plain(name: str = "zoo:mnist-mlp") -> nn.Module:
    return cs.load_model(name).module


class Noise(torch.autograd.Function):
    """The identity with a random gradient added to its own, as large as it several times over."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0)).to(gradient)
        return gradient + 5.0 * noise * gradient.std()


class Changed(nn.Module):
    """A network with something before and after it."""

    def __init__(self, network: nn.Module, before=lambda x: x, after=lambda x: x) -> None:
        super().__init__()
        self.network, self.before, self.after = network, before, after

    def forward(self, x):
        return self.after(self.network(self.before(x) - 0.5))


class Straight(torch.autograd.Function):
    """Rounding that claims the gradient of the identity."""

    @staticmethod
    def forward(ctx, x):
        return (x * 15).round() / 15

    @staticmethod
    def backward(ctx, gradient):
        return gradient


MASKED = {
    "rounded input": ("quantised", {"before": lambda x: (x * 255).round() / 255}),
    "rounded input with a gradient": ("quantised", {"before": Straight.apply}),
    "rounded logits": ("quantised", {"after": lambda f: (f * 10).round() / 10}),
    "temperature": ("saturated", {"after": lambda f: 1e4 * f}),
    "clipped logits": ("clipped", {"after": lambda f: (1e4 * f).clamp(-1.0, 1.0)}),
    "noisy gradients": ("inconsistent_gradients", {"before": Noise.apply}),
    "high frequency": ("inconsistent_gradients", {"before": lambda x: x + 0.002 * torch.sin(2e4 * x)}),
    "vanishing gradients": ("zero_gradients", {"after": lambda f: f.sign() + 1e-9 * f}),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_masked_model_raises_the_sign_that_fits(name: str, images: torch.Tensor) -> None:
    kind, changes = MASKED[name]
    signs = cs.masking_signs(cs.Classifier(Changed(plain(), **changes), bounds=(0.0, 1.0)), images)
    assert [sign.kind for sign in signs] == [kind], [str(sign) for sign in signs]
    assert len(signs[0].inputs) >= IMAGES - 1
    assert str(signs[0]).startswith(f"{len(signs[0].inputs)} inputs (0") and math.isfinite(signs[0].evidence)


@pytest.mark.parametrize(("p", "radius"), [(2, 5.0), ("inf", 0.3), (1, 5.0)])
def test_plain_networks_raise_none(p: object, radius: float, images: torch.Tensor) -> None:
    assert cs.masking_signs(cs.load_model("zoo:mnist-mlp"), images, p=p, radius=radius) == ()
    assert cs.masking_signs(cs.load_model("zoo:mnist-cnn"), images[:2], p=p, radius=radius) == ()


def test_kinks_and_single_precision_alone_raise_none(images: torch.Tensor) -> None:
    class Single(nn.Module):  # refuses double precision
        def __init__(self) -> None:
            super().__init__()
            self.network = plain("zoo:mnist-cnn")

        def forward(self, x):
            return self.network(x.float()).float()

    assert cs.masking_signs(cs.Classifier(Single(), mean=0.5), images[:1]) == ()
    torch.manual_seed(0)
    kinky = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 4))
    assert cs.masking_signs(cs.Classifier(kinky), torch.randn(4, 20)) == ()
    assert cs.masking_signs(cs.Classifier(nn.Linear(20, 4)), torch.randn(4, 20)) == ()


def test_single_precision_is_enough_for_the_signs(images: torch.Tensor) -> None:
    class Single(Changed):
        def forward(self, x):
            return super().forward(x.float()).float()

    for name in ("rounded input", "temperature", "noisy gradients"):
        kind, changes = MASKED[name]
        signs = cs.masking_signs(cs.Classifier(Single(plain(), **changes)), images)
        assert [sign.kind for sign in signs] == [kind], name


def test_a_dead_part_of_the_ball_is_seen() -> None:
    """Behind x_0 = 0.3 the network is constant, which is 40% of this ball."""

    class Dead(nn.Module):
        def forward(self, x):
            alive = (x[:, :1] < 0.3).to(x)
            return torch.cat([alive * x.sum(1, keepdim=True) + 5.0, 0.0 * x[:, :1]], 1)

    (sign,) = cs.masking_signs(cs.Classifier(Dead()), torch.zeros(3, 2), radius=1.0)
    assert sign.kind == "zero_gradients" and 0.1 <= sign.evidence < 0.7


def test_a_branch_cut_off_from_the_gradient_is_seen() -> None:
    """The gradient that is left is true along itself; only other directions tell what is missing."""
    torch.manual_seed(0)
    kept, cut = nn.Linear(10, 3).double(), nn.Linear(10, 3).double()
    classifier = cs.Classifier(lambda x: kept(x[:, :10]) + 4.0 * cut(x[:, 10:].detach()))
    (sign,) = cs.masking_signs(classifier, torch.randn(3, 20, dtype=torch.float64))
    assert sign.kind == "inconsistent_gradients" and len(sign.inputs) == 3


def test_a_declared_transform_is_not_a_sign(images: torch.Tensor) -> None:
    declared = cs.Classifier(plain(), mean=0.5, transform=cs.transforms.bit_depth(4))
    assert cs.masking_signs(declared, images) == ()


def test_scores_above_an_attack_are_a_sign(images: torch.Tensor) -> None:
    classifier = cs.load_model("zoo:mnist-mlp")
    scores = cs.clever(classifier, images, targets="runner_up", blocks=12, block_size=8, ids=range(10, 10 + IMAGES))
    far = np.full(IMAGES, np.inf)
    near = far.copy()
    near[2] = 0.5 * scores.values[2]
    attacks = [SimpleNamespace(l1=far, l2=far, linf=far), SimpleNamespace(l1=far, l2=near, linf=far)]
    assert cs.masking_signs(classifier, images, scores, attacks[0]) == ()
    (sign,) = cs.masking_signs(classifier, images, scores, attacks)
    assert (
        sign.kind == "above_attack"
        and sign.inputs == (12,)
        and sign.evidence == pytest.approx(100.0)
        and "100.0%" in str(sign)
    )


def test_other_norms_are_measured_from_the_adversarial_input() -> None:
    torch.manual_seed(0)
    classifier = cs.Classifier(nn.Linear(4, 3).double())
    x = torch.zeros(2, 4, dtype=torch.float64)
    scores = cs.clever(classifier, x, p=3, blocks=12, block_size=8)
    short = 0.1 * scores.values.min() * torch.nn.functional.normalize(torch.ones(2, 4).double(), p=3)
    attack = SimpleNamespace(adversarial=x + short, success=np.array([True, False]))
    (sign,) = cs.masking_signs(classifier, x, scores, attack)
    ratio = 10.0 * scores.values[0] / scores.values.min()
    assert sign.inputs == (0,) and sign.evidence == pytest.approx(100.0 * (ratio - 1.0))


def test_ties_and_missing_scores_are_no_sign() -> None:
    values = np.array([1.0, np.nan, 0.0, 1.0])
    assert not above_attack(values, np.array([1.0, 0.5, 0.0, np.inf])).any()
    assert above_attack(values, np.array([0.9, 0.5, 0.0, np.inf])).tolist() == [True, False, False, False]


def test_inputs_that_were_not_scored_are_refused(images: torch.Tensor) -> None:
    classifier = cs.load_model("zoo:mnist-mlp")
    scores = cs.clever(classifier, images[:2], targets="runner_up", blocks=12, block_size=8)
    with pytest.raises(cs.CleverError, match="2 scores for 6 inputs"):
        cs.masking_signs(classifier, images, scores)
