"""The comparison of runs as text: a table, remarks, and a sentence that says which model is more robust."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cleverscore.reporting.compare import Change, Pairing, bounds_words
from cleverscore.reporting.findings import Findings
from cleverscore.reporting.robust_accuracy import ATTACKED, KINDS
from cleverscore.scores.text_table import number, table
from cleverscore.tails.paired_tests import Difference

MOST_CAPPED = 0.2  # share of pairs cut at the radius above which a comparison is warned of


def sentence(pairing: Pairing, names: tuple[str, str] = ("A", "B")) -> str:
    """The verdict as a sentence: which model is more robust, by which measures; if undecided, what would decide it."""
    found, (first, second) = pairing.difference, names
    if found.count == 0:
        return (
            f"It cannot be told whether {second} is more robust than {first} in the l{pairing.norm} norm: no input has "
            "a score in both that counts."
        )
    seen = _seen(found, pairing.change, names, f"score ({pairing.method})")
    more = "".join(f"; {_seen(each.difference, each.change, names, each.kind)}" for each in pairing.further)
    curve = curve_words(pairing, names)
    seen += more + (f"; {curve}" if curve else "")
    asked = f"whether {second} is more robust than {first} in the l{pairing.norm} norm"
    if pairing.verdict:
        better, worse = (second, first) if pairing.verdict > 0 else (first, second)
        silent = [kind for kind, verdict in pairing.verdicts.items() if not verdict]
        alone = f" {_capital(_listed(silent))} alone would not tell." if silent else ""
        return f"{better} is more robust than {worse} in the l{pairing.norm} norm: {seen}.{alone}"
    contradict = set(pairing.verdicts.values()) >= {-1, 1}
    if pairing.same_scores and (pairing.same_model or not contradict):
        model = " They are the same model." if pairing.same_model else ""
        return f"{equal_words(pairing, names)} in the l{pairing.norm} norm: {seen}.{model}"
    if pairing.same_model:
        return (
            f"It cannot be told {asked}, and no run "
            f"will tell: they are the same model. What differs is the noise of sampling: {seen}."
        )
    if contradict:
        sides = {
            side: _listed([kind for kind, verdict in pairing.verdicts.items() if verdict == side]) for side in (1, -1)
        }
        return (
            f"It cannot be told {asked}: {sides[1]} speaks for {second}, {sides[-1]} for {first}. Where scores and "
            f"attacks contradict, gradients may be masked: run a stronger attack. {_capital(seen)}."
        )
    return f"It cannot be told {asked}: {seen}. {_what_would_tell(found)}"


def _listed(kinds: Sequence[str]) -> str:
    return " and ".join(f"the {kind}" for kind in kinds)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def equal_words(pairing: Pairing, names: tuple[str, str]) -> str:
    """That two runs with equal scores have them, as text."""
    first, second = names
    return f"{_capital(first)} and {second} have equal scores ({pairing.method}) on all {len(pairing.ids)} inputs"


def _seen(found: Difference, change: Change, names: tuple[str, str], kind: str) -> str:
    first, second = names
    if found.above == found.below == 0:
        same = f"{second}'s {kind} equals that of {first} on all {found.count} inputs"
        return f"{same}, {change.of} {number(change.before, 3)}"
    percent = f"{100.0 * found.level:.3g}%"
    return (
        f"{second}'s {kind} is larger on {found.above} of {found.count} inputs and smaller on {found.below}, on "
        f"average by {_signed(found.mean.value)} ({percent} interval {_signed(found.mean.low)} to "
        f"{_signed(found.mean.high)}; sign test p {found.sign_pvalue:.2g}), {change.words}"
    )


def reference_epsilon(pairing: Pairing) -> float:
    """The epsilon at which robust accuracies are quoted: the first run's median positive score, to two digits."""
    known = pairing.first[pairing.first > 0.0]
    middle = float(np.median(known)) if len(known) else 0.0
    return float(f"{middle:.2g}")


def curve_words(pairing: Pairing, names: tuple[str, str]) -> str:
    """Robust accuracy of both runs at one epsilon, as text, by every line that both have."""
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
        # An estimate below what was used was not enough this time: a quarter more is the next thing to try.
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
    """The comparison of every run with the first, as text: a table, the inputs that changed most, and sentences."""
    letters = [letter_of(place) for place in range(len(runs))]
    parts = [f"{letter}: {name}" for letter, (name, _) in zip(letters, runs, strict=True)]
    parts += [
        f"{letter} is {found.unfinished}" for letter, (_, found) in zip(letters, runs, strict=True) if found.unfinished
    ]
    parts.append("")
    rows = []
    for letter, of_run in zip(letters[1:], pairings, strict=True):
        for pairing in of_run:
            own = (f"score ({pairing.method})", pairing.first, pairing.second, pairing.difference, pairing.change)
            others = [(each.kind, each.first, each.second, each.difference, each.change) for each in pairing.further]
            rows += [
                [
                    f"{letter} - A", pairing.norm, kind, str(found.count), number(float(np.median(first))),
                    number(float(np.median(second))), _signed(found.mean.value),
                    f"{_signed(found.mean.low)} .. {_signed(found.mean.high)}",
                    "-" if math.isnan(change.value) else f"{change.value:+.1%}", f"{found.above}:{found.below}",
                    f"{found.sign_pvalue:.2g}",
                ]
                for kind, first, second, found, change in [own, *others]
                if found.count
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
        parts += [sentence(pairing, ("A", letter)) for pairing in of_run]
    return "\n".join(parts)


def letter_of(place: int) -> str:
    """The letter of a run in a comparison: A, B, ... in the given order."""
    return chr(ord("A") + place) if place < 26 else f"run {place + 1}"


def notes(pairings: Sequence[Sequence[Pairing]], letters: Sequence[str]) -> list[str]:
    """Remarks on a comparison, such as left-out inputs and capped scores."""
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
