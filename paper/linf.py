"""CW, I-FGSM, CLEVER and SLOPE in linf for the eight small networks: `python -m paper.linf`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from paper import figure, targeted
from paper.command import Product, main
from paper.networks import SMALL
from paper.panels import panels
from paper.results import KIND_TITLES, Results

MARKS = {"CW": "^", "I-FGSM": "s", "CLEVER": "o", "SLOPE": "D"}
RADIUS = 5.0


def draw(results: Results) -> Any:
    """A panel for each data set and kind of target; logarithmic, so dots and not bars."""
    names = [name for name in results.names if name in SMALL]
    if not names:
        return None
    cells = {(cell.network, cell.column): cell.ours for cell in targeted.cells(results)}
    made, found = panels(results, names, "linf distance, average", sharey="row")
    for axis, members, kind in found:
        places = np.arange(len(members))
        for i, method in enumerate(MARKS):
            heights = [cells[name, f"{KIND_TITLES[kind]} {method} linf"] for name in members]
            axis.plot(
                places + 0.16 * (i - 1.5), heights, MARKS[method], ms=4, color=figure.COLOURS[method], label=method
            )
        axis.axhline(RADIUS, color=figure.COLOURS["grey"], lw=0.7, ls=":", label="radius, where scores are cut")
        axis.set_yscale("log")
        axis.grid(axis="y", lw=0.3)
    figure.legend(made, found[0][0])
    return made


def make(results: Results) -> None:
    """Write it."""
    figure.write(draw(results), "linf", results.out)


PRODUCT = Product("linf", SMALL, targeted.PRODUCT.needs, make)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
