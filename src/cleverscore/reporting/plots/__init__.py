"""Plots: each function draws one plot and returns its matplotlib Axes.

Colours are those of Okabe & Ito, which can be distinguished with any common colour vision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from cleverscore.errors import InputError
from cleverscore.reporting.plots.bounds import brackets, gaps
from cleverscore.reporting.plots.canvas import BLUE, GREEN, GREY, ORANGE, checked_score
from cleverscore.reporting.plots.canvas import gradient_label as _gradient_label
from cleverscore.reporting.plots.canvas import new_axes as _axes
from cleverscore.reporting.plots.canvas import tex as _tex
from cleverscore.reporting.plots.classes import classes
from cleverscore.reporting.plots.curves import robust_accuracy
from cleverscore.reporting.plots.fits import convergence, quantiles, stability
from cleverscore.scores.score import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "bars",
    "brackets",
    "classes",
    "convergence",
    "gaps",
    "profile",
    "quantiles",
    "robust_accuracy",
    "stability",
    "tail",
]


def tail(score: Score, axes: Axes | None = None) -> Axes:
    """Histogram of an input's block maxima with the fitted reverse Weibull density and its end-point.

    This is the paper's figure of fitted densities, for one input and target.
    """
    score = checked_score(score, "tail")
    if score.fit is None:
        raise InputError(
            f"method {score.method} fits no tail; draw the radial profile instead: cs.plots.profile(scores[0])"
        )
    axes = _axes(axes)
    maxima = score.maxima[np.isfinite(score.maxima)]
    axes.hist(maxima, bins="auto", density=True, color=BLUE, alpha=0.45, label=f"{len(maxima)} block maxima")
    fit = score.fit
    if fit.outcome.extrapolates and fit.location > fit.sample_max:
        grid = np.linspace(maxima.min(), fit.location, 400)
        # With shape 1 the density jumps at the end-point, so it is drawn up to just before it.
        density = stats.weibull_max.pdf(grid[:-1], fit.shape, loc=fit.location, scale=fit.scale)
        axes.plot(
            grid[:-1],
            density,
            color=ORANGE,
            label=f"fit, shape {fit.shape:.3g}, K-S p {score.ks_pvalue:.2g}, A-D p {fit.ad_pvalue:.2g}",
        )
    if math.isfinite(score.lipschitz):
        axes.axvline(score.lipschitz, color=GREEN, linestyle="--", label=f"end-point {score.lipschitz:.4g}")
    axes.set_xlabel(_gradient_label(score.p))
    axes.set_ylabel("density")
    axes.set_title(
        f"input {score.input}: class {score.predicted} against {score.target}, score {score.value:.4g}", fontsize=10
    )
    axes.legend(fontsize=8, framealpha=0.9, edgecolor="none")
    return axes


def profile(score: Score, axes: Axes | None = None) -> Axes:
    """The radial profile of a sharp score: against the distance, the largest fall of the margin per unit of distance.

    The fall (decrease) is constant in each shell, between two distances from the input. The shaded area is the margin:
    the score is the distance at which the falls add up to the margin. A dotted line marks the nearest point of another
    class that the search found.
    """
    score = checked_score(score, "profile")
    if score.profile is None:
        raise InputError(
            f"scores with method {score.method} have no radial profile; draw the tail: cs.plots.tail(scores[0])"
        )
    axes = _axes(axes)
    found = score.profile
    axes.stairs(found.slopes, found.radii, fill=True, color=BLUE, alpha=0.3, label=f"area: margin {score.margin:.4g}")
    axes.stairs(found.slopes, found.radii, color=BLUE, baseline=None)
    axes.axvline(score.value, color=GREEN, linestyle="--", label=f"score {score.value:.4g}")
    if math.isfinite(found.upper):
        axes.axvline(found.upper, color=GREY, linestyle=":", label=f"crossing met at {found.upper:.4g}")
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(rf"distance from the input, $\ell_{{{_tex(score.p)}}}$")
    axes.set_ylabel("largest fall of the margin per length")
    axes.set_title(f"input {score.input}: class {score.predicted} against {score.target}", fontsize=10)
    axes.legend(fontsize=8, framealpha=0.9, edgecolor="none")
    return axes


def bars(scores: Sequence[Score], axes: Axes | None = None) -> Axes:
    """A bar for the score of each input, with its interval; the smallest score first."""
    axes = _axes(axes)
    ordered = sorted(scores, key=lambda score: (math.isnan(score.value), score.value))
    places = np.arange(len(ordered))
    values = np.array([score.value for score in ordered])
    reach: Any = [
        [max(0.0, score.value - score.low) for score in ordered],
        [max(0.0, score.high - score.value) for score in ordered],
    ]
    axes.bar(places, values, color=BLUE, alpha=0.75)
    axes.errorbar(places, values, yerr=reach, fmt="none", ecolor=GREY, capsize=3, linewidth=1)
    axes.set_xticks(places, [f"#{score.input}\n{score.predicted}→{score.target}" for score in ordered], fontsize=8)
    axes.set_xlabel("#input, and predicted class → nearest class")
    norms = ", ".join(rf"$\ell_{{{_tex(p)}}}$" for p in sorted({score.p for score in scores}))
    axes.set_ylabel(f"CLEVER score, {norms}")
    return axes
