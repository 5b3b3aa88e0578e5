"""Maximum likelihood for the reverse Weibull law of block maxima: deterministic, and batched over samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cleverscore.errors import SettingError
from cleverscore.validation import is_number, is_whole

from ._likelihood import Floats, Weights, corner, gumbel
from ._search import find_peak, summarise
from .outcome import FitOutcome

# The default everywhere: the authors' program, and so the paper's numbers, subtract 0.01 (scale / range)^2 from the
# log-likelihood.
PENALTY = 0.01

MIN_BLOCKS, MIN_DISTINCT = 10, 5  # fewest maxima, and fewest distinct ones, for a fit of three parameters
CONSTANT_RANGE = 1e-12  # maxima whose range, relative to their size, is at most this count as equal
MAX_REPORTED_SHAPE = 1000.0  # a law with a larger shape is nearly a Gumbel law; the authors drop such fits too
# The Gumbel log-likelihood per block of the summary of a sample is nearer than this to that of the whole sample.
GUMBEL_MARGIN = 0.02
CHUNK_VALUES = 1 << 18  # values worked on at once: about ten arrays of 2 MB, whatever the number of rows


# The version of fits and intervals, under which runs store them. Change it whenever the same maxima give another fit or
# interval.
ESTIMATOR = "2"


@dataclass(frozen=True)
class TailFit:
    """The fit of one sample; see `TailFits` for the fields."""

    location: float
    scale: float
    shape: float
    log_likelihood: float
    sample_max: float
    outcome: FitOutcome
    penalty: float
    blocks: int
    ad_statistic: float = math.nan
    ad_pvalue: float = math.nan
    drift: float = math.nan


@dataclass(frozen=True)
class TailFits:
    """Fits of F(x) = exp(-((location - x) / scale)^shape); arrays have the leading shape of the maxima.

    location, scale, shape      the parameters of the law; `location` is the estimated end-point.
    log_likelihood              of the sample, without the penalty.
    sample_max                  the largest value of the sample.
    outcome                     how the fit ended, a `FitOutcome`.
    penalty                     the weight of the penalty that all samples were fitted with.
    blocks                      the number of block maxima in each sample.
    ad_statistic, ad_pvalue     Anderson-Darling test of the law, see `anderson_darling`; NaN in results of `law`.
    drift                       relative growth of the end-point per doubling of the block size, see `stability`; NaN in
                                results of `law`.

    Where `outcome.has_law` is false, `scale`, `shape` and `log_likelihood` are NaN and `location` is the sample maximum
    (NaN for `not_finite`).
    """

    location: Floats
    scale: Floats
    shape: Floats
    log_likelihood: Floats
    sample_max: Floats
    outcome: NDArray[np.object_]
    penalty: float
    blocks: int
    ad_statistic: Floats
    ad_pvalue: Floats
    drift: Floats

    def __getitem__(self, index: Any) -> TailFit:
        """Return the fit of one sample; the index must pick a single row."""
        outcome = self.outcome[index]
        if not isinstance(outcome, FitOutcome):
            raise SettingError(f"index {index!r} picks several fits; give one integer per leading axis of the maxima")
        return TailFit(
            float(self.location[index]),
            float(self.scale[index]),
            float(self.shape[index]),
            float(self.log_likelihood[index]),
            float(self.sample_max[index]),
            outcome,
            self.penalty,
            self.blocks,
            float(self.ad_statistic[index]),
            float(self.ad_pvalue[index]),
            float(self.drift[index]),
        )

    def __len__(self) -> int:
        """Return the length of the first leading axis."""
        return len(self.location)

    def __iter__(self) -> Iterator[TailFit]:
        """Go through the fits of a one-dimensional batch."""
        return (self[i] for i in range(len(self)))


def law(maxima: ArrayLike, penalty: float = PENALTY) -> TailFits:
    """Fit a reverse Weibull law with shape >= 1 to each sample of block maxima, without the tests that `fit` makes.

    Maximises sum_i log f(x_i; location, scale, shape) - penalty * (scale / range)^2 over location >= max(x), where f is
    the density of the law, x a sample and range = max(x) - min(x). For callers that need end-points only: it takes a
    third of the time of `fit`. A fit that fails raises no exception; `outcome` says how it ended.

    maxima: (..., blocks), any real dtype, computed in float64. Returns arrays of the leading shape.
    """
    x = as_samples(maxima)
    penalty = checked_penalty(penalty)
    rows, n = x.reshape(-1, x.shape[-1]), x.shape[-1]
    fits = fit_rows(rows, Weights.equal(n), penalty, n)
    return reshaped(fits, x.shape[:-1])


def as_samples(maxima: ArrayLike) -> Floats:
    """Return the maxima as float64 samples (..., blocks), or raise a SettingError if they are not such an array."""
    try:
        x = np.asarray(maxima)
    except (TypeError, ValueError, RuntimeError) as error:  # errors of numpy, or of torch for its tensors
        raise SettingError(
            f"maxima are no array of numbers ({error}); give every sample the same number of blocks, or fit them one "
            "by one"
        ) from None
    if x.dtype.kind not in "fiub":
        raise SettingError(f"maxima have dtype {x.dtype}; give real numbers")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise SettingError(f"maxima of shape {x.shape} hold no blocks; the last axis must hold at least one")
    return np.asarray(x, dtype=np.float64)


def checked_penalty(penalty: float) -> float:
    """Return the penalty as a float, or raise a SettingError if it is not a finite number >= 0."""
    if not is_number(penalty) or not (np.isfinite(penalty) and penalty >= 0.0):
        raise SettingError(f"penalty {penalty!r} must be a finite number >= 0; use 0 for plain maximum likelihood")
    return float(penalty)


def checked_fits(fits: TailFits, samples: Floats) -> None:
    """Raise a SettingError unless `fits` has one fit for each of these samples (..., blocks)."""
    if not isinstance(fits, TailFits):
        raise SettingError(f"fits are a {type(fits).__name__}; pass fit(maxima)")
    if samples.shape[:-1] != fits.location.shape:
        raise SettingError(
            f"maxima {samples.shape} and fits {fits.location.shape} do not belong together; pass fit(maxima)"
        )


def checked_block_size(block_size: int) -> int:
    """Return the block size as an int, or raise a SettingError if it is not a whole number from 1."""
    if not is_whole(block_size) or block_size < 1:
        raise SettingError(f"block_size {block_size!r} must be a whole number from 1, the norms that a maximum is of")
    return int(block_size)


def reshaped(fits: TailFits, shape: tuple[int, ...]) -> TailFits:
    """`fits` with all arrays reshaped to `shape`."""
    return TailFits(
        fits.location.reshape(shape),
        fits.scale.reshape(shape),
        fits.shape.reshape(shape),
        fits.log_likelihood.reshape(shape),
        fits.sample_max.reshape(shape),
        fits.outcome.reshape(shape),
        fits.penalty,
        fits.blocks,
        fits.ad_statistic.reshape(shape),
        fits.ad_pvalue.reshape(shape),
        fits.drift.reshape(shape),
    )


def fit_rows(x: Floats, weights: Weights, penalty: float, blocks: int) -> TailFits:
    """Fit every row of x (rows, n), in chunks that keep the working memory constant.

    weights     of the values in the likelihood, largest value first.
    blocks      the number of block maxima that the result is to state.
    """
    rows, n = x.shape
    columns = [np.full(rows, np.nan) for _ in range(5)]
    outcome = np.empty(rows, dtype=object)
    step = max(1, CHUNK_VALUES // n)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        *numbers, outcome[part] = _fit_chunk(x[part], weights, penalty)
        for column, values in zip(columns, numbers, strict=True):
            column[part] = values
    location, scale, shape, log_likelihood, sample_max = columns
    unjudged = (np.full(rows, np.nan) for _ in range(3))
    return TailFits(location, scale, shape, log_likelihood, sample_max, outcome, penalty, blocks, *unjudged)


@dataclass(frozen=True)
class Standard:
    """Samples x rescaled to w = (max - x) / range, the largest x first, with the numbers to undo the rescaling.

    w           (rows, n), ascending in each row, from 0 to 1.
    exponent    (rows,), the power of two by which each row was divided first, which is exact.
    top, range  (rows,), maximum and range of the rows after that division.
    """

    w: Floats
    exponent: NDArray[np.intp]
    top: Floats
    range: Floats


def standardise(ordered: Floats) -> Standard:
    """Rescale rows (rows, n) that are sorted ascending, finite and not constant; nothing overflows for any float64."""
    ordered = ordered[:, ::-1]
    exponent = np.frexp(np.maximum(np.abs(ordered[:, 0]), np.abs(ordered[:, -1])))[1]
    ordered = np.ldexp(ordered, -exponent[:, None])
    top = ordered[:, 0].copy()
    extent = top - ordered[:, -1]
    w = (top[:, None] - ordered) / extent[:, None]
    return Standard(w, exponent.astype(np.intp), top, extent)


def degenerate(ordered: Floats) -> NDArray[np.object_]:
    """For every row, its outcome if it needs no fit, else None: (rows,); rows are sorted ascending, NaN last."""
    n = ordered.shape[1]
    found = np.full(len(ordered), None, dtype=object)
    top, bottom = ordered[:, -1], ordered[:, 0]
    finite = np.isfinite(top) & np.isfinite(bottom)
    size = np.maximum(np.abs(top), np.abs(bottom))
    with np.errstate(over="ignore", invalid="ignore"):
        extent = top - bottom
        distinct = 1 + np.count_nonzero(np.diff(ordered, axis=1) > 0.0, axis=1)
        # Norms are float32 numbers: values that differ from the maximum in their last bits only count as equal to it,
        # if such a difference is tiny compared with the range of the sample.
        slack = np.minimum(4.0 * np.finfo(np.float32).eps * size, 1e-6 * extent)
        repeats = np.count_nonzero(ordered >= (top - slack)[:, None], axis=1)
    found[distinct < MIN_DISTINCT] = FitOutcome.TOO_FEW
    found[repeats >= max(3, 0.02 * n)] = FitOutcome.TIED_MAXIMA
    if n < MIN_BLOCKS:
        found[:] = FitOutcome.TOO_FEW
    if n > 1:
        found[extent <= CONSTANT_RANGE * size] = FitOutcome.CONSTANT
    found[size == 0.0] = FitOutcome.ZERO
    found[~finite] = FitOutcome.NOT_FINITE
    return found


def _fit_chunk(x: Floats, weights: Weights, penalty: float) -> tuple[Any, ...]:
    """Location, scale, shape, log-likelihood, sample maximum and outcome of each row of x: (rows,) each."""
    ordered = np.sort(x, axis=1)
    outcome = degenerate(ordered)
    sample_max = ordered[:, -1].copy()
    location = np.where(outcome == FitOutcome.NOT_FINITE, np.nan, sample_max)
    scale, shape, log_likelihood = (np.full(len(x), np.nan) for _ in range(3))
    todo = np.flatnonzero([o is None for o in outcome])
    if len(todo):
        numbers = _fit_regular(ordered[todo], weights, penalty)
        location[todo], scale[todo], shape[todo], log_likelihood[todo], outcome[todo] = numbers
        location[todo] = np.maximum(location[todo], sample_max[todo])  # rounding must not put it below the data
    return location, scale, shape, log_likelihood, sample_max, outcome


def _fit_regular(ordered: Floats, weights: Weights, penalty: float) -> tuple[Any, ...]:
    """Location, scale, shape, log-likelihood and outcome of rows that need a fit, sorted ascending: (rows,) each."""
    standard = standardise(ordered)
    w = standard.w
    peak = find_peak(w, weights, penalty)
    t, shape, beta, value = peak.t, peak.shape, peak.log_scale, peak.value
    edge, edge_beta = corner(w, weights, penalty)
    at_corner = edge >= value

    plain = plain_value(beta, value, weights.per_block(penalty))
    endless = _without_end(w, weights, penalty, np.where(at_corner, edge, plain), np.where(at_corner, 1.0, shape))
    if penalty == 0.0 and endless.any():
        again = np.flatnonzero(endless)
        held = find_peak(w[again], weights, PENALTY)
        t[again], shape[again], beta[again] = held.t, held.shape, held.log_scale
        plain[again] = plain_value(held.log_scale, held.value, weights.per_block(PENALTY))
    at_corner &= ~endless

    t = np.where(at_corner, -np.inf, t)
    shape = np.where(at_corner, 1.0, shape)
    beta = np.where(at_corner, edge_beta, beta)
    plain = np.where(at_corner, plain_value(edge_beta, edge, weights.per_block(penalty)), plain)
    outcome = np.empty(len(w), dtype=object)  # np.full would store a plain str
    outcome[:] = FitOutcome.OK
    outcome[endless] = FitOutcome.NO_ENDPOINT
    outcome[at_corner] = FitOutcome.SHAPE_AT_ONE
    with np.errstate(over="ignore", under="ignore"):
        location = np.ldexp(standard.top + standard.range * np.exp(t), standard.exponent)
        scale = np.ldexp(standard.range * np.exp(beta), standard.exponent)
    biggest = np.finfo(np.float64).max
    log_range = np.log(standard.range) + standard.exponent * np.log(2.0)
    log_likelihood = weights.blocks * (plain - log_range)
    return np.minimum(location, biggest), np.minimum(scale, biggest), shape, log_likelihood, outcome


def _without_end(w: Floats, weights: Weights, penalty: float, plain: Floats, shape: Floats) -> NDArray[np.bool_]:
    """Which rows have the outcome `no_endpoint`: (rows,).

    These are the rows that a Gumbel law fits at least as well as the best law with an end-point, or whose shape is
    above MAX_REPORTED_SHAPE. Both laws are compared without a penalty; `plain` is the log-likelihood per block of the
    fitted law without its penalty.
    """
    limit = gumbel(*summarise(w, weights))
    near = np.flatnonzero(limit > plain - GUMBEL_MARGIN)
    limit[near] = gumbel(w[near], weights)
    endless = (limit >= plain) | (shape > MAX_REPORTED_SHAPE)
    # The penalty lowers the likelihood of the fitted law, so rows found so far are compared with a fit without penalty.
    if penalty > 0.0 and endless.any():
        asked = np.flatnonzero(endless)
        free, edge = find_peak(w[asked], weights, 0.0), corner(w[asked], weights, 0.0)[0]
        far = (free.value > edge) & (free.shape > MAX_REPORTED_SHAPE)
        endless[asked] = (limit[asked] >= np.maximum(free.value, edge)) | far
    return np.asarray(endless)


def plain_value(beta: Floats, value: Floats, per_block: float) -> Floats:
    """Log-likelihood per block without the penalty, from the penalised objective `value` and the log scale `beta`."""
    return value + per_block * np.exp(2.0 * beta)
