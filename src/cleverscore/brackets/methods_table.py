"""Several methods side by side: certified, the score of each method, attack; one line per input and norm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cleverscore.brackets.agreement import crossed_words
from cleverscore.brackets.run_bounds import target_or_any
from cleverscore.norms import norm_name
from cleverscore.scores.tables import class_word, label_word, remarks, score_words
from cleverscore.scores.text_table import number, table

if TYPE_CHECKING:
    from cleverscore.brackets.bracket import Bracket
    from cleverscore.scores.score import Score


def methods_text(bracket: Bracket) -> str:
    """The table, the medians of each norm, and what a reader should know before relying on them."""
    brackets = (bracket, *bracket.others)
    words = [_medians(bracket, p) for p in sorted({row.p for row in bracket.rows})]
    words += _disagreements(brackets)
    told: dict[str, list[str]] = {}  # what holds for all methods is said once
    for each in brackets:
        for line in remarks(each.rows, fits=False):
            told.setdefault(line, []).append(each.title)
    words += [line if len(titles) == len(brackets) else f"{titles[0]}: {line}" for line, titles in told.items()]
    return "\n".join([_table(brackets), "", *words])


def _table(brackets: tuple[Bracket, ...]) -> str:
    first = brackets[0]
    names = first.scores.class_names
    labelled = any(row.label is not None for row in first.rows)
    attacked, certified = (bool((~np.isnan(bounds)).any()) for bounds in (first.upper, first.lower))
    headers = [
        "input", *(["label"] if labelled else []), "predicted", "target", "norm",
        *(["certified"] if certified else []), *(each.title for each in brackets),
        *(["attack"] if attacked else []),
    ]  # fmt: skip
    found = [dict(_cells(each)) for each in brackets]
    # The class that a search met is a better guess of the nearest one than that of the smallest sampled score.
    nearest = {_key(row): row.target for each in brackets for row in each.rows if row.profile is not None}
    lines = []
    for i, row in enumerate(first.rows):
        label = [label_word(row, names)] if labelled else []
        lines.append(
            [
                str(row.input),
                *label,
                class_word(names, row.predicted),
                class_word(names, nearest.get(_key(row), row.target)),
                norm_name(row.p),
                *([number(float(first.lower[i]))] if certified else []),
                *(cells.get(_key(row), "-") for cells in found),
                *([number(float(first.upper[i]))] if attacked else []),
            ]
        )
    return table(headers, lines)


def _key(row: Score) -> tuple[int, float, int | None]:
    return row.input, row.p, target_or_any(row)


def _cells(bracket: Bracket) -> Iterator[tuple[tuple[int, float, int | None], str]]:
    """The score of each row, with ! where it contradicts the attack or the proof."""
    for row, agrees in zip(bracket.rows, bracket.consistent, strict=True):
        yield _key(row), score_words(row) + ("" if agrees or np.isnan(row.value) else " !")


def _medians(bracket: Bracket, p: float) -> str:
    """The medians of a norm, from the proof up to the attack."""
    part = bracket.of_norm(p)
    columns = [
        ("certified", part.lower),
        *((each.title, each.score) for each in (part, *part.others)),
        ("attack", part.upper),
    ]
    known = [(name, values[~np.isnan(values)]) for name, values in columns]
    medians = ", ".join(f"{name} {number(float(np.median(values)))}" for name, values in known if len(values))
    radius = part.rows[0].radius
    return f"norm {norm_name(p)}, radius {radius:g}: medians over {len(part)} inputs: {medians}"


def _disagreements(brackets: tuple[Bracket, ...]) -> list[str]:
    """How often each method contradicts attacks and proofs."""
    first = brackets[0]
    words = []
    for each in brackets:
        above, below, name = int(each.violated.sum()), int(each.loose.sum()), each.title
        if above:
            words.append(f"! {name} is above the attack for {above} of {len(each)} rows: believe the attack")
        if below:
            words.append(
                f"! {name} is below what is certified for {below} of {len(each)} rows: believe the certificate"
            )
    failed = int(np.isinf(first.upper).sum())
    if failed:
        words.append(f"no attack succeeded for {failed} of {len(first)} rows")
    return words + crossed_words(first.lower, first.upper)
