"""Margins towards many classes at points around one input, and their gradients, in chunks that fit in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from cleverscore.errors import ModelError
from cleverscore.models.classifier import Classifier
from cleverscore.models.margin_gradients import CUT_OFF

Found = TypeVar("Found")

ANY = -1  # in place of a target class: the one of the input's targets with the largest logit at the point


@dataclass
class MarginRows:
    """Margins f_c - f_j at points around one input, where c is the predicted class and each point has its own target j.

    If a point's target is `ANY`, f_j is the largest logit of all `targets` at this point. Points are divided into
    chunks in their order and independently of the number of threads, so results do not depend on this number.

    targets     the target classes of the input.
    executor    runs chunks in parallel; None: one after the other.
    on_points   a function that is called with the number of gradients just spent.
    spent       number of gradients so far; a forward pass alone counts as a third.
    broken      targets (or `ANY`) for which a margin or a gradient was NaN or infinite.
    steepest    the largest absolute component of any gradient so far.
    """

    classifier: Classifier
    predicted: int
    targets: Sequence[int]
    chunk_size: int
    executor: Executor | None = None
    on_points: Callable[[int], None] | None = None
    spent: float = 0.0
    broken: set[int] = field(default_factory=set)
    steepest: float = 0.0
    _known_classes: torch.Tensor | None = None

    def margins(self, points: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Margins (n,) at points (n, *input_shape) towards the target classes (n,)."""
        self._charge(len(points) / 3.0)
        return torch.cat(self._in_chunks(self._margins_of_chunk, points, targets))

    def margins_and_gradients(self, points: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Margins (n,) and their gradients (n, *input_shape) at points (n, *input_shape) towards the targets (n,).

        Updates `broken` and `steepest`.
        """
        self._charge(float(len(points)))
        parts = self._in_chunks(self._gradients_of_chunk, points, targets)
        margins, gradients = parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))
        largest = float(gradients.abs().amax())
        if not math.isfinite(largest + float(margins.sum())):
            finite = torch.isfinite(margins) & torch.isfinite(gradients).flatten(1).all(1)
            self.broken.update(targets[~finite].tolist())
        self.steepest = max(self.steepest, largest)
        return margins, gradients

    def nearest_targets(self, points: torch.Tensor) -> torch.Tensor:
        """The target class with the largest logit at each of the points (n, *input_shape): (n,)."""
        self._charge(len(points) / 3.0)
        with torch.no_grad():
            logits = torch.cat([self.classifier.logits(part) for part in torch.split(points, self.chunk_size)])
        classes = self._classes(points)
        return classes[logits[:, classes].argmax(1)]

    def _classes(self, like: torch.Tensor) -> torch.Tensor:
        if self._known_classes is None:
            self._known_classes = torch.tensor(list(self.targets), device=like.device)
        return self._known_classes

    def _charge(self, gradients: float) -> None:
        before = int(self.spent)
        self.spent += gradients
        if self.on_points is not None:
            self.on_points(int(self.spent) - before)

    def _in_chunks(
        self, function: Callable[[torch.Tensor, torch.Tensor], Found], points: torch.Tensor, targets: torch.Tensor
    ) -> list[Found]:
        work = (torch.split(points, self.chunk_size), torch.split(targets, self.chunk_size))
        return list(map(function, *work) if self.executor is None else self.executor.map(function, *work))

    def _margins_of_chunk(self, points: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self._margins(points, targets)

    def _gradients_of_chunk(self, points: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        points = points.detach().requires_grad_(True)
        with torch.enable_grad():
            margins = self._margins(points, targets)
        if not margins.requires_grad:
            raise ModelError(CUT_OFF)
        (gradients,) = torch.autograd.grad(margins, points, torch.ones_like(margins), allow_unused=True)
        if gradients is None:  # the graph leads to weights, but not to the points
            raise ModelError(CUT_OFF)
        return margins.detach(), gradients

    def _margins(self, points: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.classifier.logits(points)
        anywhere = targets == ANY
        if bool(anywhere.all()):
            others = logits[:, self._classes(logits)].amax(1)
        else:
            others = logits.gather(1, targets.clamp_min(0)[:, None])[:, 0]
            if bool(anywhere.any()):
                others = torch.where(anywhere, logits[:, self._classes(logits)].amax(1), others)
        return logits[:, self.predicted] - others
