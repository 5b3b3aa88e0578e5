"""The page of a comparison: verdicts, measures, robust accuracy of both runs, and the inputs that changed most."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from cleverscore.reporting.compare import CERTIFICATE, Change, Pairing
from cleverscore.reporting.comparison_text import curve_words, details, letter_of, notes, remarks, verdict
from cleverscore.reporting.findings import Findings
from cleverscore.reporting.html.columns import curve_of, method_words
from cleverscore.reporting.html.packing import pack
from cleverscore.reporting.html.page import escape, fill
from cleverscore.reporting.html.report import footer
from cleverscore.reporting.html.terms import TERMS, term
from cleverscore.runs.thumbnails import Picture
from cleverscore.scores.text_table import number

OTHER_COLORS = 3  # colours of page.css besides that of A; each plot shows A and one other run
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
    """The HTML of the page that compares every run with the first.

    runs        name and results of each run.
    pairings    for each run after the first, its comparisons with the first, one per norm.
    most        how many of the most changed inputs are shown per comparison.
    """
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
        curves = None if pairing.curves is None else [curve_of(curves) for curves in pairing.curves]
        pairs.append(
            {
                "letter": letter, "color": color_of(letters.index(letter)), "norm": pairing.norm, "most": changed,
                "robust": curves, "method": method_words(pairing.method),
            }
        )  # fmt: skip
    header: dict[str, Any] = {"pairs": pairs, "pictures": None, "terms": TERMS}
    if pictures:
        header["pictures"] = _shape(pictures)
        order = list(pictures)
        arrays["picture"] = np.array([order.index(i) if i in pictures else -1 for i in sorted(shown)], np.int32)
        arrays["pixels"] = np.stack(list(pictures.values()))
    marks = {letter: _mark(letter, place) for place, letter in enumerate(letters)}
    verdicts = "".join(_verdict(letter, pairing, marks) for letter, pairing in flat)
    noted = "".join(f'<p class="note">{escape(words)}</p>' for words in notes(pairings, letters[1:]))
    lines = "".join(
        f'<p class="sub">{marks[letter]}: {escape(name)} ({escape(found.config.model)})</p>'
        for letter, (name, found) in zip(letters, runs, strict=True)
    )
    return fill(
        "compare.html",
        programs=PROGRAMS,
        title=escape(f"Is {'B' if len(runs) == 2 else 'another'} more robust than A?"),
        runs=lines,
        verdicts=f'<div class="cards">{verdicts}</div>{noted}',
        how="".join(f"<div><h3>{escape(name)}</h3><p>{escape(words)}</p></div>" for name, words in HOW_TO_READ),
        footer=footer(),
        data=pack(header, arrays),
    )


def color_of(place: int) -> int:
    """The number of the colour of a run: A has the first, each other run another.

    >>> [color_of(place) for place in range(6)]
    [0, 1, 2, 3, 1, 2]
    """
    return 1 + (place - 1) % OTHER_COLORS if place else 0


def _mark(letter: str, place: int) -> str:
    """The markup of a run's letter in the colour of its place."""
    return f'<span class="model model-{color_of(place)}">{escape(letter)}</span>'


def _verdict(letter: str, pairing: Pairing, marks: dict[str, str]) -> str:
    """The markup of the verdict on one pair of runs in one norm: a sentence, remarks as a list, a table of measures.

    marks   the markup of each run's letter.
    """
    names = ("A", letter)
    said = [_readable(line) for line in (*remarks(pairing, names), *filter(None, [curve_words(pairing, names)]))]
    other = marks[letter]
    columns = {
        "measure": "measure", "median A": f"median {marks['A']}", f"median {letter}": f"median {other}",
        "change of the mean": "change of the mean", f"larger in {letter} : A": f"larger in {other} : {marks['A']}",
        "speaks for": "speaks for",
    }  # fmt: skip
    head = "".join(f'<th scope="col">{marked}</th>' for marked in columns.values())
    rows = []
    for each in pairing.measures:
        found = each.difference
        if found.count:
            cells = (
                term(_kind(each.kind)), _middle(each.first), _middle(each.second), escape(_change(each.change)),
                f"{found.above} : {found.below}", {1: other, -1: marks["A"], 0: "cannot tell"}[found.verdict],
            )  # fmt: skip
            # In a narrow window each row becomes a block, and each cell shows the name of its column.
            named = [f'<td data-name="{escape(name)}">{cell}</td>' for name, cell in zip(columns, cells, strict=True)]
            rows.append(f"<tr>{''.join(named)}</tr>")
    table = (
        f'<div class="scroll"><table class="measures"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        "</table></div>"
    )
    in_full = _list([_readable(line) for line in details(pairing, names)])
    return (
        f'<div class="card wide"><h3>{marks["A"]} and {other}, l{escape(pairing.norm)} norm</h3>'
        f'<p class="verdict"><strong>{escape(_readable(verdict(pairing, names)))}</strong></p>{_list(said)}{table}'
        f'<details><summary class="note">In full</summary>{in_full}</details></div>'
    )


def _list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line[:1].upper() + line[1:])}</li>" for line in lines)
    return f'<ul class="note">{items}</ul>' if items else ""


def _readable(text: str) -> str:
    """A sentence in which scores have the names that the page uses.

    >>> _readable("B's mean score (paper) is higher")
    "B's mean CLEVER score is higher"
    """
    return re.sub(r"(scores?) \(([^)]*)\)", lambda found: f"{method_words(found[2])} {found[1]}", text)


def _kind(kind: str) -> str:
    """The name of a measure in the table: for scores the method, else the bound, such as certified."""
    name = kind.removeprefix("score (").removesuffix(")")
    return method_words(name) if name != kind else {CERTIFICATE: "certified"}.get(kind, kind)


def _middle(values: Any) -> str:
    return number(float(np.median(values)), 3)


def _change(change: Change) -> str:
    if math.isnan(change.value) or math.isnan(change.low):
        return change.short
    return f"{change.value:+.1%} ({change.low:+.0%} to {change.high:+.0%})"


def _shape(pictures: dict[int, Picture]) -> dict[str, int]:
    height, width, channels = next(iter(pictures.values())).shape
    return {"height": height, "width": width, "channels": channels, "count": len(pictures)}
