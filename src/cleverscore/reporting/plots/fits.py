"""Plots of one input's tail fit: a Q-Q plot, and how results change with the number and the size of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from cleverscore import tails
from cleverscore.errors import InputError
from cleverscore.reporting.plots.canvas import (
    BLUE,
    GREY,
    ORANGE,
    checked_score,
    gradient_label,
    new_axes,
    tex,
    title_of,
)
from cleverscore.scores.score import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST_BLOCKS = 16  # a fit to fewer block maxima says nothing


def quantiles(score: Score, axes: Axes | None = None) -> Axes:
    """Q-Q plot: the i-th smallest of n block maxima against the quantile (i - 1/2) / n of the fitted law.

    With a good fit, the points lie on the diagonal line.
    """
    score = checked_score(score, "quantiles")
    fit = score.fit
    if fit is None or not fit.outcome.has_law:
        raise InputError(f"input {score.input} has no fitted law to compare with: {score.outcome.advice}")
    axes = new_axes(axes)
    observed = np.sort(score.maxima)
    shares = (np.arange(len(observed)) + 0.5) / len(observed)
    expected = stats.weibull_max.ppf(shares, fit.shape, loc=fit.location, scale=fit.scale)
    ends = [min(expected[0], observed[0]), max(expected[-1], observed[-1])]
    axes.plot(ends, ends, color=ORANGE, linewidth=1.2, label="perfect fit")
    axes.plot(
        expected, observed, "o", color=BLUE, markersize=3.5, alpha=0.7, markeredgewidth=0.0,
        label=f"{len(observed)} block maxima, K-S p {score.ks_pvalue:.2g}, A-D p {fit.ad_pvalue:.2g}",
    )  # fmt: skip
    axes.set_xlabel("quantile of the fitted law")
    axes.set_ylabel(gradient_label(score.p))
    axes.set_title(title_of(score), fontsize=10)
    axes.legend(fontsize=8, framealpha=0.9, edgecolor="none")
    return axes


def convergence(score: Score, axes: Axes | None = None) -> Axes:
    """The score and its interval from the first 16, 32, 64, ... blocks, and from all, against the number of blocks."""
    score = checked_score(score, "convergence")
    count = len(score.maxima)
    if count < FIRST_BLOCKS:
        raise InputError(f"input {score.input} has {count} blocks; convergence needs at least {FIRST_BLOCKS}")
    axes = new_axes(axes)
    sizes = [size for k in range(32) if (size := FIRST_BLOCKS << k) < count] + [count]
    fit, rule = score.fit, score.rule
    if fit is None or rule.tail is not None:
        raise InputError(
            f"convergence() fits parts of the maxima again, and does not know how {score.method!r} does it"
        )
    rows = []
    for size in sizes:
        maxima = score.maxima[None, :size]
        fits = tails.fit(maxima, fit.penalty, block_size=score.block_size)
        ends = tails.interval(maxima, fits, level=rule.level, block_size=score.block_size)
        rows.append([score.with_constant(float(end[0])) for end in (fits.location, ends.high, ends.low)])
    values, low, high = np.array(rows).T
    axes.fill_between(sizes, low, high, color=BLUE, alpha=0.2, linewidth=0.0, label=f"{100 * rule.level:g}% interval")
    axes.plot(sizes, values, color=BLUE, marker="o", markersize=4, label="score")
    axes.axhline(values[-1], color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(f"blocks of {score.block_size}")
    axes.set_ylabel(rf"CLEVER score, $\ell_{{{tex(score.p)}}}$")
    axes.set_title(title_of(score), fontsize=10)
    axes.legend(fontsize=8, framealpha=0.9, edgecolor="none", loc="lower right")
    return axes


def stability(score: Score, axes: Axes | None = None) -> Axes:
    """The fitted end-point when 1, 2, 4, ... blocks are merged into one; it stays constant if maxima follow the law.

    The dashed line is the end-point that the score uses, the dotted line the largest sampled gradient norm.
    """
    score = checked_score(score, "stability")
    fit = score.fit
    if fit is None or not fit.outcome.has_law:
        raise InputError(f"input {score.input} has no fitted law to follow: {score.outcome.advice}")
    found = tails.stability(score.maxima)
    if len(found.merged) == 1:
        raise InputError(f"input {score.input} has {len(score.maxima)} blocks; stability() needs at least 50 to merge")
    axes = new_axes(axes)
    sizes = [size * score.block_size for size in found.merged]
    label = f"end-point, {fit.drift:+.2%} per doubling ({fit.outcome})"
    axes.plot(sizes, found.location, color=BLUE, marker="o", markersize=4, label=label)
    axes.axhline(fit.location, color=ORANGE, linewidth=0.9, linestyle="--", label="that of the score")
    axes.axhline(fit.sample_max, color=GREY, linewidth=0.9, linestyle=":", label="largest norm met")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("points in a block")
    axes.set_ylabel(gradient_label(score.p))
    axes.set_title(title_of(score), fontsize=10)
    axes.legend(fontsize=8, framealpha=0.9, edgecolor="none")
    return axes
