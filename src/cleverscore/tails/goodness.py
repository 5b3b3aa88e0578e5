"""How well the fitted law describes the maxima: the paper's test, and one that knows that the law was fitted."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import SettingError
from ._likelihood import Floats
from .weibull import CHUNK_VALUES, TailFits, as_samples, fit

Indices = NDArray[np.intp]

# Values of the fitted distribution function are kept this far from 0 and 1, where Anderson-Darling takes logarithms.
_TINY = 1e-300


def kolmogorov_smirnov(maxima: ArrayLike, fits: TailFits) -> tuple[Floats, Floats]:
    """Kolmogorov-Smirnov statistic and its naive p-value, as in the paper (Section 5.2).

    D = max_i |F(x_i) - empirical|, p = P(D_n > D) for a law that was *not* fitted to the sample. Because it was, the
    p-value is far too large: nearly every sample passes. It is reported because the paper reports it.

    maxima: (..., blocks). Returns two arrays of the leading shape, NaN where there is no fitted law.

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


def anderson_darling(
    maxima: ArrayLike, fits: TailFits, *, replicates: int = 199, seed: int = 0
) -> tuple[Floats, Floats]:
    """Anderson-Darling statistic with a p-value from a parametric bootstrap that refits every replicate.

    A^2 = -n - (1/n) sum_i (2i - 1) [log F(x_i) + log(1 - F(x_{n+1-i}))], p = (1 + #{A*^2 >= A^2}) / (1 + replicates),
    where A*^2 belongs to samples of the fitted law, fitted again with the same penalty. All rows use the same random
    numbers, so a row's p-value does not depend on the other rows.

    maxima: (..., blocks). Returns two arrays of the leading shape, NaN where there is no fitted law. The cost is that
    of `replicates` fits per row.

    >>> import numpy as np
    >>> maxima = 2.0 - np.random.default_rng(0).weibull(3.0, size=(2, 100))
    >>> from cleverscore.tails import fit
    >>> statistic, pvalue = anderson_darling(maxima, fit(maxima), replicates=39)
    >>> statistic.shape, bool(np.all(pvalue > 0.05))
    ((2,), True)
    """
    if replicates < 1:
        raise SettingError(f"replicates {replicates!r} must be at least 1; 199 resolves p-values of 0.005")
    x, lawful = _matching(maxima, fits)
    statistic, pvalue = (np.full(len(x), np.nan) for _ in range(2))
    exponential = np.random.default_rng(seed).standard_exponential((replicates, x.shape[1]))
    for i in lawful:
        law = _law(fits, np.array([i]))
        statistic[i] = _squared(np.sort(x[i : i + 1], axis=1), *law)[0]
        sample = np.sort(-(exponential ** (1.0 / law[2])), axis=1)  # A^2 does not feel location and scale
        again = fit(sample, fits.penalty)
        usable = np.flatnonzero([outcome.has_law for outcome in again.outcome])
        drawn = np.full(replicates, np.inf)  # a replicate without a law counts for the null
        drawn[usable] = _squared(sample[usable], *_law(again, usable))
        pvalue[i] = (1.0 + np.count_nonzero(drawn >= statistic[i])) / (1.0 + replicates)
    return statistic.reshape(fits.location.shape), pvalue.reshape(fits.location.shape)


def _matching(maxima: ArrayLike, fits: TailFits) -> tuple[Floats, Indices]:
    """Samples as rows, and the indices of those that have a law."""
    x = as_samples(maxima)
    if x.shape[:-1] != fits.location.shape:
        raise SettingError(f"maxima {x.shape} and fits {fits.location.shape} do not belong together; pass fit(maxima)")
    lawful = np.flatnonzero([outcome.has_law for outcome in fits.outcome.ravel()])
    return x.reshape(-1, x.shape[-1]), lawful


def _law(fits: TailFits, rows: Indices) -> tuple[Floats, Floats, Floats]:
    return fits.location.ravel()[rows], fits.scale.ravel()[rows], fits.shape.ravel()[rows]


def _log_probabilities(x: Floats, location: Floats, scale: Floats, shape: Floats) -> tuple[Floats, Floats]:
    """Return log F and log(1 - F) at x (rows, n)."""
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        reduced = np.maximum(location[:, None] / scale[:, None] - x / scale[:, None], 0.0)
        hazard = np.exp(shape[:, None] * np.log(reduced))
        above = np.log(np.maximum(-np.expm1(-hazard), _TINY))
    return -hazard, above


def _squared(x: Floats, location: Floats, scale: Floats, shape: Floats) -> Floats:
    """Anderson-Darling statistic of sorted samples x (rows, n)."""
    below, above = _log_probabilities(x, location, scale, shape)
    n = x.shape[1]
    odd = 2.0 * np.arange(1, n + 1) - 1.0
    return np.asarray(-n - np.einsum("ij,j->i", below + above[:, ::-1], odd) / n)
