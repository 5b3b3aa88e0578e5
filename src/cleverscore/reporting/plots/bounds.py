"""Plots of scores between certificates and attacks: bracket bars, and the distribution of the gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from cleverscore.errors import InputError
from cleverscore.reporting.plots.canvas import BLUE, GREEN, GREY, ORANGE, new_axes, tex
from cleverscore.scores.score import Score
from cleverscore.scores.tables import interval_heading

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 60  # more cannot be told apart on one page


class Bracketed(Protocol):
    """Scores with certified radii and attacks' distortions, NaN where unknown."""

    @property
    def rows(self) -> Sequence[Score]:
        """The scores."""
        ...

    @property
    def lower(self) -> npt.NDArray[np.float64]:
        """The certified radius for each score."""
        ...

    @property
    def upper(self) -> npt.NDArray[np.float64]:
        """The best attack's distortion for each score; infinite where all attacks failed."""
        ...


def brackets(bracket: Bracketed, axes: Axes | None = None) -> Axes:
    """Certified radius, score with interval and best attack of at most 60 inputs, those with the smallest scores."""
    rows = bracket.rows
    if not len(rows):
        raise InputError("there is no score to draw")
    norms = {row.p for row in rows}
    if len(norms) > 1:
        raise InputError("brackets() draws one norm at a time, as scores in different norms have different units")
    values = np.array([row.value for row in rows])
    order = np.argsort(np.where(np.isnan(values), np.inf, values), kind="stable")[:MOST_BARS]
    places = np.arange(len(order))
    axes = new_axes(axes, (max(5.0, 0.16 * len(order)), 3.4))
    lower, upper = bracket.lower[order], bracket.upper[order]
    scores = values[order]
    low, high = (np.array([getattr(rows[i], name) for i in order]) for name in ("low", "high"))
    if (~np.isnan(lower)).any():
        axes.bar(places, np.nan_to_num(lower), color=GREEN, alpha=0.55, width=0.7, label="certified")
    axes.vlines(places, low, high, color=BLUE, alpha=0.6, linewidth=2.2)
    axes.plot(places, scores, "o", color=BLUE, markersize=4.5, label=f"score, {interval_heading(rows)}")
    found = np.isfinite(upper)
    if found.any():
        axes.plot(
            places[found], upper[found], "x", color=ORANGE, markersize=6, markeredgewidth=1.6, label="best attack"
        )
    above = found & (scores > upper)
    if above.any():
        axes.plot(
            places[above], scores[above], "o", markersize=10, markerfacecolor="none", markeredgecolor=GREY,
            label=f"above the attack ({int(above.sum())})",
        )  # fmt: skip
    axes.set_xticks(places, [f"#{rows[i].input}" for i in order], fontsize=7, rotation=90 if len(order) > 12 else 0)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(
        "input, smallest score first" + (f" (first {MOST_BARS} of {len(rows)})" if len(rows) > MOST_BARS else "")
    )
    axes.set_ylabel(rf"distance, $\ell_{{{tex(next(iter(norms)))}}}$")
    axes.legend(fontsize=8, framealpha=0.9, edgecolor="none")
    return axes


def gaps(bracket: Bracketed, axes: Axes | None = None) -> Axes:
    """Distribution of the gap (upper - score) / upper over inputs where an attack succeeded, one line per norm.

    `upper` is the best attack's distortion; the gap is negative for a score above it.
    """
    axes = new_axes(axes)
    drawn = False
    for p, color in zip(sorted({row.p for row in bracket.rows}), (BLUE, ORANGE, GREEN, GREY), strict=False):
        values = np.array([row.value if row.p == p else np.nan for row in bracket.rows])
        known = np.isfinite(bracket.upper) & (bracket.upper > 0.0) & ~np.isnan(values)
        if not known.any():
            continue
        gap = np.sort((bracket.upper[known] - values[known]) / bracket.upper[known])
        shares = np.arange(1, len(gap) + 1) / len(gap)
        label = rf"$\ell_{{{tex(p)}}}$: {len(gap)} inputs, median {np.median(gap):.2f}, {np.mean(gap < 0.0):.0%} above"
        axes.step(np.r_[gap[0], gap], np.r_[0.0, shares], where="post", color=color, label=label)
        drawn = True
    if not drawn:
        raise InputError("no attack succeeded, so there is no gap to draw; run attacks beside the scores")
    axes.axvline(0.0, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xlabel("(attack - score) / attack")
    axes.set_ylabel("share of inputs")
    axes.set_ylim(0.0, 1.02)
    axes.legend(fontsize=8, framealpha=0.9, edgecolor="none")
    return axes
