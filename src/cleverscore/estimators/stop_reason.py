"""Why sampling or ascent ended for a target: the values of the column `stopped`."""

from __future__ import annotations

ALL_BLOCKS = "all blocks"
NARROW = "interval is narrow enough"
AT_RADIUS = "score is the radius"
EXACT = "constant gradient"
SETTLED = "more starts change little"
ALL_STARTS = "all starts"
BUDGET = "budget used up"
UNFINISHED = "unfinished"  # the run was interrupted; repeating it draws the rest
DECIDED = "threshold is decided"
LOST = "cannot be the smallest"
PREFILTERED = f"{LOST}, by a few points"
SKETCHED = f"{LOST}, by random projections"


def is_lost(reason: str) -> bool:
    """Whether a target was eliminated, because it could not have the smallest score."""
    return reason.startswith(LOST)
