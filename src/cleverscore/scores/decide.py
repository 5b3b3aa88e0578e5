"""decide(): is every score at least a threshold? Sampling stops as soon as the answer is clear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cleverscore.errors import InputError, SettingError
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.estimator import Estimator
from cleverscore.estimators.settings import Settings
from cleverscore.inputs.examples import prepare
from cleverscore.inputs.targets import TargetsLike
from cleverscore.models.classifier import Classifier
from cleverscore.norms import norm_name
from cleverscore.scores.score import Score, Scores, score_from
from cleverscore.scores.tables import interval_words
from cleverscore.scores.text_table import number


@dataclass(frozen=True)
class Decision:
    """Whether every input's score is at least the threshold.

    at_least        the threshold.
    scores          scores of the inputs that were measured; after the first input that fails no other is started.
    failed          the scores that are below the threshold or NaN.
    misclassified   ids of inputs whose label is not predicted. They fail; if there is one, no input is scored.
    gradients, full_gradients   the number of gradients that were computed, and the number that all blocks for all
                                targets of all inputs take.
    """

    at_least: float
    scores: Scores
    failed: tuple[Score, ...]
    misclassified: tuple[int, ...]
    gradients: int
    full_gradients: int

    @property
    def passed(self) -> bool:
        """Whether no score failed and no input is misclassified."""
        return not self.failed and not self.misclassified

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        cost = f"{self.gradients:,} gradients instead of {self.full_gradients:,}"
        if self.passed:
            return f"all {len(self.scores)} inputs have a score of at least {self.at_least:g} ({cost})"
        parts = [f"input {i} is misclassified" for i in self.misclassified]
        for score in self.failed:
            if math.isnan(score.value):
                parts.append(f"input {score.input} has no score: {score.outcome.advice}")
                continue
            parts.append(
                f"input {score.input} has a score of {number(score.value)}{_interval(score)} in the "
                f"l{norm_name(score.p)} norm, below {self.at_least:g}; class "
                f"{score.predicted} is nearest to class {score.target}"
            )
        return f"{'; '.join(parts)} ({cost})"


def _interval(score: Score) -> str:
    return "" if score.fit is None else f" ({interval_words(score)})"


def decide(
    classifier: Classifier,
    images: Any,
    *,
    p: float | str = 2.0,
    at_least: float,
    targets: TargetsLike = "untargeted",
    radius: float | None = None,
    blocks: int = 500,
    block_size: int = 1024,
    seed: int = 0,
    method: str | Estimator = "paper",
    region: str = "ball",
    penalty: float | None = None,
    labels: Sequence[int] | None = None,
    exclude_misclassified: bool = False,
    ids: Sequence[int] | None = None,
    chunk_size: int | None = None,
    workers: int | None = None,
) -> Decision:
    """Decide whether the score of every input is at least `at_least`, with as few gradients as possible.

    After 32, 64, 128, ... blocks, an input is decided if the interval of its score is on one side of the threshold, or
    if log(score) is more than three to four standard deviations away from log(threshold); the standard deviation is
    that of log scores from random halves of the blocks. The first input that fails ends the computation.

    at_least                the threshold: a distance in the norm p.
    labels                  with them, a misclassified input counts as 0 and fails, and nothing is sampled.
    exclude_misclassified   leave misclassified inputs out instead.
    The other arguments are those of `clever`.

    >>> import torch
    >>> decide(Classifier(torch.nn.Linear(4, 3)), torch.rand(2, 4), at_least=0.0).passed
    True
    """
    settings = Settings(
        p=p,  # type: ignore[arg-type]  # a name such as "inf" becomes a number in Settings
        targets=targets, radius=radius, blocks=blocks, block_size=block_size, seed=seed, method=method, region=region,
        threshold=_checked(at_least), penalty=penalty,
    )  # fmt: skip
    if at_least > settings.rule.limit:
        raise SettingError(
            f"at_least={at_least}: no score is larger than the radius, {settings.radius:g}; use a larger radius"
        )
    examples = prepare(classifier, images, targets=targets, labels=labels, ids=ids, seed=seed)
    if exclude_misclassified:
        examples = [example for example in examples if example.label in (None, example.predicted)]
        if not examples:
            raise InputError("all inputs are misclassified, and misclassified inputs are excluded: nothing is left")
    work = settings.estimator.max_work(settings, examples[0].x.numel())
    full = work * sum(len(example.targets) for example in examples)
    misclassified = tuple(s.input_id for s in examples if s.label not in (None, s.predicted))
    shared_budget = Budget()  # also counts gradients of inputs that were not finished when another one failed
    parts: list[Scores] = []
    if not misclassified:
        ready = settings.estimator.prepare(classifier, examples, settings, chunk_size=chunk_size, workers=workers)
        for _position, item in ready.measure(examples, budget=shared_budget):
            parts.append(score_from([item], settings.rule))
            if not parts[-1][0].value >= at_least:
                break
    scores = Scores.joined(parts)
    return Decision(
        at_least=float(at_least),
        scores=scores,
        failed=tuple(score for score in scores if not score.value >= at_least),
        misclassified=misclassified,
        gradients=max(shared_budget.spent_gradients, sum(score.gradients for score in scores)),
        full_gradients=full,
    )


def _checked(at_least: float) -> float:
    if not (math.isfinite(at_least) and at_least >= 0.0):
        raise SettingError(f"at_least={at_least}: give a distance, at least 0")
    return float(at_least)


def assert_robust(
    classifier: Classifier, images: Any, *, p: float | str = 2.0, at_least: float, **options: Any
) -> Decision:
    """The result of `decide`; an AssertionError unless it passed. `options` are the other arguments of `decide`.

    >>> import torch
    >>> assert_robust(Classifier(torch.nn.Linear(4, 3)), torch.rand(2, 4), at_least=0.0).passed
    True
    """
    __tracebackhide__ = True  # a test's report ends at the test's own line
    decision = decide(classifier, images, p=p, at_least=at_least, **options)
    if not decision.passed:
        raise AssertionError(str(decision))
    return decision
