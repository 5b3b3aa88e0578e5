"""A bracket as text: the table of one or several methods, and remarks on how reliable the scores are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cleverscore.brackets.agreement import crossed_words
from cleverscore.brackets.run_bounds import target_or_any
from cleverscore.norms import norm_name
from cleverscore.scores.tables import class_word, interval_heading, interval_words, label_word, remarks, score_words
from cleverscore.scores.text_table import number, table

if TYPE_CHECKING:
    from cleverscore.brackets.bracket import Bracket
    from cleverscore.scores.score import Score


def bracket_table(bracket: Bracket) -> str:
    """The table of a bracket: one line per row with input, classes, norm, certified radius, score, attack and fit."""
    headers, first = _first_columns(bracket, [row.target for row in bracket.rows])
    headers += ["margin", "certified", "score", interval_heading(bracket.rows), "upper", "attack", "fit"]
    lines = [
        [
            *first[i],
            number(row.margin),
            number(float(bracket.lower[i])),
            cell,
            interval_words(row),
            number(float(bracket.upper[i])),
            bracket.attack[i] or "-",
            row.outcome.value,
        ]
        for i, (row, cell) in enumerate(_score_cells(bracket))
    ]
    return table(headers, lines)


def _first_columns(bracket: Bracket, targets: Sequence[int]) -> tuple[list[str], list[list[str]]]:
    """Headers, and the cells of each line, of the columns that say which input, class and norm a line is about."""
    names = bracket.scores.class_names
    labelled = any(row.label is not None for row in bracket.rows)
    cells = [
        [
            str(row.input), *([label_word(row, names)] if labelled else []), class_word(names, row.predicted),
            class_word(names, target), norm_name(row.p),
        ]
        for row, target in zip(bracket.rows, targets, strict=True)
    ]  # fmt: skip
    return ["input", *(["label"] if labelled else []), "predicted", "target", "norm"], cells


def _score_cells(bracket: Bracket) -> Iterator[tuple[Score, str]]:
    """Each row with its score as text, marked with ! if it contradicts the attack or the certificate."""
    for row, agrees in zip(bracket.rows, bracket.consistent, strict=True):
        yield row, score_words(row) + ("" if agrees or np.isnan(row.value) else " !")


def bracket_summary(bracket: Bracket) -> str:
    """Per norm: how often scores are above the best attack, the median gap between them, and what is certified.

    Then sentences on contradictions between scores, attacks and certificates.
    """
    lines = []
    for p in sorted({row.p for row in bracket.rows}):
        part = bracket.of_norm(p)
        words = []
        attacked = int(np.isfinite(part.upper).sum())
        if attacked:
            words.append(
                f"score above the best attack for {int(part.violated.sum())} of {attacked} rows "
                f"({part.violation_rate:.0%}), median gap (upper - score) / upper {part.median_gap:.2f}"
            )
        failed = int(np.isinf(part.upper).sum())
        if failed:
            words.append(f"no attack succeeded for {failed}")
        known = ~np.isnan(part.lower)
        if known.any():
            median = number(float(np.median(part.lower[known])))
            words.append(f"certified above 0 for {part.certified_share:.0%}, median {median}")
        if words:
            lines.append(f"norm {norm_name(p)}: {'; '.join(words)}")
    above, below = int(bracket.violated.sum()), int(bracket.loose.sum())
    if above:
        lines.append(f"! above ({above}): an attack got closer than the score says; believe the attack")
    if below:
        lines.append(f"! below ({below}): more is proved than the score estimates; believe the certificate")
    return "\n".join([*lines, *crossed_words(bracket.lower, bracket.upper)])


def methods_text(bracket: Bracket) -> str:
    """The text of a bracket with `others`: the table, the medians of each norm, and remarks on the scores."""
    brackets = (bracket, *bracket.others)
    words = [_medians(bracket, p) for p in sorted({row.p for row in bracket.rows})]
    return "\n".join([_methods_table(brackets), "", *words, *methods_remarks(bracket)])


def methods_remarks(bracket: Bracket) -> list[str]:
    """Sentences on how reliable the scores of several methods are.

    A sentence that holds for all methods is given once, without a name; any other begins with the methods' names.
    """
    brackets = (bracket, *bracket.others)
    told: dict[str, list[str]] = {}  # each sentence with the methods for which it holds
    for each in brackets:
        for line in remarks(each.rows, fits=False):
            told.setdefault(line, []).append(each.title)
    return _disagreements(brackets) + [
        line if len(titles) == len(brackets) else f"{', '.join(titles)}: {line}" for line, titles in told.items()
    ]


def _methods_table(brackets: tuple[Bracket, ...]) -> str:
    """A table with one line per row: certified radius, the score of each method, attack."""
    first = brackets[0]
    attacked, certified = (bool((~np.isnan(bounds)).any()) for bounds in (first.upper, first.lower))
    found = [{_key(row): cell for row, cell in _score_cells(each)} for each in brackets]
    # The class that a search met is a better guess of the nearest class than the one with the smallest sampled score.
    nearest = {_key(row): row.target for each in brackets for row in each.rows if row.profile is not None}
    headers, cells = _first_columns(first, [nearest.get(_key(row), row.target) for row in first.rows])
    headers += ["certified"] if certified else []
    headers += [*(each.title for each in brackets), *(["attack"] if attacked else [])]
    lines = [
        [
            *cells[i],
            *([number(float(first.lower[i]))] if certified else []),
            *(scores.get(_key(row), "-") for scores in found),
            *([number(float(first.upper[i]))] if attacked else []),
        ]
        for i, row in enumerate(first.rows)
    ]
    return table(headers, lines)


def _key(row: Score) -> tuple[int, float, int | None]:
    return row.input, row.p, target_or_any(row)


def _medians(bracket: Bracket, p: float) -> str:
    """One line with the medians in norm p: certified radius, score of each method, attack.

    Misclassified inputs count as 0 in all of them.
    """
    part = bracket.of_norm(p)
    wrong = np.array([row.correct is False for row in part.rows])
    columns = [
        ("certified", part.lower),
        *((each.title, each.score) for each in (part, *part.others)),
        ("attack", part.upper),
    ]
    known = [(name, np.where(wrong, 0.0, values)[~np.isnan(values)]) for name, values in columns]
    medians = ", ".join(f"{name} {number(float(np.median(values)))}" for name, values in known if len(values))
    radius = part.rows[0].radius
    return f"norm {norm_name(p)}, radius {radius:g}: medians over {len(part)} inputs: {medians}"


def _disagreements(brackets: tuple[Bracket, ...]) -> list[str]:
    """Sentences on how often the scores of each method contradict attacks and certificates, and on failed attacks."""
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
