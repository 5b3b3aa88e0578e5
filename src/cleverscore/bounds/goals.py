"""What an attack is to achieve: the inputs, the class to leave or to reach, and the box to stay in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cleverscore.classifier import Classifier
from cleverscore.errors import ModelError, SettingError
from cleverscore.gradients import CUT_OFF, dual_norms
from cleverscore.norms import dual_exponent
from cleverscore.subjects import prepare

# A margin this many rounding errors below zero stays below zero when the input is looked at in another batch.
ROUNDINGS = 8.0
# Where inputs have no bounds, an attack may go this many times as far as a linear model would have to.
FIRST_ORDER_STEPS = 10.0


@dataclass(frozen=True)
class Goal:
    """Inputs `x` (n, *shape) to be moved out of their predicted class, or into a target class where `targeted`.

    classes     (n,): the predicted class, or the target.
    low, high   (n, 1, ...): the box of each input.
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
        """The shape in which one number per input is broadcast over it."""
        return (-1, *[1] * (self.x.ndim - 1))

    def rows(self, places: slice | torch.Tensor) -> Goal:
        """The same goal for some of the inputs."""
        return replace(
            self, x=self.x[places], classes=self.classes[places], low=self.low[places], high=self.high[places]
        )

    def margins(self, points: torch.Tensor) -> torch.Tensor:
        """f_c - max f_j, or max f_j - f_target: below zero where the goal is reached. (n, *shape) -> (n,)."""
        logits = self.classifier.logits(points)
        own = logits.gather(1, self.classes[:, None])[:, 0]
        others = logits.scatter(1, self.classes[:, None], -torch.inf).amax(1)
        margins = others - own if self.targeted else own - others
        # Rounding is relative to the logits, and a margin within it may change its sign from batch to batch.
        slack = ROUNDINGS * torch.finfo(logits.dtype).eps * logits.detach().abs().amax(1)
        return margins + slack

    def margins_and_gradients(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Margins (n,) and their gradients (n, *shape)."""
        points = points.detach().requires_grad_(True)
        with torch.enable_grad():
            margins = self.margins(points)
        if not margins.requires_grad:
            raise ModelError(CUT_OFF)
        (gradients,) = torch.autograd.grad(margins, points, torch.ones_like(margins), allow_unused=True)
        if gradients is None:
            raise ModelError(CUT_OFF)
        return margins.detach(), gradients

    @torch.no_grad()
    def reached(self, points: torch.Tensor, *, chunk_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether each point is classified as wanted, and its class; what is not finite has no class to speak of."""
        logits = torch.cat([self.classifier.logits(part) for part in torch.split(points, chunk_size)])
        finite = torch.isfinite(logits).all(1) & torch.isfinite(points).flatten(1).all(1)
        found = logits.argmax(1)
        return finite & ((found == self.classes) if self.targeted else (found != self.classes)), found


def make_goal(classifier: Classifier, images: Any, *, targets: Any, p: float, seed: int) -> Goal:
    """Check model and inputs, and say what is to be reached.

    targets     None or "untargeted": any class but the predicted one; "runner_up", "least_likely", "random"; or one
                class per input.
    """
    targeted = targets is not None and not (isinstance(targets, str) and targets == "untargeted")
    subjects = prepare(classifier, images, targets=_one_each(targets) if targeted else "runner_up", seed=seed)
    x = torch.stack([subject.x for subject in subjects])
    classes = [subject.targets[0] if targeted else subject.predicted for subject in subjects]
    goal = Goal(classifier, x, torch.tensor(classes, device=x.device), targeted, *_edges(classifier, x))
    if classifier.bounds is None:
        reach = _reach(goal, p)
        goal = replace(goal, low=x - reach, high=x + reach)
    return goal


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


def _edges(classifier: Classifier, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = classifier.bounds or (-torch.inf, torch.inf)
    column = torch.ones_like(x.flatten(1)[:, 0]).reshape(-1, *[1] * (x.ndim - 1))
    return column * low, column * high


def _reach(goal: Goal, p: float) -> torch.Tensor:
    """How far one coordinate may move where inputs have no bounds: some times the step that suits a linear model.

    The nearest lp point of a half-space moves its largest coordinate by margin * max|w|^(q-1) / ||w||_q^q.
    """
    largest = []
    for start in range(0, len(goal), 64):
        part = goal.rows(slice(start, start + 64))
        margins, gradients = part.margins_and_gradients(part.x)
        q = dual_exponent(p)
        if p == 1.0:
            share = 1.0 / dual_norms(gradients, q)
        else:
            share = (dual_norms(gradients, torch.inf) / dual_norms(gradients, q)) ** (q - 1.0) / dual_norms(
                gradients, q
            )
        largest.append((margins.abs() * share).to(goal.x.dtype))
    steps = torch.cat(largest)
    size = 1.0 + goal.x.flatten(1).abs().amax(1)
    usable = torch.isfinite(steps) & (steps > 0.0)
    reach = torch.where(usable, FIRST_ORDER_STEPS * steps, size)
    return reach.reshape(-1, *[1] * (goal.x.ndim - 1))
