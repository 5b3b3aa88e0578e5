"""Signs of gradient masking: gradients that do not predict how the outputs change.

A score is computed from gradients, so a network that hides them gets a high score without being robust. A declared
`Classifier(transform=...)` is not a sign: the model is probed without it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cleverscore.attacks.attack import Attacked
from cleverscore.brackets.agreement import above_attack
from cleverscore.brackets.gradient_probes import ProbeStats, probe, untransformed
from cleverscore.errors import InputError
from cleverscore.inputs.balls import LpBall
from cleverscore.inputs.examples import prepare
from cleverscore.models.classifier import Classifier
from cleverscore.norms import parse_norm
from cleverscore.scores.score import Scores

Array = npt.NDArray[np.float64]

FLAT_SHARE = 0.5  # of the points, at least: a tiny step changes no bit of the logits there
ZERO_SHARE = 0.1  # of the points, at least: the gradient has vanished there
# Relative error of the change of the margin that gradients promise, median over points; for the shipped networks it is
# below 0.12.
DISAGREEMENT = 0.5
NORMS = {1.0: "l1", 2.0: "l2", math.inf: "linf"}

_SENTENCES = {
    "quantised": (
        "a tiny step changes no logit at {:.0%} of the points of the ball, yet logits jump between points: inputs or "
        "outputs are rounded, and gradients do not tell how; score the model without the rounding, or give it as "
        "Classifier(transform=...)"
    ),
    "clipped": (
        "the logits stand at one fixed value at {:.0%} of the points of the ball: they are clipped or saturated, and a "
        "score says nothing about what lies behind; score the outputs before the clipping"
    ),
    "saturated": (
        "the margin is up to {:.4g}, where softmax is exactly 0 or 1: losses on probabilities have no gradient, and "
        "attacks that use them fail for that reason alone; compare with attacks that work on logits, or divide the "
        "logits by a temperature, which leaves the score as it is"
    ),
    "zero_gradients": (
        "the gradient is zero or has vanished at up to {:.0%} of the points of the ball, which the score counts as "
        "perfectly robust; look for saturated units, use a smaller radius, or rely on an attack without gradients"
    ),
    "inconsistent_gradients": (
        "outputs change otherwise than gradients promise, by up to {:.0%} (median over points): gradients are noisy, "
        "shattered or replaced, and a score built from them means little; score the model without the layer that does "
        "this, or give that layer as Classifier(transform=...)"
    ),
    "above_attack": (
        "the score is above what an attack needed, by up to {:,.1f}%: the gradients missed the steep parts of the ball "
        "or are masked; trust the attack's distortion there"
    ),
}


@dataclass(frozen=True)
class Sign:
    """One sign of gradient masking.

    kind        quantised, clipped, saturated, zero_gradients, inconsistent_gradients or above_attack.
    inputs      the ids of the inputs that show it.
    evidence    the measured number, which the sentence quotes.
    sentence    what was found, what it means for the score, and what to do.
    """

    kind: str
    inputs: tuple[int, ...]
    evidence: float
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def masking_signs(
    classifier: Classifier,
    images: Any,
    scores: Scores | None = None,
    attacked: Attacked | Sequence[Attacked] | None = None,
    *,
    p: float | str = 2.0,
    radius: float = 5.0,
    seed: int = 0,
    ids: Sequence[int] | None = None,
) -> tuple[Sign, ...]:
    """Look for gradient masking in the ball around each input; an empty tuple means that no sign was found.

    images      (n, *input_shape).
    scores      scores of the same images: their norm, radius and ids are used instead of p, radius and ids.
    attacked    results of attacks on the same images, in the same order. With scores as well, a score above the
                smallest distortion is also a sign.
    p, radius   the ball.
    seed, ids   random points depend on (seed, id).

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    >>> masking_signs(Classifier(model), torch.rand(2, 4))
    ()
    """
    if scores is not None and len(scores):
        p, radius, ids = scores[0].p, scores[0].radius, [score.input for score in scores]
        if len(scores) != len(images):
            raise InputError(
                f"there are {len(scores)} scores for {len(images)} inputs; pass the inputs that were scored"
            )
    ball = LpBall(parse_norm(p), radius)
    signs = list(probed_signs(classifier, images, ball, seed=seed, ids=ids))
    if scores is not None and attacked is not None:
        results = list(attacked) if isinstance(attacked, Sequence) else [attacked]
        upper = np.min([_distortions(result, classifier.inputs(images), ball.p) for result in results], axis=0)
        signs += sign_above_attack([score.input for score in scores], scores.values, upper)
    return tuple(signs)


def probed_signs(
    classifier: Classifier,
    images: Any,
    ball: LpBall,
    *,
    seed: int = 0,
    ids: Sequence[int] | None = None,
    most_seconds: float = math.inf,
) -> tuple[Sign, ...]:
    """The signs that probes of gradients around the inputs show; after `most_seconds` no further input is probed."""
    began = time.monotonic()
    examples = prepare(classifier, images, targets="runner_up", ids=ids, seed=seed)
    model = untransformed(classifier, examples)
    shown: dict[str, dict[int, float]] = {kind: {} for kind in _SENTENCES}
    for example in examples:
        cause = _cause(probe(model, example, ball, seed))
        if cause is not None:
            shown[cause[0]][example.input_id] = cause[1]
        if time.monotonic() - began > most_seconds:
            break
    return tuple(_sign(kind, evidence) for kind, evidence in shown.items() if evidence)


def sign_above_attack(inputs: Sequence[int], values: Array, upper: Array) -> list[Sign]:
    """A list with the sign that scores lie above the distance of an attack; empty if none does."""
    places = np.flatnonzero(above_attack(values, upper)).tolist()
    above = {inputs[i]: 100.0 * float(values[i] / upper[i] - 1.0) if upper[i] > 0.0 else math.inf for i in places}
    return [_sign("above_attack", above)] if above else []


def _distortions(result: Attacked, x: torch.Tensor, p: float) -> Array:
    if p in NORMS:
        return np.asarray(getattr(result, NORMS[p]), np.float64)
    moved = torch.linalg.vector_norm((result.adversarial.to(x) - x).flatten(1).double(), p, dim=1).cpu().numpy()
    return np.where(result.success, moved, np.inf)


def _cause(seen: ProbeStats) -> tuple[str, float] | None:
    """The first kind of masking that explains the probe of an input, and its evidence; None if there is no sign."""
    if seen.flat >= FLAT_SHARE:
        return "quantised" if seen.levels > 2 else "clipped", seen.flat
    if seen.margin >= seen.underflow:
        return "saturated", seen.margin
    if seen.zero >= ZERO_SHARE:
        return "zero_gradients", seen.zero
    if max(seen.along, seen.across) > DISAGREEMENT:
        return "inconsistent_gradients", max(seen.along, seen.across)
    return None


def _sign(kind: str, shown: dict[int, float]) -> Sign:
    ids, evidence = tuple(shown), max(shown.values())
    few = ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "")
    who = f"input {few}" if len(ids) == 1 else f"{len(ids)} inputs ({few})"
    return Sign(kind, ids, evidence, f"{who}: {_SENTENCES[kind].format(evidence)}")
