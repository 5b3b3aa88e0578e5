"""The comparison of runs as text: a table, remarks, and a sentence that says which model is more robust."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cleverscore.reporting.compare import ATTACK, CERTIFICATE, Evidence, Pairing, bounds_words, listed
from cleverscore.reporting.findings import Findings
from cleverscore.reporting.robust_accuracy import ATTACKED, KINDS
from cleverscore.scores.text_table import number, table
from cleverscore.tails.paired_tests import FEWEST, Difference

MOST_CAPPED = 0.2  # a note warns if a larger share of the inputs has a score that is cut at the radius


def verdict(pairing: Pairing, names: tuple[str, str] = ("A", "B")) -> str:
    """The verdict as one sentence: which model is more robust and by how much, or why it cannot be told."""
    first, second = names
    asked = f"whether {second} is more robust than {first} in the l{pairing.norm} norm"
    if pairing.difference.count == 0:
        return f"It cannot be told {asked}: no input has a score in both that counts."
    if pairing.verdict:
        better, worse = (second, first) if pairing.verdict > 0 else (first, second)
        speaking = next(each for each in pairing.measures if each.difference.verdict)
        return f"{better} is more robust than {worse} in the l{pairing.norm} norm: {_how_much(speaking, names)}."
    if pairing.same_scores and (pairing.same_model or not pairing.contradict):
        equal = f"{first} and {second} have equal scores ({pairing.method})"
        return f"{_capital(equal)} on all {len(pairing.ids)} inputs in the l{pairing.norm} norm."
    if pairing.same_model:
        return f"It cannot be told {asked}, and no run will tell: they are the same model."
    if pairing.contradict:
        for_second, for_first = ([kind for kind, says in pairing.verdicts.items() if says == side] for side in (1, -1))
        speak = "speaks" if len(for_second) == 1 else "speak"
        return (
            f"It cannot be told {asked}: {_listed(for_second)} {speak} for {second}, {_listed(for_first)} for {first}."
        )
    return f"It cannot be told {asked}: {_how_much(pairing.measures[0], names)}."


def remarks(pairing: Pairing, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """The lines below a verdict: measures that do not decide alone or, without a more robust model, what may help.

    There are none if no input is compared.
    """
    silent = [kind for kind, says in pairing.verdicts.items() if not says]
    if pairing.difference.count == 0:
        return []
    if pairing.verdict:
        return [f"{_capital(_listed(silent))} alone would not tell."] if silent else []
    if pairing.same_model:
        return ["They are the same model." if pairing.same_scores else "What differs is the noise of sampling."]
    if pairing.contradict:
        return ["Where scores and attacks contradict, gradients may be masked: run a stronger attack."]
    return [] if pairing.same_scores else [_what_would_tell(pairing.difference)]


def details(pairing: Pairing, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """The results behind a verdict: a line for each measure, and one with robust accuracy at one epsilon."""
    lines = [_seen(each, names) for each in pairing.measures if each.difference.count]
    return [*lines, *filter(None, [curve_words(pairing, names)])]


def _how_much(measure: Evidence, names: tuple[str, str]) -> str:
    """The relative change of the mean of a measure with its interval, as text."""
    first, second = names
    lengths = {ATTACK: "mean distance of the best attack", CERTIFICATE: "mean certified radius"}
    of, change = lengths.get(measure.kind, f"mean {measure.kind}"), measure.change
    if math.isnan(change.value):
        return f"{second}'s {of} is {number(change.after, 3)}, {first}'s {number(change.before, 3)}"
    interval = f"no interval with fewer than {FEWEST} inputs"
    if not math.isnan(change.low):
        interval = f"{100.0 * change.level:.3g}% interval {change.low:+.1%} to {change.high:+.1%}"
    more = "lower" if change.value < 0.0 else "higher"
    return f"{second}'s {of} is {abs(change.value):.1%} {more} than {first}'s ({interval})"


def _listed(kinds: Sequence[str]) -> str:
    return " and ".join(f"the {kind}" for kind in kinds)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _seen(measure: Evidence, names: tuple[str, str]) -> str:
    found, change, second = measure.difference, measure.change, names[1]
    if found.above == found.below == 0:
        return f"{measure.kind}: equal on all {found.count} inputs, {change.of} {number(change.before, 3)}"
    return (
        f"{measure.kind}: {change.words}; larger for {second} on {found.above} of {found.count} inputs, smaller on "
        f"{found.below} (sign test p {found.sign_pvalue:.2g})"
    )


def reference_epsilon(pairing: Pairing) -> float:
    """The epsilon at which robust accuracies are given: the median of A's positive scores, to two digits."""
    known = pairing.first[pairing.first > 0.0]
    middle = float(np.median(known)) if len(known) else 0.0
    return float(f"{middle:.2g}")


def curve_words(pairing: Pairing, names: tuple[str, str]) -> str:
    """Robust accuracy of both runs at one epsilon, as text: certified, estimated, attacked, as far as both have it."""
    epsilon = reference_epsilon(pairing)
    if pairing.curves is None or epsilon == 0.0:
        return ""
    shares = [curve.at(epsilon) for curve in pairing.curves]
    parts = [
        f"{kind} {shares[0][kind].value:.0%} for {names[0]} and {shares[1][kind].value:.0%} for {names[1]}"
        for kind in KINDS
        if (kind != ATTACKED or pairing.same_bounds)
        and all(kind in share and not math.isnan(share[kind].value) for share in shares)
    ]
    return f"robust accuracy at epsilon {epsilon:g}: {', '.join(parts)}" if parts else ""


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value, 3)


def _what_would_tell(found: Difference) -> str:
    remedies = []
    if found.inputs_needed is not None:
        # The inputs used were not enough, so at least a quarter more is suggested, even where the estimate is lower.
        needed = max(found.inputs_needed, math.ceil(1.25 * found.count))
        remedies.append(f"about {needed} inputs in all instead of {found.count}")
    if found.blocks_factor is not None and 1.0 < found.blocks_factor <= 100.0:
        remedies.append(f"about {found.blocks_factor:.2g} times the blocks on the same inputs")
    bound = max(abs(found.mean.low), abs(found.mean.high))
    if not remedies:
        return (
            f"The mean difference is at most {number(bound, 3)} either way; one as small as was seen would not be told "
            "by any realistic number of inputs or blocks."
        )
    blocks = "" if len(remedies) > 1 else "; more blocks on the same inputs would not"
    return f"A difference of the size that was seen would be told by {', or by '.join(remedies)}{blocks}."


def comparison_text(runs: Sequence[tuple[str, Findings]], pairings: Sequence[Sequence[Pairing]], most: int) -> str:
    """The comparison of every run with the first, as text: a table, the inputs that changed most, notes and verdicts.

    runs        name and results of each run.
    pairings    for each run after the first, its comparisons with the first, one per norm.
    most        how many of the most changed inputs are listed per comparison.
    """
    letters = [letter_of(place) for place in range(len(runs))]
    parts = [f"{letter}: {name}" for letter, (name, _) in zip(letters, runs, strict=True)]
    parts += [
        f"{letter} is {found.unfinished}" for letter, (_, found) in zip(letters, runs, strict=True) if found.unfinished
    ]
    parts.append("")
    rows = []
    for letter, of_run in zip(letters[1:], pairings, strict=True):
        for pairing in of_run:
            rows += [
                [
                    f"{letter} - A", pairing.norm, each.kind, str(each.difference.count),
                    number(float(np.median(each.first))), number(float(np.median(each.second))),
                    _signed(each.difference.mean.value),
                    f"{_signed(each.difference.mean.low)} .. {_signed(each.difference.mean.high)}",
                    "-" if math.isnan(each.change.value) else f"{each.change.value:+.1%}",
                    f"{each.difference.above}:{each.difference.below}", f"{each.difference.sign_pvalue:.2g}",
                ]
                for each in pairing.measures
                if each.difference.count
            ]  # fmt: skip
    headers = ["pair", "norm", "measure", "inputs", "median A", "median", "mean diff", "interval", "change",
               "larger:smaller", "sign p"]  # fmt: skip
    parts += [table(headers, rows), ""]
    for letter, of_run in zip(letters[1:], pairings, strict=True):
        for pairing in of_run:
            places = pairing.changed_most(most)
            if places:
                words = ", ".join(
                    f"#{pairing.ids[i]} ({number(float(pairing.first[i]), 3)} to {number(float(pairing.second[i]), 3)})"
                    for i in places
                )
                parts.append(f"changed most, A to {letter}, norm {pairing.norm}: {words}")
    parts += ["", *(f"{words}" for words in notes(pairings, letters[1:]))]
    for letter, of_run in zip(letters[1:], pairings, strict=True):
        for pairing in of_run:
            names = ("A", letter)
            parts.append(verdict(pairing, names))
            parts += [f"- {line}" for line in (*remarks(pairing, names), *details(pairing, names))]
    return "\n".join(parts)


def letter_of(place: int) -> str:
    """The name of a run in a comparison by its place from 0: A to Z, then "run 27" and so on."""
    return chr(ord("A") + place) if place < 26 else f"run {place + 1}"


def notes(pairings: Sequence[Sequence[Pairing]], letters: Sequence[str]) -> list[str]:
    """Notes on comparisons, such as left-out inputs and capped scores; `letters` name the runs after the first."""
    found = []
    for letter, of_run in zip(letters, pairings, strict=True):
        for pairing in of_run:
            if pairing.left_out:
                found.append(
                    f"note: {pairing.left_out} inputs were left out of A and {letter} in norm {pairing.norm}: "
                    "without a score, or misclassified by one of the models and excluded"
                )
            if any(pairing.misclassified):
                wrong = pairing.misclassified
                found.append(
                    f"note: in norm {pairing.norm} {wrong[0]} inputs count as 0 for A and {wrong[1]} for {letter}, "
                    "which misclassifies them; --exclude-misclassified leaves them out"
                )
            if not pairing.same_methods:
                one, other = map(listed, pairing.methods)
                found.append(
                    f"note: A has {one}, {letter} has {other}: compared by {pairing.method} in norm {pairing.norm}, "
                    "which both have"
                )
            if pairing.unpaired:
                found.append(
                    f"note: {pairing.unpaired} inputs are in one of A and {letter} only, norm {pairing.norm}, and "
                    "cannot be compared; --correct-only chooses other rows for each model, --index the same"
                )
            if not pairing.same_bounds:
                found.append(
                    f"note: {bounds_words(*pairing.bounds, ('A', letter))}, so attacks are not compared in norm "
                    f"{pairing.norm}: they search different regions; score both models with the same --bounds"
                )
            if pairing.capped > MOST_CAPPED * max(1, pairing.difference.count):
                found.append(
                    f"note: {pairing.capped} of {pairing.difference.count} pairs in norm {pairing.norm} are cut at the "
                    "radius, which hides differences; score with a larger --radius"
                )
    return found
