"""The scores of a run with every column that is known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cleverscore.runs.results import stored_bracket, stored_scores
from cleverscore.runs.store import Store
from cleverscore.scores.score import Scores

if TYPE_CHECKING:
    import pandas


def stored_table(store: Store, *, maxima: bool = True) -> tuple[Scores, pandas.DataFrame]:
    """The scores of a run, and all its rows, with the columns of bounds where it has any."""
    scores = stored_scores(store, maxima=maxima)
    bracket = stored_bracket(store, scores)
    return scores, (scores if bracket is None else bracket).to_frame()
