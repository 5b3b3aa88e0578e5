"""A bracket in words: the table, and what a reader should know before relying on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cleverscore.brackets.agreement import crossed_words
from cleverscore.norms import norm_name
from cleverscore.scores.tables import class_word, interval_heading, interval_words, label_word, score_words
from cleverscore.scores.text_table import number, table

if TYPE_CHECKING:
    from cleverscore.brackets.bracket import Bracket


def bracket_table(bracket: Bracket) -> str:
    """One line per bracketed row: proof, score, attack."""
    names = bracket.scores.class_names
    labelled = any(row.label is not None for row in bracket.rows)
    headers = ["input", *(["label"] if labelled else []), "predicted", "target", "norm", "margin"]
    headers += ["certified", "score", interval_heading(bracket.rows), "upper", "attack", "fit"]
    consistent = bracket.consistent
    lines = []
    for i, row in enumerate(bracket.rows):
        label = [label_word(row, names)] if labelled else []
        mark = "" if consistent[i] or np.isnan(row.value) else " !"
        lines.append(
            [
                str(row.input),
                *label,
                class_word(names, row.predicted),
                class_word(names, row.target),
                norm_name(row.p),
                number(row.margin),
                number(float(bracket.lower[i])),
                score_words(row) + mark,
                interval_words(row),
                number(float(bracket.upper[i])),
                bracket.attack[i] or "-",
                row.outcome.value,
            ]
        )
    return table(headers, lines)


def bracket_summary(bracket: Bracket) -> str:
    """Per norm: how often the score is above the best attack, the median gap, and how much was certified."""
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
