"""The largest value of the profile likelihood: a grid in t on a summary of each sample, then Newton on all of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._likelihood import MAX_SHAPE, Floats, Weights, newton_log_shape, terms

# The end-point lies between exp(-3) / n ranges above the maximum (closer is the corner, which is compared apart) and
# exp(7) = 1100 ranges (further means a shape above 1000, since shape >= (location - min) / range near that limit).
NEAREST_OFFSET = 3.0
FARTHEST = 7.0
POINTS = 24
EXACT_TOP, EXACT_BOTTOM, MIDDLE = 16, 8, 40  # the summary keeps the ends, where the likelihood is sharp, as they are


@dataclass(frozen=True)
class Peak:
    """The best interior point found, one entry per row: position t, shape, log scale and objective per block."""

    t: Floats
    shape: Floats
    log_scale: Floats
    value: Floats


def grid_for(blocks: float) -> Floats:
    """Positions t = log((location - max) / range) at which the profile is first evaluated."""
    return np.linspace(-np.log(max(blocks, 2.0)) - NEAREST_OFFSET, FARTHEST, POINTS)


def summarise(w: Floats, weights: Weights) -> tuple[Floats, Weights]:
    """Average neighbouring values of samples whose rows are sorted with w ascending (largest norm first).

    500 values become 64, which makes the grid eight times cheaper; the ends stay exact.
    """
    n = w.shape[1]
    if n <= EXACT_TOP + EXACT_BOTTOM + MIDDLE:
        return w, weights
    middle = np.linspace(EXACT_TOP, n - EXACT_BOTTOM, MIDDLE + 1).round().astype(np.intp)[:-1]
    starts = np.concatenate([np.arange(EXACT_TOP), middle, np.arange(n - EXACT_BOTTOM, n)])
    density = np.add.reduceat(weights.density, starts)
    hazard = np.add.reduceat(weights.hazard, starts)
    means = np.add.reduceat(w * weights.density, starts, axis=1) / density
    return means, Weights(density, hazard, weights.blocks)


def profile_on_grid(w: Floats, weights: Weights, grid: Floats, penalty: float) -> tuple[Floats, Floats]:
    """Profile likelihood and best shape >= 1 at every grid position: two arrays (rows, points).

    Walks from the farthest end-point to the nearest; k = shape / (1 + exp(t)) changes slowly and is the warm start.
    """
    rows = len(w)
    values, shapes = np.empty((rows, len(grid))), np.empty((rows, len(grid)))
    mean = np.einsum("ij,j->i", w, weights.density)
    spread = np.sqrt(np.maximum(np.einsum("ij,ij,j->i", w, w, weights.density) - mean * mean, 1e-30))
    k = np.clip(1.28 / spread, 1.0, MAX_SHAPE)
    for i in range(len(grid) - 1, -1, -1):
        t = np.full(rows, grid[i])
        stretch = 1.0 + np.exp(grid[i])
        c = np.clip(k * stretch, 1.0, MAX_SHAPE)
        for _ in range(5 if i == len(grid) - 1 else 2):
            now = terms(w, weights, t, c, penalty, along_t=False)
            c = np.clip(c * np.exp(newton_log_shape(now, c)), 1.0, MAX_SHAPE)
        # The value belongs to the shape before the last step; the step gains d_c^2 / (2 |d_cc|) to second order.
        gain = np.where(c > 1.0, 0.5 * now.d_c * now.d_c / np.maximum(-now.d_cc, 1e-300), 0.0)
        values[:, i] = now.value + np.minimum(gain, 0.1)
        shapes[:, i] = c
        k = c / stretch
    return values, shapes


def climb(w: Floats, weights: Weights, grid: Floats, values: Floats, shapes: Floats, penalty: float) -> Peak:
    """Refine the best grid position of every row to a stationary point of the profile likelihood.

    Newton's method in t and log c together; t stays in a bracket that shrinks by the sign of the profile's slope, and
    falls back to bisection, so that it always ends.
    """
    rows = np.arange(len(w))
    best = np.argmax(values, axis=1)
    step = grid[1] - grid[0]
    t = grid[best].copy()
    inside = (best > 0) & (best < len(grid) - 1)
    left, mid, right = (values[rows, np.clip(best + d, 0, len(grid) - 1)] for d in (-1, 0, 1))
    bend = np.where(inside, np.minimum(left - 2.0 * mid + right, -1e-12), -1.0)
    shift = np.where(inside, np.clip(0.5 * step * (left - right) / bend, -0.5 * step, 0.5 * step), 0.0)
    c = np.clip(shapes[rows, best] * (1.0 + np.exp(t + shift)) / (1.0 + np.exp(t)), 1.0, MAX_SHAPE)
    low, high = t - 2.0 * step, t + 2.0 * step
    t = t + shift
    beta, value = np.empty(len(w)), np.empty(len(w))

    active = rows
    for _ in range(60):
        now = terms(w[active] if len(active) < len(w) else w, weights, t[active], c[active], penalty)
        shape = c[active]
        beta[active], value[active] = now.log_scale, now.value
        pinned = (shape <= 1.0) & (now.d_c <= 0.0)
        inner = np.where(pinned, 0.0, newton_log_shape(now, shape))
        curve = np.minimum(now.d_cc, -1e-3 / (shape * shape))
        coupling = np.where(pinned, 0.0, now.d_ct / curve)
        slope = now.d_t - np.where(pinned, 0.0, coupling * now.d_c)
        bend = now.d_tt - coupling * now.d_ct
        settled = np.abs(inner) < 0.1  # only then is `slope` the slope of the profile
        here = t[active]
        low[active] = np.where(settled & (slope > 0.0), here, low[active])
        high[active] = np.where(settled & (slope < 0.0), here, high[active])
        newton = here - slope / np.where(bend < 0.0, bend, -1.0)
        usable = (bend < 0.0) & (newton > low[active]) & (newton < high[active])
        there = np.where(usable, newton, 0.5 * (low[active] + high[active]))
        there = np.where(settled, there, here)
        move = there - here
        log_shape = inner - coupling * move / shape
        t[active] = there
        c[active] = np.clip(shape * np.exp(np.clip(log_shape, -1.5, 1.5)), 1.0, MAX_SHAPE)
        # On the edge c = 1 the objective falls with t, so a row that is pinned there belongs to the corner.
        done = pinned | (settled & (np.abs(move) < 1e-7) & (np.abs(inner) < 1e-7))
        active = active[~done]
        if not len(active):
            break
    return Peak(t, c, beta, value)
