"""Criterion: when an attack succeeds. It has the inputs, the classes to leave or to reach, and the box to stay in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cleverscore.errors import ModelError, SettingError
from cleverscore.inputs.examples import prepare
from cleverscore.models.classifier import Classifier
from cleverscore.models.input_box import Box
from cleverscore.models.margin_gradients import CUT_OFF

# A margin that is below zero by so many rounding errors stays below zero when the point is evaluated in another batch.
ROUNDINGS = 8.0
ANY = -1  # in place of a rival class: the other class with the largest logit at the point


@dataclass(frozen=True)
class Criterion:
    """Inputs `x` (n, *shape) to be moved out of their predicted class, or into a target class if `targeted`.

    classes     (n,): the predicted class, or if targeted the target class, of each input.
    low, high   (n, 1, ...): the box of each input; infinite without a box.
    """

    classifier: Classifier
    x: torch.Tensor
    classes: torch.Tensor
    targeted: bool
    low: torch.Tensor
    high: torch.Tensor

    def __len__(self) -> int:
        return len(self.x)

    @property
    def column(self) -> tuple[int, ...]:
        """The shape to which one number per input is reshaped, to broadcast over the inputs."""
        return (-1, *[1] * (self.x.ndim - 1))

    @property
    def boxed(self) -> bool:
        """Whether inputs have to stay in a box."""
        return bool(torch.isfinite(self.low).all() and torch.isfinite(self.high).all())

    def rows(self, places: slice | torch.Tensor) -> Criterion:
        """The same criterion for the inputs at these places, in this order; a place may occur several times."""
        return replace(
            self, x=self.x[places], classes=self.classes[places], low=self.low[places], high=self.high[places]
        )

    def inside(self, points: torch.Tensor) -> torch.Tensor:
        """Points (n, *shape) clipped to the box of their inputs."""
        return points.maximum(self.low).minimum(self.high)

    def margins(self, points: torch.Tensor) -> torch.Tensor:
        """Margins (n,) at points (n, *shape): f_c - max f_j over classes j other than the predicted class c, or if
        targeted, max f_j - f_t over classes j other than the target t.

        A rounding error is added (`_slack`), so that points with a margin below zero are adversarial.
        """
        logits = self.classifier.logits(points)
        own = logits.gather(1, self.classes[:, None])[:, 0]
        others = logits.scatter(1, self.classes[:, None], -torch.inf).amax(1)
        return (others - own if self.targeted else own - others) + _slack(logits)

    def margins_and_gradients(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The `margins` (n,) at points (n, *shape), and their gradients (n, *shape)."""
        return self.smooth_margins_and_gradients(points, sharpness=math.inf)

    def smooth_margins_and_gradients(
        self, points: torch.Tensor, rivals: torch.Tensor | None = None, *, sharpness: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Margins (n,) at points (n, *shape), and smoothed gradients (n, *shape), to which all classes with almost the
        largest logit contribute.

        With T = margin / sharpness, the maximum over f_j is differentiated as T log sum exp(f_j / T). Near the decision
        boundary T goes to zero, so the gradient converges to that of the margin itself.

        rivals      (n,): for each point a class j, for the margin f_c - f_j, or `ANY`, for the maximum over all j;
                    default: `ANY`. Not for targeted criteria.
        sharpness   the larger, the fewer classes contribute; infinite for the gradient of the margin itself.
        """
        points = points.detach().requires_grad_(True)
        with torch.enable_grad():
            logits = self.classifier.logits(points)
        if not logits.requires_grad:
            raise ModelError(CUT_OFF)
        with torch.no_grad():
            own = logits.gather(1, self.classes[:, None])
            others = logits.scatter(1, self.classes[:, None], -torch.inf)
            if rivals is not None:
                classes = torch.arange(logits.shape[1], device=logits.device)
                chosen = (rivals[:, None] == ANY) | (rivals[:, None] == classes)
                others = torch.where(chosen, others, -torch.inf)
            largest = others.amax(1, keepdim=True)
            gaps = largest - own if self.targeted else own - largest
            if math.isinf(sharpness):
                weights = torch.zeros_like(others).scatter(1, others.argmax(1, keepdim=True), 1.0)
            else:
                smallest = torch.finfo(logits.dtype).eps * (1.0 + largest.abs())
                weights = torch.softmax((others - largest) * (sharpness / gaps.clamp_min(smallest)), 1)
            weights = weights.scatter(1, self.classes[:, None], -1.0)
        (gradients,) = torch.autograd.grad(logits, points, weights if self.targeted else -weights, allow_unused=True)
        if gradients is None:
            raise ModelError(CUT_OFF)
        return gaps[:, 0] + _slack(logits), gradients

    @torch.no_grad()
    def reached(self, points: torch.Tensor, *, chunk_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether each of the points (n, *shape) meets the criterion, and its class: (n,), (n,).

        Points that are not finite, or whose logits are not, do not meet it.
        """
        logits = torch.cat([self.classifier.logits(part) for part in torch.split(points, chunk_size)])
        finite = torch.isfinite(logits).all(1) & torch.isfinite(points).flatten(1).all(1)
        found = logits.argmax(1)
        return finite & ((found == self.classes) if self.targeted else (found != self.classes)), found


def _slack(logits: torch.Tensor) -> torch.Tensor:
    """The rounding error (n,) of margins, from logits (n, K): a smaller margin may change its sign from batch to batch.

    It is never zero, so that the margin at a tie of two logits, where the class may be the same as before, is positive.
    """
    kind = torch.finfo(logits.dtype)
    return ROUNDINGS * kind.eps * logits.detach().abs().amax(1) + kind.tiny


def make_criterion(classifier: Classifier, images: Any, *, targets: Any, box: Box | None, seed: int) -> Criterion:
    """Check model and inputs, and make the criterion.

    targets     None or "untargeted": any class but the predicted one; "runner_up", "least_likely", "random"; or one
                class per input.
    box         None for no box.
    """
    targeted = targets is not None and not (isinstance(targets, str) and targets == "untargeted")
    examples = prepare(classifier, images, targets=_one_each(targets) if targeted else "runner_up", seed=seed)
    x = torch.stack([example.x for example in examples])
    classes = [example.targets[0] if targeted else example.predicted for example in examples]
    column = torch.ones_like(x.flatten(1)[:, 0]).reshape(-1, *[1] * (x.ndim - 1))
    low, high = box or (-torch.inf, torch.inf)
    return Criterion(
        classifier, x, torch.tensor(classes, device=x.device), targeted, low=column * low, high=column * high
    )


def _one_each(targets: Any) -> str | Sequence[Sequence[int]]:
    if isinstance(targets, str):
        if targets == "all" or targets.startswith("top:"):
            raise SettingError(
                f"targets={targets!r}: an attack has one target per input; choose 'runner_up', 'least_likely', "
                "'random', or give one class per input"
            )
        return targets
    try:
        return [[int(target)] for target in targets]
    except (TypeError, ValueError):
        raise SettingError(f"targets={targets!r}: give one class number per input, or None for any class") from None
