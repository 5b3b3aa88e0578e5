"""Plot of robust accuracy against epsilon: by certificates, by scores and by attacks, with confidence bands."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from cleverscore.reporting.plots.canvas import BLUE, GREEN, GREY, ORANGE, new_axes, tex
from cleverscore.reporting.robust_accuracy import ATTACKED, CERTIFIED, ESTIMATED, RobustAccuracy, Rows
from cleverscore.reporting.robust_accuracy import robust_accuracy as lines_of
from cleverscore.scores.score import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {CERTIFIED: GREEN, ESTIMATED: BLUE, ATTACKED: ORANGE}
STYLES = {CERTIFIED: "-.", ESTIMATED: "-", ATTACKED: "--"}


def robust_accuracy(
    found: Rows | Scores | RobustAccuracy, axes: Axes | None = None, *, p: float | None = None, bands: bool = True
) -> Axes:
    """Share of inputs that are classified correctly and keep their class up to epsilon.

    There are up to three lines: by certificates, by scores, and by attacks (inputs that no attack changed).
    Misclassified inputs are not robust at any epsilon.

    found   a bracket, scores, or a `RobustAccuracy`.
    p       the norm, if `found` has several.
    bands   draw the exact binomial interval over inputs at 95% around each line.
    """
    curves = found if isinstance(found, RobustAccuracy) else lines_of(found, p=p)
    axes = new_axes(axes)
    grid = curves.epsilons()
    for line in curves.lines:
        value, low, high = curves.curve(line, grid)
        # A share changes by a step at the distance of each input.
        axes.step(grid, value, where="post", color=COLORS[line.kind], linestyle=STYLES[line.kind],
                  label=line.label)  # fmt: skip
        if bands:
            axes.fill_between(grid, low, high, step="post", color=COLORS[line.kind], alpha=0.12, linewidth=0)
    ends = [line.limit for line in curves.lines if math.isfinite(line.limit)]
    if ends and ends[0] <= grid[-1]:
        axes.axvline(ends[0], color=GREY, linewidth=0.8, linestyle=":", label=f"radius {ends[0]:g}")
    axes.set_xlim(0.0, float(grid[-1]))
    axes.set_ylim(0.0, 1.02)
    axes.set_yticks(np.linspace(0.0, 1.0, 6), [f"{x:.0%}" for x in np.linspace(0.0, 1.0, 6)])
    axes.set_xlabel(rf"epsilon, $\ell_{{{tex(curves.p)}}}$")
    axes.set_ylabel(f"robust accuracy, {curves.inputs} inputs")
    axes.legend(fontsize=8, framealpha=0.9, edgecolor="none")
    return axes
