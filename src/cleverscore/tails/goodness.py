"""Goodness of fit: the paper's Kolmogorov-Smirnov test, and an Anderson-Darling test that allows for the fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cleverscore.errors import SettingError
from cleverscore.validation import is_whole

from ._likelihood import Floats
from ._tables import null_laws
from .weibull import CHUNK_VALUES, PENALTY, TailFits, as_samples, checked_fits, law

Indices = NDArray[np.intp]

# In the Anderson-Darling statistic of n maxima, 1 - F is taken as at least this share of 1 / n. At the largest maximum
# it is 0 if the end-point is the sample maximum, which would make the statistic infinite.
LEAST_ABOVE = 1e-3


def kolmogorov_smirnov(maxima: ArrayLike, fits: TailFits) -> tuple[Floats, Floats]:
    """Kolmogorov-Smirnov statistic and its naive p-value, as in the paper (Section 5.2).

    D is the largest distance between the fitted law F and the empirical distribution function. The p-value is the
    probability of a larger D for a sample of a law that was *not* fitted to it. Here the law was fitted to the sample,
    so the p-value is far too large and nearly every sample passes. It is reported because the paper reports it.

    maxima: (..., blocks), to which `fits` were fitted. Returns D and the p-values, two arrays of the leading shape, NaN
    where there is no fitted law.

    >>> import numpy as np
    >>> maxima = 2.0 - np.random.default_rng(0).weibull(3.0, size=(2, 500))
    >>> from cleverscore.tails import fit
    >>> statistic, pvalue = kolmogorov_smirnov(maxima, fit(maxima))
    >>> bool(np.all(pvalue > 0.05))
    True
    """
    from scipy.stats import kstwo  # it takes half a second to import, and those who only read results need none

    x, lawful = _matching(maxima, fits)
    n = x.shape[1]
    rank = np.arange(n + 1) / n
    statistic, pvalue = (np.full(len(x), np.nan) for _ in range(2))
    step = max(1, CHUNK_VALUES // n)
    for start in range(0, len(lawful), step):
        part = lawful[start : start + step]
        below, _ = _log_probabilities(np.sort(x[part], axis=1), *_law(fits, part))
        probability = np.exp(below)
        distance = np.maximum((rank[1:] - probability).max(axis=1), (probability - rank[:-1]).max(axis=1))
        statistic[part], pvalue[part] = distance, np.clip(kstwo.sf(distance, n), 0.0, 1.0)
    return statistic.reshape(fits.location.shape), pvalue.reshape(fits.location.shape)


def anderson_darling(maxima: ArrayLike, fits: TailFits, *, replicates: int = 0, seed: int = 0) -> tuple[Floats, Floats]:
    """Anderson-Darling statistic, with a p-value that allows for the law being fitted to the same sample.

    A^2 = -n - (1/n) sum_i (2i - 1) [log F(x_i) + log(1 - F(x_{n+1-i}))] for the n maxima x_1 <= ... <= x_n of a sample
    and the fitted law F. Its distribution under the null hypothesis depends on the shape and the number of blocks
    alone, and is read from a table. F is then the law fitted with the default penalty, even if `fits` have another one,
    because the question whether maxima follow a reverse Weibull law does not depend on the penalty.

    With `replicates` > 0 the p-value is simulated instead: that many samples are drawn from the law of `fits` (`seed`
    is that of the random numbers) and fitted again with the penalty of `fits`. If A*^2 is the statistic of such a
    sample, p = (1 + #{A*^2 >= A^2}) / (1 + replicates). F is then the law of `fits`.

    maxima: (..., blocks), to which `fits` were fitted. Returns A^2 and the p-values, two arrays of the leading shape,
    NaN where there is no fitted law.

    >>> import numpy as np
    >>> maxima = 2.0 - np.random.default_rng(0).weibull(3.0, size=(2, 100))
    >>> from cleverscore.tails import fit
    >>> statistic, pvalue = anderson_darling(maxima, fit(maxima))
    >>> statistic.shape, bool(np.all(pvalue > 0.05))
    ((2,), True)
    """
    if not is_whole(replicates) or replicates < 0:
        raise SettingError(f"replicates {replicates!r} must be a whole number; 199 resolves p-values of 0.005")
    x, lawful = _matching(maxima, fits)
    statistic, pvalue = (np.full(len(x), np.nan) for _ in range(2))
    if replicates == 0:
        if len(lawful):
            tested, rows = (fits, lawful) if fits.penalty == PENALTY else (law(x[lawful]), np.arange(len(lawful)))
            parameters = _law(tested, rows)
            statistic[lawful] = squared_distance(x[lawful], *parameters)
            pvalue[lawful] = null_laws().pvalue(statistic[lawful], parameters[2], x.shape[1])
        return statistic.reshape(fits.location.shape), pvalue.reshape(fits.location.shape)
    if not is_whole(seed) or seed < 0:
        raise SettingError(f"seed {seed!r} must be a whole number from 0")
    exponential = np.random.default_rng(int(seed)).standard_exponential((int(replicates), x.shape[1]))
    for i in lawful:
        found = _law(fits, np.array([i]))
        statistic[i] = squared_distance(x[i : i + 1], *found)[0]
        sample = -(exponential ** (1.0 / found[2]))  # A^2 is invariant to location and scale
        again = law(sample, fits.penalty)
        usable = np.flatnonzero([outcome.has_law for outcome in again.outcome])
        drawn = np.full(replicates, np.inf)  # a replicate without a law counts as A*^2 >= A^2
        drawn[usable] = squared_distance(sample[usable], *_law(again, usable))
        pvalue[i] = (1.0 + np.count_nonzero(drawn >= statistic[i])) / (1.0 + replicates)
    return statistic.reshape(fits.location.shape), pvalue.reshape(fits.location.shape)


def _matching(maxima: ArrayLike, fits: TailFits) -> tuple[Floats, Indices]:
    """Samples as rows (rows, blocks), and the indices of the rows that have a fitted law."""
    x = as_samples(maxima)
    checked_fits(fits, x)
    lawful = np.flatnonzero([outcome.has_law for outcome in fits.outcome.ravel()])
    return x.reshape(-1, x.shape[-1]), lawful


def _law(fits: TailFits, rows: Indices) -> tuple[Floats, Floats, Floats]:
    return fits.location.ravel()[rows], fits.scale.ravel()[rows], fits.shape.ravel()[rows]


def _log_probabilities(x: Floats, location: Floats, scale: Floats, shape: Floats) -> tuple[Floats, Floats]:
    """Return log F and log(1 - F) at x (rows, n), for one law per row."""
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        reduced = np.maximum(location[:, None] / scale[:, None] - x / scale[:, None], 0.0)
        hazard = np.exp(shape[:, None] * np.log(reduced))
        above = np.log(np.maximum(-np.expm1(-hazard), LEAST_ABOVE / x.shape[1]))
    return -hazard, above


def squared_distance(x: Floats, location: Floats, scale: Floats, shape: Floats) -> Floats:
    """Anderson-Darling statistic (rows,) of samples x (rows, n), for one law per row."""
    n = x.shape[1]
    odd = 2.0 * np.arange(1, n + 1) - 1.0
    found = np.empty(len(x))
    step = max(1, CHUNK_VALUES // n)
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        below, above = _log_probabilities(np.sort(x[part], axis=1), location[part], scale[part], shape[part])
        found[part] = -n - np.einsum("ij,j->i", below + above[:, ::-1], odd) / n
    return found
