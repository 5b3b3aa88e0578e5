"""The page of a comparison: verdicts, measures, robust accuracy of both runs, and the inputs that changed most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cleverscore.reporting.compare import Change, Pairing
from cleverscore.reporting.comparison_text import curve_words, equal_words, letter_of, notes, sentence
from cleverscore.reporting.findings import Findings
from cleverscore.reporting.html.columns import curve_of, method_words
from cleverscore.reporting.html.packing import pack
from cleverscore.reporting.html.page import escape, fill
from cleverscore.reporting.html.report import footer
from cleverscore.reporting.html.terms import TERMS, term
from cleverscore.runs.thumbnails import Picture
from cleverscore.scores.text_table import number

PROGRAMS = ("common.js", "charts.js", "compare.js")

HOW_TO_READ = (
    (
        "What is compared",
        "Inputs that both runs have. Each input is compared with itself, so what makes inputs differ from each other "
        "drops out. An input that a model misclassifies counts as 0 for it, unless such inputs were excluded.",
    ),
    (
        "When one is called more robust",
        "A measure (score, best attack, certificate) speaks for a model when the bootstrap interval of the mean "
        "difference leaves out zero and the sign test rejects that both signs are equally likely, both in the same "
        "direction. One model is called more robust when at least one measure speaks for it and none for the other. "
        "With several measures, norms or runs the levels are adjusted, so that all sentences hold together.",
    ),
    (
        "Robust accuracy",
        "The share of inputs that are classified correctly and keep their class under every change up to epsilon: "
        "proved by a certificate, estimated by the scores, or left by the attacks. The truth lies between the first "
        "and the last.",
    ),
    (
        "What it does not say",
        "Scores are estimates, and a model that masks its gradients gets a high score without being robust. Where "
        "scores and attacks contradict, believe the attacks and run stronger ones.",
    ),
)


def comparison_page(
    runs: Sequence[tuple[str, Findings]], pairings: Sequence[Sequence[Pairing]], *, most: int = 10
) -> str:
    """The page that compares every run with the first."""
    letters = [letter_of(place) for place in range(len(runs))]
    first = runs[0][1]
    flat = [(letter, pairing) for letter, of_run in zip(letters[1:], pairings, strict=True) for pairing in of_run]
    arrays: dict[str, Any] = {}
    pairs, shown = [], {i for _, pairing in flat for i in (pairing.ids[k] for k in pairing.changed_most(most))}
    pictures = {i: first.pictures[i] for i in sorted(shown) if i in first.pictures}
    place_of = {i: place for place, i in enumerate(sorted(shown))}
    for k, (letter, pairing) in enumerate(flat):
        arrays[f"{k}.first"] = pairing.first.astype(np.float32)
        arrays[f"{k}.second"] = pairing.second.astype(np.float32)
        changed = [
            [place_of[pairing.ids[i]], pairing.ids[i], float(pairing.first[i]), float(pairing.second[i])]
            for i in pairing.changed_most(most)
        ]
        found = runs[letters.index(letter)][1]
        curves = [_curve(of, pairing) for of in (first, found)]
        pairs.append(
            {
                "letter": letter, "norm": pairing.norm, "most": changed,
                "robust": None if None in curves else curves, "method": method_words(pairing.method),
            }
        )  # fmt: skip
    header: dict[str, Any] = {"pairs": pairs, "pictures": None, "terms": TERMS}
    if pictures:
        header["pictures"] = _shape(pictures)
        order = list(pictures)
        arrays["picture"] = np.array([order.index(i) if i in pictures else -1 for i in sorted(shown)], np.int32)
        arrays["pixels"] = np.stack(list(pictures.values()))
    verdicts = "".join(_verdict(letter, pairing) for letter, pairing in flat)
    remarks = "".join(f'<p class="note">{escape(words)}</p>' for words in notes(pairings, letters[1:]))
    lines = "".join(
        f'<p class="sub">{escape(letter)}: {escape(name)} ({escape(found.config.model)})</p>'
        for letter, (name, found) in zip(letters, runs, strict=True)
    )
    return fill(
        "compare.html",
        programs=PROGRAMS,
        title=escape(f"Is {'B' if len(runs) == 2 else 'another'} more robust than A?"),
        runs=lines,
        verdicts=f'<div class="cards">{verdicts}</div>{remarks}',
        how="".join(f"<div><h3>{escape(name)}</h3><p>{escape(words)}</p></div>" for name, words in HOW_TO_READ),
        footer=footer(),
        data=pack(header, arrays),
    )


def _curve(found: Findings, pairing: Pairing) -> dict[str, Any] | None:
    """Robust accuracy of one of the runs over the inputs that are compared."""
    norm = next(norm for norm in found.norms if norm.name == pairing.norm)
    return curve_of(norm.over(pairing.ids)) if pairing.ids else None


def _verdict(letter: str, pairing: Pairing) -> str:
    """The verdict on one pair of runs in one norm: which is more robust, a table of measures, and the sentence."""
    better = {1: f"{letter} is more robust than A", -1: f"A is more robust than {letter}"}
    title = better.get(pairing.verdict, f"It cannot be told whether {letter} is more robust than A")
    if not pairing.verdict and pairing.same_scores:
        title = equal_words(pairing, ("A", letter))
    if pairing.verdict:
        speaking = [_kind(kind) for kind, says in pairing.verdicts.items() if says]
        title += f", by {', '.join(speaking)}"
    measures = [
        (f"{method_words(pairing.method)} score", pairing.first, pairing.second, pairing.difference, pairing.change),
        *((_kind(each.kind), each.first, each.second, each.difference, each.change) for each in pairing.further),
    ]
    rows = "".join(
        f"<tr><td>{term(kind.removesuffix(' score').removesuffix(' radius'))}</td>"
        f"<td>{_middle(one)}</td><td>{_middle(other)}</td>"
        f"<td>{escape(_change(change))}</td><td>{found.above} : {found.below}</td>"
        f"<td>{ {1: escape(letter), -1: 'A', 0: 'cannot tell'}[found.verdict] }</td></tr>"
        for kind, one, other, found, change in measures
        if found.count
    )
    names = ("measure", "median A", f"median {letter}", "change of the mean", f"larger in {letter} : A", "speaks for")
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    table = (
        f'<div class="scroll"><table class="measures"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
    return (
        f'<div class="card wide"><h3>A and {escape(letter)}, l{escape(pairing.norm)} norm</h3>'
        f'<p class="verdict"><strong>{escape(title)}.</strong>{escape(_at(letter, pairing))}</p>{table}'
        f'<details><summary class="note">In full</summary><p class="note">'
        f"{escape(sentence(pairing, ('A', letter)))}</p></details></div>"
    )


def _kind(kind: str) -> str:
    """The name of a measure in the table."""
    name = kind.removeprefix("score (").removesuffix(")")
    return f"{method_words(name)} score" if name != kind else {"certificate": "certified radius"}.get(kind, kind)


def _middle(values: Any) -> str:
    return number(float(np.median(values)), 3)


def _change(change: Change) -> str:
    if math.isnan(change.value) or math.isnan(change.low):
        return change.short
    return f"{change.value:+.1%} ({change.low:+.0%} to {change.high:+.0%})"


def _at(letter: str, pairing: Pairing) -> str:
    """Robust accuracy at one epsilon, as text."""
    words = curve_words(pairing, ("A", letter))
    return f" {words[:1].upper()}{words[1:]}." if words else ""


def _shape(pictures: dict[int, Picture]) -> dict[str, int]:
    height, width, channels = next(iter(pictures.values())).shape
    return {"height": height, "width": width, "channels": channels, "count": len(pictures)}
