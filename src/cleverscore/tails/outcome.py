"""Every way in which a tail fit or a search of the sharp method can end, each with one sentence of advice."""

from __future__ import annotations

from enum import Enum


class FitOutcome(str, Enum):
    """How the fit of one sample of block maxima ended. A fit that fails raises no exception, but has such an outcome.

    ASCENDED and UNSETTLED are outcomes of the sharp method, which searches instead of fitting. CUSTOM_MODEL is the
    outcome of an end-point that your own tail model estimated.

    >>> FitOutcome("tied_maxima").extrapolates
    False
    >>> print(FitOutcome.CONSTANT.advice)
    All block maxima are equal, as in an affine network, so the end-point is that value; nothing needs to be done.
    """

    OK = "ok"
    CONSTANT = "constant"
    ZERO = "zero"
    TOO_FEW = "too_few"
    TIED_MAXIMA = "tied_maxima"
    SHAPE_AT_ONE = "shape_at_one"
    NO_ENDPOINT = "no_endpoint"
    DRIFTING = "drifting"
    POOR = "poor"
    NOT_FINITE = "not_finite"
    ASCENDED = "ascended"
    UNSETTLED = "unsettled"
    CUSTOM_MODEL = "custom_model"

    @property
    def advice(self) -> str:
        """One sentence: how the fit ended, and what to do."""
        return _ADVICE[self]

    @property
    def extrapolates(self) -> bool:
        """Whether the location comes from a fitted law and so may lie beyond the sample maximum."""
        return self in (FitOutcome.OK, FitOutcome.NO_ENDPOINT, FitOutcome.DRIFTING, FitOutcome.POOR)

    @property
    def has_law(self) -> bool:
        """Whether the fit has a law with a scale and a shape, which can be tested and plotted."""
        return self.extrapolates or self is FitOutcome.SHAPE_AT_ONE

    @property
    def bounded_below_only(self) -> bool:
        """Whether the end-point has only a lower limit, the sample maximum M; the score is then at most margin / M."""
        return self in (FitOutcome.NO_ENDPOINT, FitOutcome.DRIFTING, FitOutcome.POOR, FitOutcome.TOO_FEW)

    def __str__(self) -> str:
        """Return the value, as it appears in tables."""
        return self.value


_ADVICE = {
    FitOutcome.OK: "The reverse Weibull law was fitted in the interior of its parameters; nothing needs to be done.",
    FitOutcome.CONSTANT: (
        "All block maxima are equal, as in an affine network, so the end-point is that value; nothing needs to be done."
    ),
    FitOutcome.ZERO: (
        "All gradients that were computed are zero, so they say nothing of the margin, or with region='box' no valid "
        "move lowers it; look for saturated outputs or gradient masking before you trust the score."
    ),
    FitOutcome.TOO_FEW: (
        "There are fewer than 10 block maxima or fewer than 5 distinct values, so the sample maximum is reported "
        "without extrapolation; draw more blocks."
    ),
    FitOutcome.TIED_MAXIMA: (
        "Many blocks reached the same maximum, as in a piecewise linear network whose steepest piece was found, so the "
        "sample maximum is the end-point; a steeper piece that is too small to be hit would not be seen."
    ),
    FitOutcome.SHAPE_AT_ONE: (
        "The likelihood is largest at the corner shape = 1, location = sample maximum, so there is no extrapolation; "
        "draw more blocks to see whether the end-point moves."
    ),
    FitOutcome.NO_ENDPOINT: (
        "The maxima cannot be told from those of norms without a largest value, such as Gaussian ones, so the location "
        "rests on the penalty and only the sample maximum bounds the score, from above; draw larger blocks, use a "
        "smaller radius, or method sharp."
    ),
    FitOutcome.DRIFTING: (
        "The end-point grows when blocks are merged into larger ones, so the maxima have not reached the law that is "
        "fitted and only the sample maximum bounds the score, from above; draw larger blocks."
    ),
    FitOutcome.POOR: (
        "The Anderson-Darling test rejects the fitted law, as with outliers or several clusters among the maxima, so "
        "only the sample maximum bounds the score, from above; draw larger blocks, or use method sharp."
    ),
    FitOutcome.NOT_FINITE: (
        "At least one block maximum is NaN or infinite, so nothing was fitted; check the model for overflow in its "
        "gradients."
    ),
    FitOutcome.ASCENDED: (
        "Nothing was fitted: the largest falls of the margin were found by a search whose starts agree; nothing needs "
        "to be done."
    ),
    FitOutcome.UNSETTLED: (
        "The search met no crossing, met the nearest one too seldom or went far below it, so more search may lower the "
        "score, to score_low or below; compare other seeds, and give more budget if it was limited."
    ),
    FitOutcome.CUSTOM_MODEL: "The end-point is that of your own tail model; nothing needs to be done.",
}
