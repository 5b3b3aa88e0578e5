"""The shares of the K-S table as a figure: `python -m paper.ks_bars`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from paper import figure, ks
from paper.command import Product, main
from paper.networks import KINDS
from paper.results import KIND_TITLES, Results

LEFT = 92.0  # percent, where the axis begins unless a share is smaller
MARKS = (("l2", "o", "green"), ("linf", "s", "grey"))


def draw(results: Results) -> Any:
    """A panel for each kind of target, ours and the paper's in both norms for each network."""
    cells = {(cell.network, cell.column): cell for cell in ks.cells(results)}
    made, axes = figure.subplots(1, len(KINDS), height=2.6, sharey=True, sharex=True)
    places = np.arange(len(results.names))
    lowest = LEFT
    for axis, kind in zip(axes[0], KINDS, strict=True):
        for offset, (key, mark, colour) in zip((-0.17, 0.17), MARKS, strict=True):
            found = [cells[name, f"{KIND_TITLES[kind]} {key}"] for name in results.names]
            style = {"ls": "", "marker": mark, "color": figure.COLOURS[colour]}
            axis.plot([cell.ours for cell in found], places + offset, **style, ms=3.2, label=f"{key}, ours")
            axis.plot(
                [cell.paper for cell in found],
                places + offset,
                **style,
                ms=5.5,
                mfc="none",
                label=f"{key}, the paper's",
            )
            lowest = min([lowest, *(cell.ours for cell in found if cell.ours == cell.ours)])
        axis.set(title=f"{KIND_TITLES[kind]} target", xlabel="fits not rejected (%)")
        axis.grid(lw=0.3)
        axis.set_yticks(places, [results.title(name) for name in results.names])
    axes[0, 0].invert_yaxis()
    axes[0, 0].set_xlim(lowest - 1.0, 101.0)
    figure.legend(made, axes[0, 0])
    return made


def make(results: Results) -> None:
    """Write it."""
    if results.names:
        figure.write(draw(results), "ks", results.out)


PRODUCT = Product("ks_bars", ks.PRODUCT.networks, ks.PRODUCT.needs, make)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
