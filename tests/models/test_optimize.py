from __future__ import annotations

import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.models.margin_gradients import margin_gradient_norms
from cleverscore.models.one_channel_conv import ThinConv2d
from cleverscore.models.optimize import tuned


def with_batch_norm() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 16, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 5),
    )  # fmt: skip
    for layer in model:
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(layer.running_mean, -1, 1)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.uniform_(layer.bias, -1, 1)
    return model.eval()


class Shared(nn.Module):
    """The convolution's output is used before and after batch normalisation: it cannot be folded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        nn.init.uniform_(self.norm.running_mean, -1, 1)
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.out((y + self.norm(y)).mean((2, 3)))


class Branching(Shared):
    """Control flow on data: it cannot be traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        return self.out((y if y.mean() > 100 else 2 * y).mean((2, 3)))


def norm_layers(classifier: cs.Classifier) -> int:
    used = dict(classifier.module.named_modules())
    graph = getattr(classifier.module, "graph", None)
    if graph is not None:
        used = {n.target: used[n.target] for n in graph.nodes if n.op == "call_module"}
    return sum(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in used.values())


X = torch.rand(6, 3, 8, 8)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 4, 3),
        nn.Conv2d(1, 4, 5, stride=2, padding=2),
        nn.Conv2d(1, 3, (3, 2), stride=(1, 2), padding=(0, 1), bias=False),
        nn.Conv2d(1, 4, 3, padding="same"),
        nn.Conv2d(1, 4, 3, dilation=2),
    ],
)
def test_one_channel_convolutions_stay_the_same(layer: nn.Conv2d) -> None:
    torch.manual_seed(1)
    x = torch.rand(6, 1, 11, 12)
    plain = cs.Classifier(nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(layer(x)[0].numel(), 4)))
    fast = tuned(plain, x)
    thin = any(isinstance(part, ThinConv2d) for part in fast.module.modules())
    assert thin == (layer.dilation == (1, 1) and layer.padding != "same")
    arguments = {"predicted": 0, "targets": (1, 2), "q": 1.0}
    expected = margin_gradient_norms(plain, x, **arguments)
    assert torch.allclose(margin_gradient_norms(fast, x, **arguments), expected, rtol=1e-4)


@pytest.mark.parametrize(("model", "left"), [(with_batch_norm(), 0), (Shared().eval(), 1), (Branching().eval(), 1)])
def test_gradients_stay_the_same(model: nn.Module, left: int) -> None:
    plain = cs.Classifier(model, mean=0.4, std=0.3)
    fast = tuned(plain, X)
    assert fast is not plain
    assert norm_layers(fast) == left
    arguments = {"predicted": 0, "targets": (1, 2), "q": 2.0}
    expected = margin_gradient_norms(plain, X, **arguments)
    assert torch.allclose(margin_gradient_norms(fast, X, **arguments), expected, rtol=1e-4)


def test_weights_are_channels_last_and_the_users_are_not() -> None:
    model = with_batch_norm()
    fast = tuned(cs.Classifier(model), X)
    weights = [layer.weight for layer in fast.module.modules() if isinstance(layer, nn.Conv2d)]
    assert all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)
    assert all(layer.weight.is_contiguous() for layer in model if isinstance(layer, nn.Conv2d))


def test_a_model_without_convolutions_is_left_alone() -> None:
    classifier = cs.Classifier(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)))
    assert tuned(classifier, X) is classifier


def test_a_wrong_fold_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from cleverscore.models import optimize as tuning

    broken = with_batch_norm()
    broken[0].weight.data.mul_(2)
    monkeypatch.setattr(tuning, "_fold_batch_norm", lambda module: broken)
    monkeypatch.setattr(tuning, "_channels_last", lambda module: None)
    classifier = cs.Classifier(with_batch_norm())
    assert tuned(classifier, X) is classifier
