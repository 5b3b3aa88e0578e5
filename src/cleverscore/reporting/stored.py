"""The scores of a run with all their columns, also those of attacks and certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cleverscore.runs.results import stored_bracket, stored_scores
from cleverscore.runs.store import Store
from cleverscore.scores.score import Scores

if TYPE_CHECKING:
    import pandas


def stored_table(store: Store, *, maxima: bool = True) -> tuple[Scores, pandas.DataFrame]:
    """The scores of a run, and all its rows, with columns of attacks and certificates if the run has any."""
    scores = stored_scores(store, maxima=maxima)
    bracket = stored_bracket(store, scores)
    return scores, (scores if bracket is None else bracket).to_frame()
