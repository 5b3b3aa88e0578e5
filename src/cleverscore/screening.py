"""Block maxima from a part of the gradients: a forward pass tells where large ones are to be expected.

After the first blocks the gradient norms of a target are regressed on what a forward pass gives: logits and their
products, random projections of what the last layer sees, and gradients through the last dense layers alone. In later
blocks gradients are computed where the largest are expected, and then wherever the residuals of the regression leave a
chance for a larger one than was found. What is found is a gradient norm at a point of the block, so a maximum can only
be missed, never exceeded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cleverscore.classifier import Classifier
from cleverscore.gradients import pair_gradient_norms
from cleverscore.heads import Head
from cleverscore.streams import philox

LEAST_BLOCK = 32  # points: of smaller blocks there is little to leave out
LESSON_POINTS = 4096  # of an input at most: its first blocks, of which there may be so many
LESSON_BLOCKS = 32
LEAST_LESSON = 512
CLASSES = 10  # whose logits are looked at: those that are largest at the input
PROJECTIONS = 128
STREAM = 0x68656164
RIDGES = (1.0, 10.0, 100.0, 1e3, 1e4)
HELD_OUT = 0.25  # of the points: they choose the ridge and tell the residuals
SMALLEST_NORM = 0.01  # of the largest: logarithms of smaller norms are not told apart
FARTHEST = 6.0  # standard deviations of a feature; what lies farther out is moved there
# Gradients are computed at so many points of a block, at so many more, and then at all that may have a larger one.
STEPS = (4, 8, None)
# A point may have a larger norm if its expected one and so many standard deviations of the residuals reach it; one
# deviation more for a tolerance that is ten times smaller.
DEVIATIONS, AT_TOLERANCE = 2.75, 0.05
WORTHWHILE = 0.8  # above this share of gradients the forward passes cost more than is saved


@dataclass(frozen=True)
class Features:
    """What a forward pass tells of points: (points, n) alike for all targets, and (points, targets, m) of each."""

    common: torch.Tensor
    own: torch.Tensor


@dataclass(frozen=True)
class Lesson:
    """Points of which both the features and the gradient norms (points, targets) are known."""

    features: Features
    norms: torch.Tensor
    targets: tuple[int, ...]

    def about(self, targets: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Common features, own features and norms, of these targets alone, in double precision."""
        columns = [self.targets.index(target) for target in targets]
        parts = self.features.common, self.features.own[:, columns], self.norms[:, columns]
        common, own, norms = (part.double().cpu() for part in parts)
        return common, own, norms


@dataclass(frozen=True)
class Observer:
    """How features of the points around one input are computed."""

    head: Head
    predicted: int
    classes: torch.Tensor
    centre: torch.Tensor
    projection: torch.Tensor | None

    @classmethod
    def of(cls, classifier: Classifier, x: torch.Tensor, predicted: int, head: Head) -> Observer:
        """For points around `x`."""
        with torch.no_grad():
            logits = classifier.logits(x[None])[0].float()
        classes = logits.topk(min(CLASSES, len(logits))).indices
        projection = None
        if head.widths:
            width = head.widths[-1]
            values = philox((0, STREAM), (width, 0, 0, 0)).standard_normal((width, min(PROJECTIONS, width)))
            projection = torch.from_numpy(values / math.sqrt(width)).to(device=x.device, dtype=torch.float32)
        return cls(head, predicted, classes, logits[classes], projection)

    def features(
        self, classifier: Classifier, points: torch.Tensor, targets: Sequence[int], *, chunk_size: int
    ) -> Features:
        """The features of points (n, *input_shape)."""
        parts = [self._of_chunk(classifier, part, targets) for part in torch.split(points, chunk_size)]
        return Features(torch.cat([part.common for part in parts]), torch.cat([part.own for part in parts]))

    def _of_chunk(self, classifier: Classifier, points: torch.Tensor, targets: Sequence[int]) -> Features:
        logits, seen = self.head.watched(classifier, points)
        few = logits.detach().float()[:, self.classes] - self.centre
        first, second = torch.triu_indices(few.shape[1], few.shape[1], device=few.device)
        common = [few, few[:, first] * few[:, second]]
        if self.projection is not None:
            common.append(seen[-1].detach().float() @ self.projection)
        return Features(torch.cat(common, 1), self._own(logits, seen[:-1], targets))

    def _own(self, logits: torch.Tensor, seen: Sequence[torch.Tensor], targets: Sequence[int]) -> torch.Tensor:
        """Logarithms of margin-gradient norms with respect to what layers saw; at the last layer they are constant."""
        if not seen:
            return logits.new_zeros(len(logits), len(targets), 0, dtype=torch.float32)
        direction = torch.zeros_like(logits)
        direction[:, self.predicted] = 1.0
        found = []
        for target in targets:
            direction[:, target] = -1.0
            gradients = torch.autograd.grad(logits, list(seen), direction, retain_graph=True)
            direction[:, target] = 0.0
            norms = [norm for g in gradients for norm in (g.float().abs().sum(1), g.float().norm(dim=1))]
            found.append(torch.stack(norms, 1).clamp_min(torch.finfo(torch.float32).tiny).log())
        return torch.stack(found, 1)


@dataclass(frozen=True)
class _Scale:
    """Standardised features; those that do not vary become zero."""

    mean: torch.Tensor
    factor: torch.Tensor

    @classmethod
    def of(cls, values: torch.Tensor) -> _Scale:
        mean = values.mean(0)
        spread = (values - mean).square().mean(0).sqrt()  # std() warns of no features
        varies = spread > 1e-6 * (1.0 + mean.abs())
        return cls(mean, torch.where(varies, 1.0 / spread, torch.zeros_like(spread)))

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        mean, factor = (part.to(device=values.device, dtype=values.dtype) for part in (self.mean, self.factor))
        return ((values - mean) * factor).clamp(-FARTHEST, FARTHEST)


@dataclass(frozen=True)
class Screen:
    """What was learned about the gradient norms around one input, per target: expected logarithms and their errors.

    deviations      of the residuals that a larger norm may lie above the expected one.
    """

    observer: Observer
    targets: tuple[int, ...]
    common_scale: _Scale
    own_scale: _Scale
    common: torch.Tensor
    own: torch.Tensor
    constant: torch.Tensor
    residual: torch.Tensor
    deviations: float

    @classmethod
    def learned(
        cls, lessons: Sequence[Lesson], observer: Observer, targets: tuple[int, ...], tolerance: float
    ) -> Screen | None:
        """Learn from lessons; None where there are too few points, or numbers that are not finite."""
        parts = [lesson.about(targets) for lesson in lessons]
        common, own, norms = (torch.cat(part) for part in zip(*parts, strict=True))
        if len(norms) < LEAST_LESSON or not all(bool(part.isfinite().all()) for part in (norms, common, own)):
            return None
        largest = norms.amax(0)
        if not bool((largest > 0.0).all()):
            return None
        logs = norms.clamp_min(SMALLEST_NORM * largest).log()
        common_scale, own_scale = _Scale.of(common), _Scale.of(own)
        common, own = common_scale(common), own_scale(own)
        found = [_regression(torch.cat([common, own[:, t]], 1), logs[:, t]) for t in range(len(targets))]
        weights = torch.stack([weight for weight, _, _ in found], 1)
        width = common.shape[1]
        return cls(
            observer, targets, common_scale, own_scale, weights[:width], weights[width:].T,
            torch.stack([constant for _, constant, _ in found]), torch.stack([residual for _, _, residual in found]),
            DEVIATIONS + max(0.0, math.log10(AT_TOLERANCE / tolerance)),
        )  # fmt: skip

    def _expected(self, features: Features, targets: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Expected logarithms (points, targets) and what may come on top (targets,)."""
        columns = [self.targets.index(target) for target in targets]
        device = features.common.device
        common, constant, residual = (
            part[..., columns].to(device=device, dtype=torch.float32)
            for part in (self.common, self.constant, self.residual)
        )
        own_scale = _Scale(self.own_scale.mean[columns], self.own_scale.factor[columns])
        own = self.own[columns].to(device=device, dtype=torch.float32)
        expected = self.common_scale(features.common) @ common + (own_scale(features.own) * own).sum(2) + constant
        # Where a forward pass breaks down the gradient has to be looked at.
        return torch.where(expected.isfinite(), expected, math.inf), self.deviations * residual

    def largest(
        self,
        classifier: Classifier,
        points: torch.Tensor,
        sizes: Sequence[int],
        *,
        predicted: int,
        targets: Sequence[int],
        q: float,
        chunk_size: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest gradient norms (blocks, targets) of blocks of `sizes` points each, and what they cost (targets,).

        Not finite where a gradient was.
        """
        features = self.observer.features(classifier, points, targets, chunk_size=chunk_size)
        expected, above = self._expected(features, targets)
        block_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(points.device)
        kind = torch.promote_types(points.dtype, torch.float32)
        best = torch.full((len(sizes), len(targets)), -math.inf, device=points.device, dtype=kind)
        done = torch.zeros_like(expected, dtype=torch.bool)
        classes = torch.tensor(list(targets), device=points.device)
        for step in STEPS:
            chosen = ~done & (expected + above >= best.log().nan_to_num(nan=-math.inf)[block_of])
            if step is not None:
                chosen &= _foremost(torch.where(chosen, expected, -math.inf), sizes, step)
            at, target = chosen.nonzero(as_tuple=True)
            for rows, columns in zip(torch.split(at, chunk_size), torch.split(target, chunk_size), strict=True):
                norms = pair_gradient_norms(
                    classifier, points[rows], predicted=predicted, targets=classes[columns], q=q
                ).to(best.dtype)
                # A NaN becomes infinite here, so that no sound gradient hides it.
                norms = norms.nan_to_num(nan=math.inf)
                best.view(-1).scatter_reduce_(0, block_of[rows] * len(targets) + columns, norms, "amax")
            done |= chosen
        return best, done.sum(0)


def _foremost(values: torch.Tensor, sizes: Sequence[int], count: int) -> torch.Tensor:
    """Where the `count` largest values of each block are, per target."""
    found = torch.zeros_like(values, dtype=torch.bool)
    for part, mark in zip(torch.split(values, list(sizes)), torch.split(found, list(sizes)), strict=True):
        mark.scatter_(0, part.topk(min(count, len(part)), dim=0).indices, True)
    return found


def _regression(features: torch.Tensor, logs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ridge regression: weights, constant, and the standard deviation of the residuals at points left out."""
    trained = len(logs) - int(HELD_OUT * len(logs))
    constant = logs[:trained].mean()
    square, right = features[:trained].T @ features[:trained], features[:trained].T @ (logs[:trained] - constant)
    eye = torch.eye(len(square), dtype=square.dtype)
    best, weights = math.inf, torch.zeros_like(right)
    for ridge in RIDGES:
        tried = torch.linalg.solve(square + ridge * eye, right)
        error = float((logs[trained:] - constant - features[trained:] @ tried).square().mean())
        if error < best:
            best, weights = error, tried
    return weights, constant, torch.tensor(math.sqrt(best), dtype=square.dtype)


def lesson_blocks(block_size: int) -> int:
    """How many blocks are computed whole, to learn from them.

    >>> lesson_blocks(64), lesson_blocks(1024)
    (32, 4)
    """
    return min(LESSON_BLOCKS, -(-LESSON_POINTS // block_size))


class Screening:
    """One input's way to a screen: lessons until there are enough of them, then a screen for as long as it pays.

    observer    with it the next blocks are computed whole, and learned from; None afterwards, and where there is no
                screening.
    screen      what the next blocks are screened with; None where all gradients are computed.
    """

    def __init__(self, observer: Observer | None, *, block_size: int, tolerance: float) -> None:
        self.observer = observer
        self.screen: Screen | None = None
        self._tolerance = tolerance
        self._missing = lesson_blocks(block_size)
        self._lessons: list[Lesson] = []

    def alike(self, blocks: int) -> int:
        """How many of the next blocks are drawn in the same way."""
        return blocks if self.observer is None else min(blocks, self._missing)

    def take(self, lessons: Sequence[Lesson], gradients: Sequence[int], *, blocks: int, block_size: int) -> None:
        """Learn from the lessons of so many blocks, or from how many gradients of each target they took."""
        if sum(gradients) > WORTHWHILE * blocks * block_size * len(gradients):
            self.screen = None
        if self.observer is None:
            return
        self._lessons += lessons
        self._missing -= blocks
        if self._missing <= 0:
            self.screen = Screen.learned(self._lessons, self.observer, self._lessons[-1].targets, self._tolerance)
            self.observer, self._lessons = None, []
