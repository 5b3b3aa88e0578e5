"""Intervals for the end-point: a calibrated posterior (default) and the profile likelihood, batched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import is_whole
from ..errors import SettingError
from ._likelihood import MAX_SHAPE, Floats, Weights, corner, gumbel, terms
from ._search import profile_on_grid, summarise
from .outcome import FitOutcome
from .weibull import CHUNK_VALUES, RELEASED_CODE_PENALTY, TailFits, as_samples, fit, standardise

Method = Literal["posterior", "profile"]

# Prior (s c)^(-1/2) / scale with s = range / (location - min), and the part of the error 1 - level that each posterior
# tail gets. Chosen by simulation so that 95% intervals cover 93-98% for shapes 1 to 30 and 50 to 500 blocks; see
# docs/statistics.md. The shares add up to more than one because equal-tailed intervals of this prior cover too much.
S_POWER, C_POWER = -0.5, -0.5
LOWER_SHARE, UPPER_SHARE = 0.4, 0.9
BOUNDARY_SHARE = 2.0  # upper share where the estimate is the sample maximum, which then is the lower limit
COARSE, FINE = 30, 32  # points of the two grids in t
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
    method: Method = "posterior",
    looks: int = 1,
) -> Intervals:
    """Interval for the end-point of each sample that covers the true one with probability `level`.

    "posterior": quantiles of p(location | x), scale and shape integrated out, prior and tails calibrated by simulation.
    "profile": all locations whose profile log-likelihood is within chi2(level) / 2 of the largest; too short for shapes
    below 2. With `looks` > 1 the interval may be computed at that many stages of the same growing sample, and keeps its
    level when sampling stops because it became narrow.

    maxima: (..., blocks). `low` is never below the sample maximum; `fits.location` always lies inside. Rows without a
    fit: constant, zero and atom give low = high = maximum, too_few gives an infinite `high`, not_finite gives NaN.

    >>> import numpy as np
    >>> maxima = 2.0 - np.random.default_rng(0).weibull(3.0, size=(4, 500))
    >>> limits = interval(maxima)
    >>> bool(np.all((limits.low < 2.0) & (2.0 < limits.high)))
    True
    """
    if not 0.0 < level < 1.0:
        raise SettingError(f"level {level!r} must lie between 0 and 1, such as 0.95")
    if method not in ("posterior", "profile"):
        raise SettingError(f"method {method!r} is unknown; use 'posterior' or 'profile'")
    if not is_whole(looks) or looks < 1:
        raise SettingError(
            f"looks {looks!r} must be a whole number from 1, the number of times the interval is looked at"
        )
    x = as_samples(maxima)
    fits = fit(x, RELEASED_CODE_PENALTY) if fits is None else fits
    if x.shape[:-1] != fits.location.shape:
        raise SettingError(f"maxima {x.shape} and fits {fits.location.shape} do not belong together; pass fit(maxima)")
    # Looks at one growing sample are strongly correlated: dividing the error by looks is far too careful, and by its
    # root keeps the level: 94% in the worst case of five looks (benchmarks/tails.py), more in trials with 2 to 16.
    error = (1.0 - level) / np.sqrt(looks)
    rows, n = x.reshape(-1, x.shape[-1]), x.shape[-1]
    low, high = fits.sample_max.ravel().copy(), fits.sample_max.ravel().copy()
    outcome, location = fits.outcome.ravel(), fits.location.ravel()
    low[outcome == FitOutcome.NOT_FINITE] = high[outcome == FitOutcome.NOT_FINITE] = np.nan
    high[outcome == FitOutcome.TOO_FEW] = np.inf
    lawful = np.flatnonzero([o.has_law for o in outcome])
    step = max(1, CHUNK_VALUES // n)
    for start in range(0, len(lawful), step):
        part = lawful[start : start + step]
        low[part], high[part] = _chunk(rows[part], location[part], error, method)
    high[outcome == FitOutcome.NO_ENDPOINT] = np.inf
    low = np.maximum(low, np.where(np.isnan(low), np.nan, fits.sample_max.ravel()))
    return Intervals(low.reshape(x.shape[:-1]), high.reshape(x.shape[:-1]), level, method)


def _chunk(x: Floats, location: Floats, error: float, method: Method) -> tuple[Floats, Floats]:
    standard = standardise(np.sort(x, axis=1))
    weights = Weights.equal(x.shape[1])
    with np.errstate(divide="ignore", over="ignore"):
        offset = np.ldexp(location, -standard.exponent) - standard.top
        estimate = np.log(np.maximum(offset, 0.0) / standard.range)
    short, short_weights = summarise(standard.w, weights)
    if method == "posterior":
        t_low, t_high = _posterior(short, short_weights, estimate, error)
    else:
        t_low, t_high = _profile(short, short_weights, error)
    t_low, t_high = np.minimum(t_low, estimate), np.maximum(t_high, estimate)
    with np.errstate(over="ignore"):
        low = np.ldexp(standard.top + standard.range * np.exp(t_low), standard.exponent)
        high = np.ldexp(standard.top + standard.range * np.exp(t_high), standard.exponent)
    return np.minimum(low, location), np.maximum(high, location)


def _curve(w: Floats, weights: Weights, prior: bool, depth: float) -> tuple[Floats, Floats]:
    """Positions t (rows, FINE) and the log posterior density of t there (or n times the profile likelihood)."""
    coarse = np.linspace(-np.log(weights.blocks) - 9.0, 13.0, COARSE)
    values, shapes = profile_on_grid(w, weights, coarse, 0.0)
    log_k = np.log(shapes) - np.log1p(np.exp(coarse))
    density = weights.blocks * values + (_log_prior(coarse, log_k) if prior else 0.0)
    t = np.broadcast_to(coarse, density.shape)
    active = np.arange(len(w))
    fine, found = np.empty((len(w), FINE)), np.empty((len(w), FINE))
    for _ in range(6):  # once is enough up to a few thousand blocks; then the peak is narrower than the coarse grid
        t, log_k, density = _zoom(w[active], weights, t, log_k, density, prior, depth)
        fine[active], found[active] = t, density
        narrow = np.count_nonzero(density >= density.max(axis=1, keepdims=True) - depth, axis=1) < FINE // 4
        if not narrow.any():
            break
        active, t, log_k, density = active[narrow], t[narrow], log_k[narrow], density[narrow]
    return fine, found


def _zoom(
    w: Floats, weights: Weights, t: Floats, log_k: Floats, density: Floats, prior: bool, depth: float
) -> tuple[Floats, Floats, Floats]:
    """Evaluate anew on FINE positions that span those within `depth` of the largest value."""
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

    Around the given shape the log-likelihood is quadratic in x = log c, value + g x - h x^2 / 2 for c >= 1; its maximum
    and its integral are exact for that. Returns the improved log k and the log density.
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


def _posterior(w: Floats, weights: Weights, estimate: Floats, error: float) -> tuple[Floats, Floats]:
    t, density = _curve(w, weights, True, DEPTH)
    height = np.exp(density - density.max(axis=1, keepdims=True))
    width = t[:, 1:2] - t[:, :1]
    cells = 0.5 * width * (height[:, 1:] + height[:, :-1])
    below = height[:, :1]  # the density of t falls like exp(t) towards the sample maximum ...
    mass = np.concatenate([below, below + np.cumsum(cells, axis=1)], axis=1)
    mass /= mass[:, -1:] + height[:, -1:]  # ... and like exp(-t) towards infinity
    upper = np.where(np.isneginf(estimate), BOUNDARY_SHARE, UPPER_SHARE) * error
    return _quantile(t, mass, np.full(len(w), LOWER_SHARE * error)), _quantile(t, mass, 1.0 - upper)


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
    t, height = _curve(w, weights, False, drop + 1.0)
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
