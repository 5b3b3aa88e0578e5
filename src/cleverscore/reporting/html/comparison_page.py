"""The page of a comparison: verdicts, scatter plots and the inputs that changed most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cleverscore.reporting.compare import Pairing, letter_of, notes, sentence
from cleverscore.reporting.findings import Findings
from cleverscore.reporting.html.packing import pack
from cleverscore.reporting.html.page import escape, fill
from cleverscore.reporting.html.report import footer
from cleverscore.runs.thumbnails import Picture

PROGRAMS = ("common.js", "charts.js", "compare.js")

HOW_TO_READ = (
    (
        "What is compared",
        "Inputs that both runs have and both models classify correctly. Each input is compared with itself, so what "
        "makes inputs differ from each other drops out.",
    ),
    (
        "When one is called more robust",
        "When the bootstrap interval of the mean difference leaves out zero and the sign test rejects that both signs "
        "are equally likely, both in the same direction. With several norms or runs the levels are adjusted, so that "
        "all sentences hold together.",
    ),
    (
        "What it does not say",
        "Scores are estimates, and a model that masks its gradients gets a high score without being robust. A "
        "difference here is one of scores; an attack on both models is the test that decides.",
    ),
)


def comparison_page(
    runs: Sequence[tuple[str, Findings]], pairings: Sequence[Sequence[Pairing]], *, most: int = 10
) -> str:
    """The page: every run against the first."""
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
        pairs.append({"letter": letter, "norm": pairing.norm, "most": changed})
    header: dict[str, Any] = {"pairs": pairs, "pictures": None}
    if pictures:
        header["pictures"] = _shape(pictures)
        order = list(pictures)
        arrays["picture"] = np.array([order.index(i) if i in pictures else -1 for i in sorted(shown)], np.int32)
        arrays["pixels"] = np.stack(list(pictures.values()))
    verdicts = "".join(
        f'<div class="card"><h3>A and {escape(letter)}, l{escape(pairing.norm)} norm</h3>'
        f"<p>{escape(sentence(pairing, ('A', letter)))}</p></div>"
        for letter, pairing in flat
    )
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


def _shape(pictures: dict[int, Picture]) -> dict[str, int]:
    height, width, channels = next(iter(pictures.values())).shape
    return {"height": height, "width": width, "channels": channels, "count": len(pictures)}
