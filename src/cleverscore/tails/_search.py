"""The maximum of the profile likelihood: a grid in t on a summary of each sample, then Newton on the full sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ._likelihood import MAX_LOG_SHAPE, MAX_SHAPE, Floats, Weights, newton_log_shape, terms

# The grid has end-points from exp(-8.5) / n to exp(7) = 1100 ranges above the sample maximum. Nearer ones are not
# needed: the corner (shape 1, location = sample maximum), which callers compare with the peak, loses less than 1e-3 of
# log-likelihood against them. Further ones have a shape above 1000, because near the Gumbel limit shape >= (location -
# min) / range.
NEAREST_OFFSET = 8.5
FARTHEST = 7.0
POINTS = 24
# The summary of a sample keeps so many of its largest and smallest values as they are, because the likelihood depends
# most on these, and puts the others into so many groups.
EXACT_TOP, EXACT_BOTTOM, GROUPS = 16, 6, 13


@dataclass(frozen=True)
class Peak:
    """The largest interior maximum found, one entry per row: position t, shape, log scale and objective per block.

    Interior means that the end-point lies above the sample maximum.
    """

    t: Floats
    shape: Floats
    log_scale: Floats
    value: Floats


def summarise(w: Floats, weights: Weights) -> tuple[Floats, Weights]:
    """Shorter rows with their weights: each group of neighbouring values becomes two values, mean -/+ deviation.

    w is (rows, n), ascending in each row. 500 values become 48, which makes the grid ten times cheaper. The smallest
    and largest values are kept exactly. For the others, sums of smooth functions have an error of the order of the
    third moment within a group. Rows with few values are returned unchanged.
    """
    n = w.shape[1]
    if n <= EXACT_TOP + EXACT_BOTTOM + 4 * GROUPS:
        return w, weights
    inner = slice(EXACT_TOP, n - EXACT_BOTTOM)
    middle = n - EXACT_TOP - EXACT_BOTTOM
    cosine = 0.5 - 0.5 * np.cos(np.pi * np.arange(GROUPS) / GROUPS)  # small groups towards both ends
    at = np.maximum((middle * cosine).round(), np.arange(GROUPS)).astype(np.intp)
    share = weights.density[inner]
    density = np.add.reduceat(share, at)
    mean = np.add.reduceat(w[:, inner] * share, at, axis=1) / density
    centred = w[:, inner] - np.repeat(mean, np.diff(np.append(at, middle)), axis=1)
    deviation = np.sqrt(np.add.reduceat(centred * centred * share, at, axis=1) / density)
    parts = [w[:, :EXACT_TOP], np.maximum(mean - deviation, 0.0), mean + deviation, w[:, n - EXACT_BOTTOM :]]

    def grouped(each: Floats) -> Floats:
        half = 0.5 * np.add.reduceat(each[inner], at)
        return np.concatenate([each[:EXACT_TOP], half, half, each[n - EXACT_BOTTOM :]])

    short = replace(weights, density=grouped(weights.density), hazard=grouped(weights.hazard))
    return np.concatenate(parts, axis=1), short


def find_peak(w: Floats, weights: Weights, penalty: float) -> Peak:
    """The largest interior maximum of the profile likelihood for each row of w (rows, n), ascending in each row."""
    short, short_weights = summarise(w, weights)
    grid = np.linspace(-np.log(max(weights.blocks, 2.0)) - NEAREST_OFFSET, FARTHEST, POINTS)
    step = grid[1] - grid[0]
    values, shapes = profile_on_grid(short, short_weights, grid, penalty)
    rows, best = np.arange(len(w)), np.argmax(values, axis=1)
    t, shape = grid[best], shapes[rows, best]
    if short is not w:
        near = maximize(short, short_weights, t, shape, 2.0 * step, penalty, tolerance=1e-2)
        t, shape = near.t, near.shape
    return maximize(w, weights, t, shape, 2.0 * step, penalty, tolerance=3e-5)


def profile_on_grid(w: Floats, weights: Weights, grid: Floats, penalty: float) -> tuple[Floats, Floats]:
    """About the profile likelihood per block, and the best shape >= 1, at every grid position t: two (rows, points).

    Goes from the farthest end-point to the nearest. k = shape / (1 + exp(t)) changes slowly, so one Newton step from
    the k extrapolated from the positions before is exact enough to rank the positions.
    """
    rows = len(w)
    values, shapes = np.empty((rows, len(grid))), np.empty((rows, len(grid)))
    log_k = start_log_k(w, weights)
    trend = np.zeros(rows)
    for i in range(len(grid) - 1, -1, -1):
        t = np.full(rows, grid[i])
        stretch = np.log1p(np.exp(grid[i]))
        log_c = np.clip(log_k + trend + stretch, 0.0, MAX_LOG_SHAPE)
        for _ in range(4 if i == len(grid) - 1 else 1):
            c = np.exp(log_c)
            now = terms(w, weights, t, c, penalty, along_t=False)
            log_c = np.clip(log_c + newton_log_shape(now, c), 0.0, MAX_LOG_SHAPE)
        # The value belongs to the shape before the last step; the step gains d_c^2 / (2 |d_cc|) to second order.
        gain = np.where(log_c > 0.0, 0.5 * now.d_c * now.d_c / np.maximum(-now.d_cc, 1e-300), 0.0)
        values[:, i] = now.value + np.minimum(gain, 0.1)
        shapes[:, i] = np.exp(log_c)
        if i < len(grid) - 1:
            trend = np.clip(log_c - stretch - log_k, -1.0, 1.0)
        log_k = log_c - stretch
    return values, shapes


def start_log_k(w: Floats, weights: Weights) -> Floats:
    """Estimate log k (rows,) near the Gumbel limit, where k = shape * range / (location - min) = pi / (sqrt(6) sd).

    sd is the standard deviation of w.
    """
    mean = np.einsum("ij,j->i", w, weights.density)
    variance = np.einsum("ij,ij,j->i", w, w, weights.density) - mean * mean
    return np.asarray(np.clip(0.2488 - 0.5 * np.log(np.maximum(variance, 1e-20)), 0.0, MAX_LOG_SHAPE))


def maximize(
    w: Floats, weights: Weights, t: Floats, shape: Floats, reach: float, penalty: float, *, tolerance: float
) -> Peak:
    """Move every row from (t, shape) to a stationary point of the profile likelihood within `reach` of t.

    Newton's method in t and log c together, c being the shape. t stays in a bracket, which shrinks by the sign of the
    profile's slope; where a Newton step leaves the bracket, t moves to its middle instead. A row ends when both steps
    are shorter than `tolerance`. This last step is also taken, so the remaining error is about the square of it.
    """
    low, high = t - reach, t + reach
    t, c = t.copy(), shape.copy()
    beta, value = np.empty(len(w)), np.empty(len(w))
    active = np.arange(len(w))
    for _ in range(60):
        now = terms(w[active] if len(active) < len(w) else w, weights, t[active], c[active], penalty)
        shape = c[active]
        value[active] = now.value
        pinned = (shape <= 1.0) & (now.d_c <= 0.0)
        inner = np.where(pinned, 0.0, newton_log_shape(now, shape))
        curve = np.minimum(now.d_cc, -1e-3 / (shape * shape))
        coupling = np.where(pinned, 0.0, now.d_ct / curve)
        slope = now.d_t - np.where(pinned, 0.0, coupling * now.d_c)
        bend = now.d_tt - coupling * now.d_ct
        # `slope` is near the slope of the profile only where the shape is nearly the best one for this t (`settled`).
        # Its sign is sure where the correction for the shape is small, too, or the shape is even nearer to the best.
        settled = np.abs(inner) < 0.1
        sure = settled & ((np.abs(coupling * now.d_c) <= 0.2 * np.abs(slope)) | (np.abs(inner) < 1e-5))
        here = t[active]
        low[active] = np.where(sure & (slope > 0.0), here, low[active])
        high[active] = np.where(sure & (slope < 0.0), here, high[active])
        newton = here - slope / np.where(bend < 0.0, bend, -1.0)
        usable = settled & (bend < 0.0) & (newton > low[active]) & (newton < high[active])
        halve = sure & ~usable
        there = np.where(usable, newton, np.where(halve, 0.5 * (low[active] + high[active]), here))
        move = there - here
        log_step = np.clip(inner - coupling * move / shape, -1.5, 1.5)
        t[active] = there
        c[active] = np.clip(shape * np.exp(log_step), 1.0, MAX_SHAPE)
        beta[active] = now.log_scale + now.log_scale_t * move + now.log_scale_c * (c[active] - shape)
        # On the edge c = 1 the objective falls with t, so for a row that is pinned there the corner is better.
        done = pinned | ((usable | halve) & (np.abs(move) < tolerance) & (np.abs(inner) < tolerance))
        active = active[~done]
        if not len(active):
            break
    return Peak(t, c, beta, value)
