"""The results of one input as text: its distances in every norm, and whether it is robust at a given distance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cleverscore.errors import InputError
from cleverscore.norms import norm_name
from cleverscore.reporting.findings import Findings, NormFindings
from cleverscore.reporting.robust_accuracy import check_norms
from cleverscore.scores.score import Score
from cleverscore.scores.tables import class_word, score_words
from cleverscore.scores.text_table import number


def input_text(found: Findings, input_id: int, epsilons: Mapping[str, Sequence[float]]) -> str:
    """What is known of one input, as text: a line per norm, and per epsilon a line on whether its class may change.

    input_id    the id of the input; an InputError is raised if the run has no score of it.
    epsilons    distances by norm, "" for all norms, as `parse_epsilons` gives them.
    """
    if input_id not in found.ids:
        raise InputError(f"the run has no score of input {input_id}; it has inputs {_some(found.ids)}")
    check_norms(epsilons, {norm.name for norm in found.norms})
    place = found.ids.index(input_id)
    label, predicted = found.labels[place], class_word(found.class_names, found.predicted[place])
    wrong = label is not None and label != found.predicted[place]
    words = f"input {input_id}: predicted {predicted}"
    if label is not None:
        words += f", label {class_word(found.class_names, label)}{' (misclassified)' if wrong else ''}"
    lines = [words]
    for norm in found.norms:
        if norm.per_input[place] is None:
            lines.append(f"l{norm.name}: no score yet")
            continue
        lines.append(f"l{norm.name}: {', '.join(_distances(found, norm, place))}")
        for epsilon in [*epsilons.get("", []), *epsilons.get(norm.name, [])]:
            lines.append(f"  at {epsilon:.4g}: {_verdict(found, norm, place, epsilon, wrong)}")
    return "\n".join(lines)


def _some(ids: Sequence[int]) -> str:
    if list(ids) == list(range(ids[0], ids[-1] + 1)):
        return f"{ids[0]} to {ids[-1]}"
    few = ", ".join(map(str, ids[:10]))
    return few + (", ..." if len(ids) > 10 else "")


def _distances(found: Findings, norm: NormFindings, place: int) -> list[str]:
    """The certified radius, the scores by all methods and the best attack's distance in words, as far as known."""
    words = []
    if not math.isnan(norm.certified[place]):
        words.append(f"certified {number(float(norm.certified[place]))}")
    for scores in norm.by_method.values():
        score = scores[place]
        if score is not None:
            towards = class_word(found.class_names, score.target)
            words.append(f"{score.rule.title} {score_words(score)} (towards {towards})")
    upper = float(norm.upper[place])
    if math.isinf(upper):
        words.append("no attack succeeded")
    elif not math.isnan(upper):
        words.append(f"attack {number(upper)}{_reached(found, norm, place, ' (to {})')}")
    return words


def _reached(found: Findings, norm: NormFindings, place: int, words: str) -> str:
    """The `words` with the class of the nearest adversarial input for {}; empty if the run stores no such input."""
    adversarial = found.adversarials.get((found.ids[place], norm_name(norm.p)))
    return "" if adversarial is None else words.format(class_word(found.class_names, adversarial[1]))


def _verdict(found: Findings, norm: NormFindings, place: int, epsilon: float, wrong: bool) -> str:
    """Whether the class can change within epsilon, in words: a proof or an attack decides, else the score does.

    `wrong` says that the input is misclassified.
    """
    score = norm.per_input[place]
    assert score is not None  # the caller has seen it
    certified, upper = float(norm.certified[place]), float(norm.upper[place])
    if wrong:
        return "not robust: the input is misclassified as it is"
    if certified >= epsilon:
        return f"robust: it is proved that the class does not change below {number(certified)}"
    if upper <= epsilon:
        reached = _reached(found, norm, place, " to {}")
        return f"not robust: an attack changed the class{reached} at distance {number(upper)}"
    return f"{_estimated(score, epsilon)}; {_bounds_words(certified, upper)}"


def _estimated(score: Score, epsilon: float) -> str:
    """What the score says about epsilon, in words, where neither proof nor attack decides."""
    estimate = f"{score.rule.title} estimates {score_words(score)}"
    if math.isnan(score.value):
        return f"unknown: {score.rule.title} has no score"
    if score.capped and epsilon > score.radius:
        return f"unknown: {estimate}, and says nothing beyond the radius"
    return f"probably robust: {estimate}" if score.value >= epsilon else f"probably not robust: {estimate}"


def _bounds_words(certified: float, upper: float) -> str:
    """Certified radius and attack distance in words, where they do not decide."""
    proof = "nothing is proved" if math.isnan(certified) else f"proved up to {number(certified)} only"
    if math.isnan(upper):
        return f"{proof}, and no attack was run"
    attack = "no attack succeeded" if math.isinf(upper) else f"the nearest successful attack needed {number(upper)}"
    return f"{proof}, and {attack}"
