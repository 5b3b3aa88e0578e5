"""clever(): the CLEVER score of a batch of inputs in one call (Algorithms 1 and 2 of the paper)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from cleverscore import tails
from cleverscore.balls import LpBall
from cleverscore.chunks import checked_chunk_size, default_chunk_size
from cleverscore.classifier import Classifier
from cleverscore.errors import CleverWarning, InputError, SettingError
from cleverscore.maxima import Request, default_workers, sample
from cleverscore.progress import progress as show_progress
from cleverscore.score import Evidence, Rule, Scores, score_from
from cleverscore.tails import FitOutcome
from cleverscore.targets import TargetsLike, choose, target_kind

FORWARD_CHUNK = 64
LARGEST_SEED = 2**64 - 1


@dataclass(frozen=True)
class Method:
    """A way to estimate the local Lipschitz constant.

    penalty     the weight of (scale / range)^2 in the tail fit.
    """

    name: str
    penalty: float


METHODS = {"paper": Method("paper", penalty=tails.PAPER_PENALTY)}


@dataclass(frozen=True)
class Settings:
    """What defines a score, apart from the model and the inputs; defaults are the paper's (section 5.1)."""

    p: float
    targets: TargetsLike = "untargeted"
    radius: float = 5.0
    blocks: int = 500
    block_size: int = 1024
    seed: int = 0
    method: str = "paper"
    inside: str = "ball"
    level: float = 0.95

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", LpBall(self.p, self.radius, self.inside).p)
        target_kind(self.targets)
        for name in ("blocks", "block_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or int(value) != value or value < 1:
                raise SettingError(f"{name}={value}: give a whole number, at least 1")
        if int(self.seed) != self.seed or not 0 <= self.seed <= LARGEST_SEED:
            raise SettingError(f"seed={self.seed}: give a whole number from 0 to 2**64 - 1")
        if self.method not in METHODS:
            raise SettingError(f"method={self.method!r}: choose one of {', '.join(METHODS)}")
        if not 0.5 <= self.level < 1.0:
            raise SettingError(f"level={self.level}: the level of the intervals must lie between 0.5 and 1")

    @property
    def ball(self) -> LpBall:
        """The ball that is sampled."""
        return LpBall(self.p, self.radius, self.inside)

    @property
    def rule(self) -> Rule:
        """How block maxima become scores."""
        return Rule(
            p=self.p,
            radius=self.radius,
            method=self.method,
            target_kind=target_kind(self.targets),
            penalty=METHODS[self.method].penalty,
            level=self.level,
        )


@dataclass(frozen=True)
class Subject:
    """One input with its prediction and the margins to its targets."""

    x: torch.Tensor
    input_id: int
    label: int | None
    predicted: int
    targets: tuple[int, ...]
    margins: tuple[float, ...]


def prepare(
    classifier: Classifier,
    images: Any,
    *,
    targets: TargetsLike = "untargeted",
    labels: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    seed: int = 0,
) -> list[Subject]:
    """Check model and inputs, predict, and choose the targets of each input."""
    x = classifier.inputs(images)
    ids = _checked_ids(ids, len(x))
    if labels is not None and len(labels) != len(x):
        raise InputError(f"there are {len(labels)} labels for {len(x)} inputs")
    probe = classifier.check(x)
    if labels is not None:
        for input_id, label in zip(ids, labels, strict=True):
            if not 0 <= int(label) < probe.num_classes:
                raise InputError(
                    f"the label of input {input_id} is {int(label)}; the model has classes 0 to {probe.num_classes - 1}"
                )
    with torch.no_grad():
        # Margins of float32 logits are formed in double, so that adding a constant to all logits costs nothing more.
        logits = torch.cat([classifier.logits(part) for part in torch.split(x, FORWARD_CHUNK)]).double().cpu()
    finite = torch.isfinite(logits).all(1)
    if not bool(finite.all()):
        raise InputError(f"the model's outputs for input {ids[int((~finite).nonzero()[0])]} are NaN or infinite")
    chosen = choose(logits, targets, ids=ids, seed=seed)
    predicted = logits.argmax(1).tolist()
    return [
        Subject(
            x=x[i],
            input_id=ids[i],
            label=None if labels is None else int(labels[i]),
            predicted=predicted[i],
            targets=chosen[i],
            margins=tuple(float(logits[i, predicted[i]] - logits[i, j]) for j in chosen[i]),
        )
        for i in range(len(x))
    ]


def _checked_ids(ids: Sequence[int] | None, count: int) -> list[int]:
    if ids is None:
        return list(range(count))
    whole = [int(input_id) for input_id in ids]
    if len(whole) != count:
        raise InputError(f"there are {len(whole)} ids for {count} inputs")
    if any(input_id < 0 for input_id in whole) or len(set(whole)) != count:
        raise InputError("ids must be different whole numbers, none below 0; an id is the input's row in the data")
    return whole


def gather(
    classifier: Classifier,
    subjects: Sequence[Subject],
    settings: Settings,
    *,
    chunk_size: int | None = None,
    workers: int | None = None,
    on_points: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Evidence]]:
    """Draw the blocks of all subjects and yield (position, evidence) as each input is complete."""
    if workers is None:
        workers = default_workers(classifier)
    elif int(workers) != workers or workers < 1:
        raise SettingError(f"workers={workers}: give a whole number of threads, at least 1")
    if chunk_size is None:
        chunk_size = default_chunk_size(classifier, subjects[0].x, workers=workers)
    requests = [
        Request(
            x=subject.x,
            input_id=subject.input_id,
            predicted=subject.predicted,
            targets=subject.targets,
            ball=settings.ball,
            blocks=range(settings.blocks),
            block_size=settings.block_size,
            seed=settings.seed,
        )
        for subject in subjects
    ]
    for position, maxima in sample(
        classifier, requests, chunk_size=checked_chunk_size(chunk_size), workers=workers, on_points=on_points
    ):
        subject = subjects[position]
        yield (
            position,
            Evidence(
                input_id=subject.input_id,
                label=subject.label,
                predicted=subject.predicted,
                targets=subject.targets,
                margins=subject.margins,
                maxima=tuple(maxima.values),
                block_size=settings.block_size,
                seconds=maxima.seconds,
                stopped=("all blocks",) * len(subject.targets),
            ),
        )


def clever(
    classifier: Classifier,
    images: Any,
    *,
    p: float | str = 2.0,
    targets: TargetsLike = "untargeted",
    radius: float = 5.0,
    blocks: int = 500,
    block_size: int = 1024,
    seed: int = 0,
    method: str = "paper",
    inside: str = "ball",
    level: float = 0.95,
    labels: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    chunk_size: int | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Scores:
    """CLEVER scores of a batch: min(margin / L, radius), L the largest ||grad(f_c - f_j)||_q in B_p(x0, radius).

    images      (n, *input_shape), in the classifier's input units.
    p           the norm: any p >= 1, or "inf".
    targets     "untargeted" (the smallest over all other classes), "runner_up", "least_likely", "random", "all", or one
                list of classes per input.
    blocks, block_size      N_b and N_s: every block is `block_size` fresh points; their maxima are fit.
    ids         the row of each input in its data, default 0..n-1; a block's points depend on (seed, id, norm, block).
    inside      "ball", or "clip" to move points into the input box.
    chunk_size  points per forward pass; default: what memory and cache allow.
    workers     threads; default: one per core.
    progress    a progress bar on stderr; default: if stderr is a terminal.

    >>> import torch
    >>> scores = clever(Classifier(torch.nn.Linear(4, 3)), torch.rand(2, 4), p=2, blocks=20, block_size=8)
    >>> len(scores), scores[0].outcome.value
    (2, 'constant')
    """
    settings = Settings(
        p=p,  # type: ignore[arg-type]  # a name such as "inf" becomes a number in Settings
        targets=targets,
        radius=radius,
        blocks=blocks,
        block_size=block_size,
        seed=seed,
        method=method,
        inside=inside,
        level=level,
    )
    subjects = prepare(classifier, images, targets=targets, labels=labels, ids=ids, seed=seed)
    total = len(subjects) * blocks * block_size
    bar = nullcontext(None) if progress is False else show_progress(total, "sampling gradients")
    with bar as on_points:
        found = dict(
            gather(classifier, subjects, settings, chunk_size=chunk_size, workers=workers, on_points=on_points)
        )
    scores = score_from([found[i] for i in range(len(subjects))], settings.rule)
    _warn(scores)
    return scores


def _warn(scores: Scores) -> None:
    flat = sum(row.outcome is FitOutcome.ZERO for row in scores.rows)
    if flat:
        warnings.warn(
            f"all sampled gradients are zero for {flat} of {len(scores.rows)} rows: {FitOutcome.ZERO.advice}",
            CleverWarning,
            stacklevel=3,
        )
    broken = [row for row in scores.rows if row.outcome is FitOutcome.NOT_FINITE]
    if broken:
        warnings.warn(
            f"gradients are NaN or infinite for input {broken[0].input}, target {broken[0].target} "
            f"({len(broken)} rows in all); they have no score",
            CleverWarning,
            stacklevel=3,
        )
