"""Why a Lipschitz constant bounds the distortion, as a picture: `python -m paper.cone`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from paper import figure
from paper.command import Product, main
from paper.results import Results

BALL = 2.4  # its radius


def margin(x: Any) -> Any:
    """A made-up margin along one direction, positive at 0."""
    return 1.0 + 0.35 * np.sin(2.2 * x) - 0.32 * x**2 + 0.05 * x


def draw() -> Any:
    """The margin, and the cone that no function with this constant leaves."""
    made, axes = figure.subplots(1, 1, width=figure.COLUMN, height=2.3)
    axis = axes[0, 0]
    x = np.linspace(-2.9, 2.9, 1201)
    slopes = np.gradient(margin(x), x)
    inside = np.abs(x) <= BALL
    constant = float(np.abs(slopes[inside]).max())
    start = float(margin(0.0))
    reach = start / constant
    crossings = x[1:][np.diff(np.sign(margin(x))) != 0]
    nearest = float(crossings[np.abs(crossings).argmin()])
    cone = np.linspace(-BALL, BALL, 400)
    axis.fill_between(
        cone,
        start - constant * np.abs(cone),
        start + constant * np.abs(cone),
        color=figure.COLOURS["sky"],
        alpha=0.22,
        lw=0,
    )
    axis.plot(cone, start - constant * np.abs(cone), color=figure.COLOURS["CLEVER"], label="cone of slope L")
    axis.plot(cone, start + constant * np.abs(cone), color=figure.COLOURS["CLEVER"])
    for side in (-BALL, BALL):
        axis.axvline(side, color=figure.COLOURS["grey"], lw=0.7, ls=":")
    axis.annotate("ball in which L holds", (0.0, -1.5), ha="center", color=figure.COLOURS["grey"], fontsize=6.5)
    axis.plot(x, margin(x), color="black", label="margin g(x)")
    axis.axhline(0.0, color=figure.COLOURS["grey"], lw=0.7)
    axis.plot(
        [-reach, reach],
        [0, 0],
        color=figure.COLOURS["green"],
        lw=3.5,
        solid_capstyle="butt",
        label="no change: g(x0) / L",
    )
    axis.plot([nearest], [0], "o", color=figure.COLOURS["CW"], ms=4, label="nearest change")
    axis.plot([0], [start], "o", color="black", ms=3.5)
    axis.annotate("x0", (0, start), (-0.05, start + 0.2), ha="right")
    axis.set(xlabel="distance from x0 along one direction", ylabel="margin g", ylim=(-1.6, 2.1), xlim=(-2.6, 2.6))
    axis.legend(loc="upper center", ncols=2, bbox_to_anchor=(0.5, 1.24), columnspacing=1.0, handlelength=1.4)
    return made


def make(results: Results) -> None:
    """Write it."""
    figure.write(draw(), "cone", results.out)


PRODUCT = Product("cone", (), (), make)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
