"""What `inspect` says of operations: steps that hide gradients, layers without bounds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import cleverscore as cs
from cleverscore.reporting.inspection import describe


class Rounded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.round(x)


@pytest.mark.parametrize(
    ("hidden", "gradients", "certificates"),
    [
        (nn.ReLU(), "nothing in the way", "crown has bounds for every layer"),
        (nn.Mish(), "nothing in the way", "none by crown"),
        (Rounded(), "steps in the way (1 round)", "none by crown"),
    ],
)
def test_operations_that_hide_gradients_or_have_no_bounds_are_named(
    hidden: nn.Module, gradients: str, certificates: str
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), hidden, nn.Linear(8, 3))
    said = describe(cs.Classifier(model, input_shape=(4,), bounds=(0.0, 1.0)), None)
    assert gradients in said and certificates in said, said


def test_the_time_of_the_default_command_comes_first() -> None:
    classifier = cs.Classifier(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), input_shape=(4,))
    lines = [line.strip() for line in describe(classifier, None).splitlines()]
    times = [line for line in lines if line.startswith(("quick run", "one block", "full run"))]
    assert [line[:9] for line in times] == ["quick run", "one block", "full run "]
    assert "for 20 inputs in one norm" in times[0] and "--preset paper" in times[2]
