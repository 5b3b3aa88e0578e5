"""Intervals for the end-point: from posteriors calibrated by simulation, or from the profile likelihood; batched."""

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

# The prior is s^S_POWER c^C_POWER / scale, with the shape c and s = range / (location - min). SHARES says which part of
# the error 1 - level the tails of the posterior get: below; above; above where the estimate is the sample maximum,
# which then is the lower limit; and below where the upper limit is infinite. All were chosen by simulation so that 95%
# intervals cover the end-point of 93-97% of samples from exact laws, see docs/statistics.md. The shares below and above
# need not add up to one, because intervals with half of the error in each tail cover too much with this prior.
S_POWER, C_POWER = -0.5, -0.5
SHARES = {"posterior": (0.4, 0.9, 2.0, 0.4), "penultimate": (0.7, 0.2, 2.0, 1.0)}
COARSE, FINE = 30, 32  # points of the two grids in t = log((location - max) / range)
TRUSTED = (FitOutcome.POOR, FitOutcome.DRIFTING)  # methods other than "penultimate" take their laws as right
DEPTH = 9.0  # the fine grid covers the positions whose log density is at most this much below the largest


@dataclass(frozen=True)
class Intervals:
    """Limits for the end-point, arrays of the leading shape of the maxima; `high` may be infinite.

    level       the probability with which an interval is to contain the end-point.
    method      the method of `interval` that computed them.
    """

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
    """For each sample, an interval that contains the true end-point with probability `level`.

    method="penultimate": quantiles of the posterior of the location, with scale and shape integrated out; prior and
    tail probabilities were calibrated by simulation. The upper limit is then moved out far enough for norms that are
    linear on a ball, whose maxima converge slowly to their law (how slowly depends on `block_size`, the number of norms
    per maximum); it is infinite where Gaussian norms would give the same maxima. "posterior": quantiles of the same
    posterior without moving the upper limit, for maxima that follow the law exactly; the tail probabilities were
    calibrated for this. "profile": all locations whose profile log-likelihood is below the largest by at most half the
    `level` quantile of the chi-square law with one degree of freedom; too short for shapes below 2. With more than one
    of `checkpoints` the interval is wider, so that it keeps its level if it is computed at that many stages of a
    growing sample and sampling stops as soon as it is narrow.

    maxima: (..., blocks). `fits` are `fit(maxima)` by default. `low` is never below the sample maximum, and
    `fits.location` always lies inside the interval. Rows with the outcome `no_endpoint` or `too_few`, and with
    method="penultimate" also `drifting` and `poor`, get the interval from the sample maximum to infinity, which holds
    for any distribution. Rows with constant, zero or tied maxima get low = high = sample maximum, and rows with
    `not_finite` get NaN.

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
    # Intervals at the checkpoints of one growing sample are strongly correlated. To divide the error by the number of
    # checkpoints would be far too careful. Divided by the root of the number, the error keeps the level: coverage was
    # 94% in the worst case with five checkpoints (benchmarks/tails.py), and more in trials with 2 to 16.
    error = (1.0 - level) / np.sqrt(checkpoints)
    rows, n = x.reshape(-1, x.shape[-1]), x.shape[-1]
    low, high = fits.sample_max.ravel().copy(), fits.sample_max.ravel().copy()
    outcome, location = fits.outcome.ravel(), fits.location.ravel()
    low[outcome == FitOutcome.NOT_FINITE] = high[outcome == FitOutcome.NOT_FINITE] = np.nan
    # "posterior" and "profile" assume that the maxima follow the law, also where a test rejected it (TRUSTED).
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
    """Both limits (rows,) for samples x (rows, blocks), which have a law with the end-point `location` (rows,)."""
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
    # The penalty can put the estimate outside the interval. The limit on that side then becomes the sample maximum (t =
    # -inf) or infinity, which always hold; the estimate itself is no limit, because it depends on the penalty.
    t_low, t_high = np.where(t_low > estimate, -np.inf, t_low), np.where(t_high < estimate, np.inf, t_high)
    with np.errstate(over="ignore"):
        above_low, above_high = np.exp(t_low), np.exp(t_high)
        if method == "penultimate":
            # (max - mode) / range, with the mode taken as location - scale, where F is exp(-1).
            mode = np.quantile(standard.w, 1.0 - np.exp(-1.0), axis=1)
            above_high = (above_high + mode) * stretch - mode
        low = np.ldexp(standard.top + standard.range * above_low, standard.exponent)
        high = np.ldexp(standard.top + standard.range * above_high, standard.exponent)
    return low, high


def _curve(w: Floats, weights: Weights, prior: bool, depth: float) -> tuple[Floats, Floats, Floats]:
    """Positions t, the log posterior density of t there, and log k = log(c / (1 + exp(t))) for the best shape c there.

    Three arrays (rows, FINE). Without `prior` the second one is the profile log-likelihood of the whole sample. The
    positions cover those at which it is at most `depth` below its largest value.
    """
    coarse = np.linspace(-np.log(weights.blocks) - 9.0, 13.0, COARSE)
    values, shapes = profile_on_grid(w, weights, coarse, 0.0)
    log_k = np.log(shapes) - np.log1p(np.exp(coarse))
    density = weights.blocks * values + (_log_prior(coarse, log_k) if prior else 0.0)
    t = np.broadcast_to(coarse, density.shape)
    active = np.arange(len(w))
    fine, found, shapes = (np.empty((len(w), FINE)) for _ in range(3))
    # Once is enough up to a few thousand blocks. With more, the peak is narrower than a step of the coarse grid.
    for _ in range(6):
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
    """Positions, log k and log density on a finer grid of FINE points: three arrays (rows, FINE).

    t, log_k and density (rows, points) are those of a coarser grid. The finer grid covers the positions of the coarser
    one whose density is at most `depth` below the largest, and one more on each side.
    """
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
    """Improve log k at positions t (rows, points), and return it with the log density there (rows, points).

    k = c / (1 + exp(t)) for a shape c. `log_k` holds rough values, interpolated from a coarser grid. Around the shape
    c0 that they give, the mean log-likelihood is approximated by the quadratic value + g x - h x^2 / 2, x = log c - log
    c0. Its maximum over c >= 1 (at most a step of 2 in x) gives the new log k. The log density is n times this maximum,
    n being the number of blocks; with `prior`, it is the log posterior density of t, with the quadratic integrated over
    c >= 1 (up to a constant).
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
    """Log of the prior density of (t, log c), times the factor 1 / c that integrating the scale out leaves.

    c = k (1 + exp(t)) is the shape. The prior is given for (s, c), s = 1 / (1 + exp(t)); |d s| = s (1 - s) d t and d c
    = c d log c.
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
    """Positions t of both limits, and the factor by which the upper one is to be moved away from the mode: (rows,).

    estimate    (rows,), the position t of the estimated end-point; -inf where it is the sample maximum.
    error       1 - level, allowing for checkpoints.
    shares      the parts of the error for the tails of the posterior, in the order of SHARES.
    block_size  the number of norms per maximum; None if the upper limit is not to be moved: the factor is then 1.
    """
    below_share, above_share, boundary_share, alone_share = shares
    t, density, log_k = _curve(w, weights, True, DEPTH)
    height = np.exp(density - density.max(axis=1, keepdims=True))
    width = t[:, 1:2] - t[:, :1]
    cells = 0.5 * width * (height[:, 1:] + height[:, :-1])
    # Beyond the grid, the density of t falls like exp(t) towards the sample maximum, and like exp(-t) towards infinity.
    # So its integral beyond each end is the density at this end.
    below = height[:, :1]
    mass = np.concatenate([below, below + np.cumsum(cells, axis=1)], axis=1)
    mass /= mass[:, -1:] + height[:, -1:]
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
    """Position (rows,) at which the distribution function `mass`, given at positions t (rows, points), is `wanted`.

    Beyond the grid, the density falls like exp(t) to the left and like exp(-t) to the right.
    """
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
    """Positions t (rows,) of both limits of the likelihood-ratio interval for rows w; -inf is the sample maximum."""
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
