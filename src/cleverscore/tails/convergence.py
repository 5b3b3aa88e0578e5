"""Whether block maxima follow the fitted law: how its end-point changes when blocks are merged into larger ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ._likelihood import Floats
from ._search import find_peak, summarise
from .weibull import CHUNK_VALUES, PENALTY, as_samples, checked_block_size, degenerate, standardise
from .weighted import merged_weights

PAPER_BLOCK_SIZE = 1024  # N_s of the paper
FEWEST_MERGED = 25  # fewest merged blocks: fits to fewer scatter so much that they show no drift
# Norms without a largest value can look as if they had one: to maxima of blocks of m Gaussian norms, m from
# GAUSSIAN_SIZES, the law with the shape from GAUSSIAN_SHAPES fits best. Printed by `python -m benchmarks.tables`, from
# 20,000 quantiles of the exact law of such maxima.
GAUSSIAN_SIZES = (4, 16, 64, 256, 1024, 4096, 16384)
GAUSSIAN_SHAPES = (5.56, 7.09, 9.15, 11.53, 14.08, 16.70, 19.37)
LEAST_WALL = 0.6  # a fitted shape above this share of the Gaussian one does not show that there is an end-point


@dataclass(frozen=True)
class Stability:
    """End-points fitted to the maxima of merged blocks, and how they grow; maxima (..., blocks).

    merged      how many blocks are merged into one: 1, 2, 4, ...
    location    (..., len(merged)), the fitted end-points; NaN where no law can be fitted.
    drift       (...), least-squares slope of the end-points over the number of doublings of the block size, divided by
                the first end-point; NaN if `merged` is (1,).
    statistic   (...), least-squares slope of log(end-point - median of the unmerged maxima) over the number of
                doublings: the statistic of the drift test; NaN if `merged` is (1,).
    """

    merged: tuple[int, ...]
    location: Floats
    drift: Floats
    statistic: Floats


def merges(blocks: int) -> tuple[int, ...]:
    """The numbers of blocks to merge into one: 1, and those of 2, 4, 8 and 16 that leave at least 25 merged blocks.

    >>> merges(100), merges(500), merges(20)
    ((1, 2, 4), (1, 2, 4, 8, 16), (1,))
    """
    return tuple(size for size in (1, 2, 4, 8, 16) if size == 1 or blocks >= FEWEST_MERGED * size)


def stability(maxima: ArrayLike) -> Stability:
    """Fit a law to the maxima of 1, 2, 4, ... merged blocks, and measure how its end-point grows; draws no new points.

    The largest of the maxima of k blocks of m points is the maximum of one block of k m points. All ways of merging are
    averaged, as in `fit_weighted`, so the order of the blocks does not matter. If the maxima follow a reverse Weibull
    law, those of merged blocks follow a law with the same end-point.

    maxima: (..., blocks). Fitted with the default penalty.

    >>> maxima = 2.0 - np.random.default_rng(0).weibull(2.0, size=500)
    >>> found = stability(maxima)
    >>> found.merged, bool(np.ptp(found.location) < 0.05)
    ((1, 2, 4, 8, 16), True)
    """
    x = as_samples(maxima)
    rows, n = x.reshape(-1, x.shape[-1]), x.shape[-1]
    sizes = merges(n)
    weights = [merged_weights(n, size, n) for size in sizes]
    location = np.full((len(rows), len(sizes)), np.nan)
    excess = location.copy()
    step = max(1, CHUNK_VALUES // n)
    for start in range(0, len(rows), step):
        ordered = np.sort(rows[start : start + step], axis=1)
        regular = np.flatnonzero([outcome is None for outcome in degenerate(ordered)])
        if not len(regular):
            continue
        standard = standardise(ordered[regular])
        middle = np.median(standard.w, axis=1)
        for i, weight in enumerate(weights):
            above = np.exp(find_peak(*summarise(standard.w, weight), PENALTY).t)
            excess[start + regular, i] = np.log(above + middle)
            with np.errstate(over="ignore", under="ignore"):
                found = np.ldexp(standard.top + standard.range * above, standard.exponent)
            location[start + regular, i] = np.minimum(found, np.finfo(np.float64).max)
    doublings = np.log2(sizes)
    drift, statistic = (np.full(len(rows), np.nan) for _ in range(2))
    if len(sizes) > 1:
        lever = (doublings - doublings.mean()) / ((doublings - doublings.mean()) ** 2).sum()
        statistic = excess @ lever
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            drift = location / np.abs(location[:, :1]) @ lever
    shape = x.shape[:-1]
    return Stability(sizes, location.reshape(*shape, -1), drift.reshape(shape), statistic.reshape(shape))


def gaussian_shape(block_size: int) -> float:
    """Shape of the reverse Weibull law that fits maxima of blocks of `block_size` Gaussian norms best.

    >>> round(gaussian_shape(1024), 1)
    14.1
    """
    return float(np.interp(np.log(block_size), np.log(GAUSSIAN_SIZES), GAUSSIAN_SHAPES))


def shape_wall(blocks: int, block_size: int) -> float:
    """The limit for the fitted shape: above it, the outcome is `no_endpoint`.

    Chosen such that fits to exact laws of shape 5 seldom exceed it. Fits to few blocks scatter more, so the limit is
    higher for these.
    """
    return max(LEAST_WALL, 0.35 + 6.0 / math.sqrt(blocks)) * gaussian_shape(checked_block_size(block_size))


def slow_shape(shape: Floats, block_size: int) -> Floats:
    """The limit for large blocks of the shape fitted to norms that are linear on a ball: (rows,), from `shape` (rows,).

    `shape` is the fitted shape for blocks of `block_size`. The limit is infinite if `shape` is at least that of
    Gaussian norms.

    With xi = 1 / shape and g = 1 / (shape fitted to Gaussian norms), 1 / (limit shape) = xi - g exp(-1.75 (xi - g) /
    sqrt(g)). This formula was fitted to the exact laws for dimensions 2 to a million and blocks of 16 to 4096 (`python
    -m benchmarks.tables`).
    """
    g = 1.0 / gaussian_shape(checked_block_size(block_size))
    xi = 1.0 / shape
    left = xi - g * np.exp(-1.75 * (xi - g) / np.sqrt(g))
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(left > 0.0, 1.0 / np.maximum(left, 1e-300), np.inf))


def slow_stretch(shape: Floats, block_size: int) -> Floats:
    """(True end-point - mode) / (fitted end-point - mode) for norms that are linear on a ball: (rows,).

    Their maxima converge slowly to a reverse Weibull law, so the true end-point lies further out. The ratio is about
    sqrt(limit shape / fitted shape); infinite if the fitted `shape` (rows,) is at least that of Gaussian norms.
    """
    return np.asarray(np.sqrt(slow_shape(shape, block_size) / shape))
