"""Intervals for the end-point: posteriors calibrated by simulation and the profile likelihood, batched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cleverscore.errors import SettingError
from cleverscore.validation import is_number, is_whole

from ._likelihood import MAX_LOG_SHAPE, MAX_SHAPE, Floats, Weights, corner, gumbel, terms
from ._search import profile_on_grid, summarise
from .convergence import PAPER_BLOCK_SIZE, slow_stretch
from .fitting import fit
from .outcome import FitOutcome
from .weibull import CHUNK_VALUES, TailFits, as_samples, checked_block_size, checked_fits, standardise

Method = Literal["penultimate", "posterior", "profile"]

# Prior (s c)^(-1/2) / scale with s = range / (location - min), and the part of the error 1 - level that each posterior
# tail gets: below, above, above where the estimate is the sample maximum, which then is the lower limit, and below
# where the upper limit is infinite. Chosen by simulation so that 95% intervals cover 93-97% of exact laws, see
# docs/statistics.md; they need not add up to one, because equal-tailed intervals of this prior cover too much.
S_POWER, C_POWER = -0.5, -0.5
SHARES = {"posterior": (0.4, 0.9, 2.0, 0.4), "penultimate": (0.7, 0.2, 2.0, 1.0)}
COARSE, FINE = 30, 32  # points of the two grids in t
TRUSTED = (FitOutcome.POOR, FitOutcome.DRIFTING)
DEPTH = 9.0  # the fine grid spans the positions whose log density is within this of the largest


@dataclass(frozen=True)
class Intervals:
    """Limits for the end-point, arrays of the leading shape of the maxima; `high` may be infinite."""

    low: Floats
    high: Floats
    level: float
    method: str


def interval(
    maxima: ArrayLike,
    fits: TailFits | None = None,
    *,
    level: float = 0.95,
    method: Method = "penultimate",
    checkpoints: int = 1,
    block_size: int = PAPER_BLOCK_SIZE,
) -> Intervals:
    """Interval for the end-point of each sample that contains the true end-point with probability `level`.

    "penultimate": quantiles of p(location | x) with scale and shape integrated out; prior and tail probabilities were
    calibrated by simulation. The upper limit is then moved out far enough for norms that are linear on a ball, whose
    maxima converge slowly to their law (how slowly depends on `block_size`); it is infinite where Gaussian norms would
    give the same maxima. "posterior": the same quantiles without moving the upper limit, for maxima that follow the law
    exactly. "profile": all locations whose profile log-likelihood is within chi2(level) / 2 of the largest; too short
    for shapes below 2. With `checkpoints` > 1 the interval is wider: it keeps its level if it is computed at that many
    stages of a growing sample and sampling stops as soon as it is narrow.

    maxima: (..., blocks). `low` is never below the sample maximum, and `fits.location` always lies inside the interval.
    Rows with an unreliable fit, `no_endpoint`, `drifting`, `poor` and `too_few`, get the interval from the sample
    maximum to infinity, which holds for any distribution. Constant, zero and tied maxima give low = high = maximum,
    not_finite gives NaN.

    >>> import numpy as np
    >>> maxima = 2.0 - np.random.default_rng(0).weibull(3.0, size=(4, 500))
    >>> limits = interval(maxima)
    >>> bool(np.all((limits.low < 2.0) & (2.0 < limits.high)))
    True
    """
    if not is_number(level) or not 0.0 < level < 1.0:
        raise SettingError(f"level {level!r} must lie between 0 and 1, such as 0.95")
    if method not in ("penultimate", "posterior", "profile"):
        raise SettingError(f"method {method!r} is unknown; use 'penultimate', 'posterior' or 'profile'")
    block_size = checked_block_size(block_size)
    if not is_whole(checkpoints) or checkpoints < 1:
        raise SettingError(
            f"checkpoints={checkpoints!r} must be a whole number from 1, the number of times the interval is computed"
        )
    x = as_samples(maxima)
    fits = fit(x, block_size=block_size) if fits is None else fits
    checked_fits(fits, x)
    # Checkpoints of one growing sample are strongly correlated: dividing the error by their number is far too careful,
    # and by its root keeps the level: 94% in the worst case of five (benchmarks/tails.py), more in trials with 2 to 16.
    error = (1.0 - level) / np.sqrt(checkpoints)
    rows, n = x.reshape(-1, x.shape[-1]), x.shape[-1]
    low, high = fits.sample_max.ravel().copy(), fits.sample_max.ravel().copy()
    outcome, location = fits.outcome.ravel(), fits.location.ravel()
    low[outcome == FitOutcome.NOT_FINITE] = high[outcome == FitOutcome.NOT_FINITE] = np.nan
    # The two methods that take the law for granted do so where it is doubtful, too.
    doubtful = [o.bounded_below_only and (method == "penultimate" or o not in TRUSTED) for o in outcome]
    high[doubtful] = np.inf
    lawful = np.flatnonzero([o.has_law and not doubt for o, doubt in zip(outcome, doubtful, strict=True)])
    step = max(1, CHUNK_VALUES // n)
    for start in range(0, len(lawful), step):
        part = lawful[start : start + step]
        low[part], high[part] = _chunk(rows[part], location[part], error, method, block_size)
    low = np.maximum(low, np.where(np.isnan(low), np.nan, fits.sample_max.ravel()))
    return Intervals(low.reshape(x.shape[:-1]), high.reshape(x.shape[:-1]), level, method)


def _chunk(x: Floats, location: Floats, error: float, method: Method, block_size: int) -> tuple[Floats, Floats]:
    standard = standardise(np.sort(x, axis=1))
    weights = Weights.equal(x.shape[1])
    with np.errstate(divide="ignore", over="ignore"):
        offset = np.ldexp(location, -standard.exponent) - standard.top
        estimate = np.log(np.maximum(offset, 0.0) / standard.range)
    short, short_weights = summarise(standard.w, weights)
    if method == "profile":
        t_low, t_high = _profile(short, short_weights, error)
    else:
        size = block_size if method == "penultimate" else None
        t_low, t_high, stretch = _posterior(short, short_weights, estimate, error, SHARES[method], size)
    # The penalty can put the estimate outside; it makes no limit: the sample maximum and infinity always hold.
    t_low, t_high = np.where(t_low > estimate, -np.inf, t_low), np.where(t_high < estimate, np.inf, t_high)
    with np.errstate(over="ignore"):
        above_low, above_high = np.exp(t_low), np.exp(t_high)
        if method == "penultimate":
            mode = np.quantile(standard.w, 1.0 - np.exp(-1.0), axis=1)  # F(location - scale) = exp(-1)
            above_high = (above_high + mode) * stretch - mode
        low = np.ldexp(standard.top + standard.range * above_low, standard.exponent)
        high = np.ldexp(standard.top + standard.range * above_high, standard.exponent)
    return low, high


def _curve(w: Floats, weights: Weights, prior: bool, depth: float) -> tuple[Floats, Floats, Floats]:
    """Positions t (rows, FINE), the log posterior density of t there (or n times the profile likelihood), and log k."""
    coarse = np.linspace(-np.log(weights.blocks) - 9.0, 13.0, COARSE)
    values, shapes = profile_on_grid(w, weights, coarse, 0.0)
    log_k = np.log(shapes) - np.log1p(np.exp(coarse))
    density = weights.blocks * values + (_log_prior(coarse, log_k) if prior else 0.0)
    t = np.broadcast_to(coarse, density.shape)
    active = np.arange(len(w))
    fine, found, shapes = (np.empty((len(w), FINE)) for _ in range(3))
    for _ in range(6):  # once is enough up to a few thousand blocks; then the peak is narrower than the coarse grid
        t, log_k, density = _zoom(w[active], weights, t, log_k, density, prior, depth)
        fine[active], found[active], shapes[active] = t, density, log_k
        narrow = np.count_nonzero(density >= density.max(axis=1, keepdims=True) - depth, axis=1) < FINE // 4
        if not narrow.any():
            break
        active, t, log_k, density = active[narrow], t[narrow], log_k[narrow], density[narrow]
    return fine, found, shapes


def _zoom(
    w: Floats, weights: Weights, t: Floats, log_k: Floats, density: Floats, prior: bool, depth: float
) -> tuple[Floats, Floats, Floats]:
    """Evaluate on a finer grid (FINE points) over the positions whose values are within `depth` of the largest."""
    last_index = t.shape[1] - 1
    inside = density >= density.max(axis=1, keepdims=True) - depth
    first = np.maximum(np.argmax(inside, axis=1) - 1, 0)
    last = np.minimum(last_index + 1 - np.argmax(inside[:, ::-1], axis=1), last_index)
    rows = np.arange(len(t))
    start, end = t[rows, first], t[rows, last]
    fine = start[:, None] + (end - start)[:, None] * np.linspace(0.0, 1.0, FINE)
    place = (fine - t[:, :1]) / (t[:, 1:2] - t[:, :1])
    left = np.clip(place.astype(np.intp), 0, last_index - 1)
    share = place - left
    log_k = np.take_along_axis(log_k, left, 1) * (1.0 - share) + np.take_along_axis(log_k, left + 1, 1) * share
    return fine, *_integrate(w, weights, fine, log_k, prior)


def _integrate(w: Floats, weights: Weights, t: Floats, log_k: Floats, prior: bool) -> tuple[Floats, Floats]:
    """Maximise over the shape (with `prior`: integrate it out) at positions t (rows, points), from log k nearby.

    Around the given shape the log-likelihood is quadratic in x = log c, value + g x - h x^2 / 2 for c >= 1; the maximum
    and the integral of this quadratic are exact. Returns the improved log k and the log density.
    """
    from scipy.special import log_ndtr  # slow to import, and those who only read results need none

    n = weights.blocks
    density, better = np.empty(t.shape), np.empty(t.shape)
    for i in range(t.shape[1]):
        stretch = np.logaddexp(0.0, t[:, i])
        c = np.clip(np.exp(log_k[:, i] + stretch), 1.0, MAX_SHAPE)
        now = terms(w, weights, t[:, i], c, 0.0, along_t=False)
        g, h = c * now.d_c, np.maximum(-c * c * now.d_cc, 1e-12)
        log_c = np.log(c)
        reach = log_c + np.clip(g / h, -2.0, 2.0)
        best = np.maximum(reach, 0.0)
        better[:, i] = best - stretch
        if prior:
            area = n * 0.5 * g * g / h - 0.5 * np.log(n * h) + log_ndtr((log_c + g / h) * np.sqrt(n * h))
            density[:, i] = n * now.value + area + _log_prior(t[:, i], better[:, i])
        else:
            density[:, i] = n * (now.value + (best - log_c) * (g - 0.5 * h * (best - log_c)))
    return better, density


def _log_prior(t: Floats, log_k: Floats) -> Floats:
    """Log prior of t and log c, with the factor 1 / c that integrating the scale out leaves.

    s = 1 / (1 + exp(t)), d s = s (1 - s) d t, d c = c d log c.
    """
    stretch = np.logaddexp(0.0, t)
    return np.asarray(C_POWER * (log_k + stretch) - (S_POWER + 1.0) * stretch + t - stretch)


def _posterior(
    w: Floats,
    weights: Weights,
    estimate: Floats,
    error: float,
    shares: tuple[float, float, float, float],
    block_size: int | None,
) -> tuple[Floats, Floats, Floats]:
    """Positions t of both limits, and the factor by which the upper one is moved away from the mode."""
    below_share, above_share, boundary_share, alone_share = shares
    t, density, log_k = _curve(w, weights, True, DEPTH)
    height = np.exp(density - density.max(axis=1, keepdims=True))
    width = t[:, 1:2] - t[:, :1]
    cells = 0.5 * width * (height[:, 1:] + height[:, :-1])
    below = height[:, :1]  # the density of t falls like exp(t) towards the sample maximum ...
    mass = np.concatenate([below, below + np.cumsum(cells, axis=1)], axis=1)
    mass /= mass[:, -1:] + height[:, -1:]  # ... and like exp(-t) towards infinity
    high = _quantile(t, mass, 1.0 - np.where(np.isneginf(estimate), boundary_share, above_share) * error)
    stretch = np.ones(len(w))
    if block_size is not None:
        place = np.clip((high - t[:, 0]) / width[:, 0], 0.0, t.shape[1] - 1.001)
        rows, left = np.arange(len(w)), place.astype(np.intp)
        log_k_high = log_k[rows, left] + (place - left) * (log_k[rows, left + 1] - log_k[rows, left])
        log_shape = np.clip(log_k_high + np.logaddexp(0.0, high), 0.0, MAX_LOG_SHAPE)
        stretch = slow_stretch(np.exp(log_shape), block_size)
    return _quantile(t, mass, np.where(np.isinf(stretch), alone_share, below_share) * error), high, stretch


def _quantile(t: Floats, mass: Floats, wanted: Floats) -> Floats:
    """Position where the distribution function `mass` (rows, points) reaches `wanted` (rows,)."""
    at = np.clip(np.count_nonzero(mass < wanted[:, None], axis=1), 1, t.shape[1] - 1)
    rows = np.arange(len(t))
    m0, m1 = mass[rows, at - 1], mass[rows, at]
    share = np.clip((wanted - m0) / np.maximum(m1 - m0, 1e-300), 0.0, 1.0)
    inside = t[rows, at - 1] + share * (t[rows, at] - t[rows, at - 1])
    first, last = mass[:, 0], mass[:, -1]
    with np.errstate(divide="ignore"):
        before = t[:, 0] + np.log(wanted / np.maximum(first, 1e-300))
        after = t[:, -1] + np.log(np.maximum(1.0 - last, 1e-300) / np.maximum(1.0 - wanted, 1e-300))
    return np.where(wanted < first, before, np.where(wanted > last, after, inside))


def _profile(w: Floats, weights: Weights, error: float) -> tuple[Floats, Floats]:
    from scipy.special import chdtri  # slow to import, and those who only read results need none

    drop = 0.5 * float(chdtri(1, error))
    t, height, _ = _curve(w, weights, False, drop + 1.0)
    edge, limit = weights.blocks * corner(w, weights, 0.0)[0], weights.blocks * gumbel(w, weights)
    floor = np.maximum(np.maximum(height.max(axis=1), edge), limit) - drop
    above = height >= floor[:, None]
    some = above.any(axis=1)
    rows = np.arange(len(t))
    first, last = np.argmax(above, axis=1), t.shape[1] - 1 - np.argmax(above[:, ::-1], axis=1)

    def crossing(outside: NDArray[np.intp], inner: NDArray[np.intp]) -> Floats:
        rise = height[rows, inner] - height[rows, outside]
        share = np.clip((floor - height[rows, outside]) / np.where(rise > 0.0, rise, 1.0), 0.0, 1.0)
        return np.asarray(t[rows, outside] + share * (t[rows, inner] - t[rows, outside]))

    low = np.where(some, crossing(np.maximum(first - 1, 0), first), np.inf)
    high = np.where(some, crossing(np.minimum(last + 1, t.shape[1] - 1), last), -np.inf)
    return np.where(edge >= floor, -np.inf, low), np.where(limit >= floor, np.inf, high)
