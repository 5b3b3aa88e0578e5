"""fit(): fit a reverse Weibull law to each sample of block maxima, and test the fit."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import ArrayLike

from ._likelihood import Floats
from ._tables import null_laws
from .convergence import PAPER_BLOCK_SIZE, shape_wall, stability
from .goodness import anderson_darling
from .outcome import FitOutcome
from .weibull import (
    CHUNK_VALUES,
    PENALTY,
    TailFits,
    as_samples,
    checked_block_size,
    checked_penalty,
    law,
    reshaped,
)

# Level of the Anderson-Darling test. The drift test has the level 2%, too, so one sample in 25 from an exact law gets a
# warning outcome.
POOR_FIT = 0.02

ARRAYS = [field.name for field in fields(TailFits) if field.name not in ("penalty", "blocks")]


def fit(maxima: ArrayLike, penalty: float = PENALTY, *, block_size: int = PAPER_BLOCK_SIZE) -> TailFits:
    """Fit a reverse Weibull law with shape >= 1 to each sample of block maxima by maximum likelihood, and test it.

    Maximises sum_i log f(x_i; location, scale, shape) - penalty * (scale / range)^2 over location >= max(x), where f is
    the density of the law, x a sample and range = max(x) - min(x). The default penalty, 0.01, is that of the authors'
    program. It keeps the end-point of Gumbel-like maxima finite, and so makes their scores larger than a plain
    likelihood fit would; 0 is this plain likelihood, section 4.2 of the paper. A fit that fails raises no exception;
    `outcome` says how it ended. The fit is tested by `anderson_darling` (if the law is rejected, the outcome is
    `poor`), by `stability` (if the end-point grows, `drifting`), and by its shape (if it is as large as for norms
    without a largest value, `no_endpoint`). None of these tests depends on the penalty.

    maxima: (..., blocks), any real dtype, computed in float64. Returns arrays of the leading shape.
    block_size: number of norms per maximum; the test of the shape depends on it.

    >>> import numpy as np
    >>> maxima = 2.0 - np.random.default_rng(0).weibull(3.0, size=(4, 500))   # end-point 2, scale 1, shape 3
    >>> fits = fit(maxima)
    >>> fits.location.shape, bool(np.all(np.abs(fits.location - 2.0) < 0.3)), str(fits[0].outcome)
    ((4,), True, 'ok')
    """
    x, penalty = as_samples(maxima), checked_penalty(penalty)
    rows, n = x.reshape(-1, x.shape[-1]), x.shape[-1]
    wall = shape_wall(n, checked_block_size(block_size))
    step = max(1, CHUNK_VALUES // n)  # rows fitted at once, which limits the working memory
    parts = [_judged(rows[start : start + step], penalty, wall) for start in range(0, len(rows), step)]
    if not parts:
        return law(x, penalty)
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    return reshaped(TailFits(**joined, penalty=penalty, blocks=n), x.shape[:-1])


def _judged(rows: Floats, penalty: float, wall: float) -> TailFits:
    """Fit and test samples (rows, blocks); a shape above `wall` has the outcome `no_endpoint`."""
    fits = law(rows, penalty)
    statistic, pvalue = anderson_darling(rows, fits)
    outcome, drift = fits.outcome.copy(), np.full(len(rows), np.nan)
    lawful = np.flatnonzero([found.has_law for found in outcome])
    if len(lawful):
        found, shape = stability(rows[lawful]), law(rows[lawful], 0.0).shape
        drift[lawful] = found.drift
        judged = outcome[lawful]
        endless = (judged == FitOutcome.NO_ENDPOINT) | (shape > wall)
        judged[found.statistic > null_laws().drift_limit(shape, rows.shape[1])] = FitOutcome.DRIFTING
        judged[endless] = FitOutcome.NO_ENDPOINT
        judged[pvalue[lawful] < POOR_FIT] = FitOutcome.POOR
        outcome[lawful] = judged
    return replace(fits, outcome=outcome, ad_statistic=statistic, ad_pvalue=pvalue, drift=drift)
