"""Remarks for the report on how reliable the results of a run are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cleverscore.reporting.findings import Findings, NormFindings
from cleverscore.reporting.html.columns import method_words
from cleverscore.tails import FitOutcome


@dataclass(frozen=True)
class Remark:
    """One remark.

    title   the remark in a few words.
    text    what the remark means and what to do.
    flag    the flag of the inputs that it concerns; None if it concerns the whole run.
    counts  numbers of inputs that it concerns, by the place of the norm in `Findings.norms`.
    """

    title: str
    text: str
    flag: str | None = None
    counts: Mapping[int, int] = field(default_factory=dict)


HARMLESS = "nothing needs to be done."  # the last words of the advice for an outcome of a fit that needs no remark
_FLAGS = {
    "above_attack": (
        "score above the attack",
        "An attack changed the prediction with a smaller step than the score says is safe. Believe the attack: for "
        "these inputs the sampled gradients missed the steepest places. Use more or larger blocks, or method sharp.",
    ),
    "below_certificate": (
        "score below the certificate",
        "More was proved than the score estimates, so the score is needlessly low here. Believe the certificate; a "
        "smaller radius usually brings the two together.",
    ),
    "no_score": (
        "no score",
        "A gradient was NaN or infinite near these inputs, so they have no score and are left out of every summary. "
        "Check the model for overflow.",
    ),
    "open": (
        "score bounded from above only",
        "The largest gradient could be far above what was sampled, so the score has no lower limit: it is at most the "
        "margin divided by the largest gradient norm that was met, or a little less where a fitted law holds. Larger "
        "blocks, a smaller radius or method sharp tell more.",
    ),
    "capped": (
        "score is the radius",
        "The score is cut at the radius of the ball that was sampled; the input may be more robust than that. Use a "
        "larger radius to find out.",
    ),
    "budget": (
        "budget used up",
        "Sampling ended before all blocks were drawn; intervals are wider than they would have been.",
    ),
    "misclassified": (
        "misclassified",
        "The model gets these inputs wrong. They are scored for the class that the model predicts, which says how "
        "firmly it holds its mistake.",
    ),
}


def remarks(found: Findings) -> list[Remark]:
    """All remarks on a run, the most serious first."""
    notes = []
    if found.unfinished is not None:
        notes.append(Remark("unfinished run", f"{found.unfinished[:1].upper()}{found.unfinished[1:]}."))
    selection = found.meta.get("selection")
    if selection:
        notes.append(Remark("selected inputs", f"The run holds {selection}: its share of correct ones says nothing."))
    for sign in found.meta.get("signs") or []:
        if sign.get("kind") == "above_attack":
            continue  # counted below instead, with attacks that were added later
        notes.append(Remark(f"sign of gradient masking: {sign.get('kind', '')}", str(sign.get("text", ""))))
    flags = [norm.flags() for norm in found.norms]
    for flag, (title, text) in _FLAGS.items():
        notes.append(Remark(title, text, flag, {k: int(marks[flag].sum()) for k, marks in enumerate(flags)}))
    for outcome in FitOutcome:
        if outcome is not FitOutcome.NOT_FINITE and not outcome.advice.endswith(HARMLESS):
            counts = {k: sum(score.outcome is outcome for score in norm.known) for k, norm in enumerate(found.norms)}
            notes.append(Remark(f"fit ended as {outcome.value}", outcome.advice, f"outcome:{outcome.value}", counts))
    return [note for note in notes if note.flag is None or any(note.counts.values())]


def headline(norm: NormFindings) -> str:
    """One sentence about the results in a norm: median score, attack and certified radius."""
    count = sum(not math.isnan(score.value) for score in norm.known)
    if count == 0:
        return "There is no score in this norm yet."
    median = norm.median.value
    if median == 0.0:
        return f"At least half of the {count} inputs are misclassified, and count as 0."
    at_least = "at least " if median >= norm.radius else "about "
    words = (
        f"Half of the {count} inputs are classified correctly and keep their class under every change shorter than "
        f"{at_least}{median:.3g} in the l{norm.name} norm, as estimated"
    )
    if norm.other is not None:
        words += f" by {method_words(norm.method)}"
    attack, proof = norm.attack_median.value, norm.certified_median.value
    if math.isfinite(attack):
        words += f"; attacks change half of them within {attack:.3g}"
    if proof > 0.0:
        words += f"; {proof:.3g} is proved"
    return f"{words}."
