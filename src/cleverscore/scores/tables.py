"""Scores as text: the table, and remarks on how reliable the scores are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cleverscore.estimators.stop_reason import StopReason, is_eliminated
from cleverscore.inputs.targets import takes_smallest
from cleverscore.norms import norm_name
from cleverscore.scores.text_table import number, table
from cleverscore.tails import FitOutcome

if TYPE_CHECKING:
    from cleverscore.scores.score import Score

DOUBTFUL = (FitOutcome.NO_ENDPOINT, FitOutcome.DRIFTING, FitOutcome.POOR)  # fits whose end-point is unreliable
LONGEST_NAME = 12
MOST_NAMED = 5  # inputs whose numbers a remark lists


def elimination_summary(rows: Sequence[Score]) -> str:
    """One line: how many targets per input stayed in, and why others were eliminated; empty if none was."""
    rivals = [score for score in rows if score.target_kind == "all"]
    reasons = Counter(score.stopped for score in rivals)
    out = {reason: count for reason, count in reasons.items() if is_eliminated(reason)}
    if not out:
        return ""
    inputs = sum(takes_smallest(score.target_kind) for score in rows)
    left = len(rivals) - sum(out.values())
    words = ", ".join(f"{count / inputs:.3g} out ({reason})" for reason, count in out.items())
    return f"elimination: of {len(rivals) / inputs:.3g} targets per input, {left / inputs:.3g} stayed in, {words}"


def could_eliminate(rows: Sequence[Score]) -> bool:
    """Whether inputs have several targets and all got all blocks, so that a tolerance could have saved some."""
    rivals = [score for score in rows if score.target_kind == "all"]
    inputs = len({(score.input, score.p) for score in rivals})
    return len(rivals) > inputs and all(score.stopped == StopReason.ALL_BLOCKS for score in rivals)


def class_word(names: Sequence[str] | None, number: int | None) -> str:
    """A class as text for tables: its name, shortened if it is long, or its number.

    >>> class_word(["cat", "Alaskan Malamute"], 1), class_word(None, 3), class_word(["cat"], None)
    ('Alaskan Mal.', '3', '-')
    """
    if number is None:
        return "-"
    if names is None or not 0 <= number < len(names):
        return str(number)
    name = names[number]
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}."


def label_word(score: Score, names: Sequence[str] | None) -> str:
    """The label of an input, with a star if the model predicts another class."""
    return class_word(names, score.label) + (" *" if score.correct is False else "")


def scores_table(scores: Sequence[Score], *, class_names: Sequence[str] | None = None, stops: bool = False) -> str:
    """A table with one line per score: input, classes, norm, margin, score, and then interval, tests and fit.

    Scores of a search have their lower limit, crossing, gradients and outcome instead of the last three. With `stops`,
    every line also says how many gradients were computed and why sampling or search stopped.
    """
    labelled = any(score.label is not None for score in scores)
    fitted = any(score.fit is not None for score in scores)
    headers = [
        "input",
        *(["label"] if labelled else []),
        "predicted",
        "target",
        "norm",
        "margin",
        "score",
        *(
            [interval_heading(scores), "K-S p", "A-D p", "fit"]
            if fitted
            else ["at least", "crossing", "gradients", "search"]
        ),
        *(["gradients"] if stops and fitted else []),
        *(["stopped"] if stops else []),
    ]
    lines = []
    for score in scores:
        label = [label_word(score, class_names)] if labelled else []
        if fitted:
            tests = [score.ks_pvalue, math.nan if score.fit is None else score.fit.ad_pvalue]
            found = [interval_words(score), *(number(test, 2) for test in tests), score.outcome.value]
        else:
            found = [number(score.low), number(score.upper), f"{score.gradients:,}", score.outcome.value]
        lines.append(
            [
                str(score.input),
                *label,
                class_word(class_names, score.predicted),
                class_word(class_names, score.target),
                norm_name(score.p),
                number(score.margin),
                score_words(score),
                *found,
                *([f"{score.gradients:,}"] if stops and fitted else []),
                *([score.stopped] if stops else []),
            ]
        )
    return table(headers, lines)


def score_words(score: Score) -> str:
    """The score as text, with >= if it is capped at the radius and ~ if its fit is unreliable."""
    return (">=" if score.capped else "") + ("~" if score.outcome in DOUBTFUL else "") + number(score.value)


def interval_heading(scores: Sequence[Score]) -> str:
    """The heading of a column of intervals: "95% interval"."""
    levels = sorted({100 * score.rule.level for score in scores})
    return f"{' and '.join(f'{level:g}%' for level in levels)} interval"


def interval_words(score: Score) -> str:
    """The interval of a score as text: "at most ..." without a lower limit, "-" for methods without a fit."""
    if score.fit is None:
        return "-"
    return f"at most {number(score.high)}" if score.open_below else f"{number(score.low)} .. {number(score.high)}"


def below_the_table(scores: Sequence[Score], rows: Sequence[Score]) -> list[str]:
    """The lines below a table of `scores`; `rows` are the scores of all their targets."""
    return [*filter(None, [summary(scores, could_eliminate=could_eliminate(rows)), elimination_summary(rows)])]


def summary(scores: Sequence[Score], *, could_eliminate: bool = False) -> str:
    """Mean, median and smallest score for each norm, then the lines of `remarks`."""
    lines = []
    for p in sorted({score.p for score in scores}):
        values = np.array([score.counted for score in scores if score.p == p])
        known = values[~np.isnan(values)]
        if len(known):
            lines.append(
                f"norm {norm_name(p)}: mean {number(float(known.mean()))}, median {number(float(np.median(known)))}, "
                f"smallest {number(float(known.min()))} over {len(known)} input{'s' if len(known) > 1 else ''}"
            )
        if len(known) < len(values):
            missing = len(values) - len(known)
            lines.append(f"norm {norm_name(p)}: no score for {missing} input{'s' if missing > 1 else ''}")
    return "\n".join([*lines, *remarks(scores, could_eliminate=could_eliminate)])


def remarks(scores: Sequence[Score], *, could_eliminate: bool = False, fits: bool = True) -> list[str]:
    """Sentences on what a reader of the table must know: misclassified inputs, capped or rough scores, other outcomes.

    could_eliminate     whether to say that a tolerance would leave out targets far behind.
    fits                whether the table shows intervals and fits.
    """
    lines = []
    wrong = len({score.input for score in scores if score.correct is False})
    if wrong:
        count = len({score.input for score in scores})
        lines.append(
            f"* {wrong} of {count} inputs are misclassified: they count as 0 in mean, median and smallest (their "
            "scores are for the class that the model predicts)"
        )
    capped = sum(score.capped for score in scores)
    if capped:
        lines.append(
            f">= {capped} scores reached the radius; the network may be more robust: use a larger radius (or the "
            "inputs are in other units than it was trained with, such as 0 to 255)"
        )
    part = sum(score.stopped == StopReason.UNFINISHED for score in scores)
    if part:
        lines.append(f"unfinished ({part}): not all blocks are drawn yet, so these scores and intervals will move")
    penalised = [score for score in scores if score.outcome in DOUBTFUL]
    if penalised and not fits:
        lines.append(
            f"~ {len(penalised)} of {len(scores)} scores are rough guesses: the sampled gradients do not show how "
            "large gradients can get around these inputs; larger blocks may show it, and the method sharp does not "
            "sample"
        )
    elif penalised:
        lines.append(
            f"~ ({len(penalised)}): a rough guess, because the sampled gradients do not show how large gradients can "
            f"get around the input; the penalty of the fit, {penalised[0].rule.penalty:g}, decides, and another "
            "penalty gives another score"
        )
    open_ended = sum(score.open_below for score in scores)
    if open_ended and fits:
        lines.append(
            f"at most ({open_ended}): for the target or one of its rivals the blocks show no upper end-point of the "
            "gradient norm, so the score has no lower limit; larger blocks may show one"
            + (", and a new run with tolerance 0 leaves out rivals far behind" if could_eliminate else "")
        )
    short = sum(score.stopped == StopReason.BUDGET for score in scores)
    if short:
        lines.append(f"budget: it ended before all was drawn or searched for {short} of {len(scores)} scores")
    for outcome, count in Counter(score.outcome for score in scores).items():
        plain = (FitOutcome.OK, FitOutcome.ASCENDED, FitOutcome.CUSTOM_MODEL, *(() if fits else DOUBTFUL))
        if outcome not in plain:
            inputs = dict.fromkeys(score.input for score in scores if score.outcome is outcome)
            few = outcome is FitOutcome.POOR and len(inputs) <= MOST_NAMED
            which = f": input {', '.join(map(str, inputs))}" if few else ""
            lines.append(f"{outcome.value} ({count}{which}): {outcome.advice}")
    return lines
