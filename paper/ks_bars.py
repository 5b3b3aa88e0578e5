"""The shares of the K-S table as bars: `python -m paper.ks_bars`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from paper import figure, ks
from paper.command import Product, main
from paper.networks import KINDS
from paper.results import KIND_TITLES, NORM_KEYS, Results


def draw(results: Results) -> Any:
    """A panel for each kind of target, a pair of bars for each network."""
    cells = {(cell.network, cell.column): cell.ours for cell in ks.cells(results)}
    made, axes = figure.subplots(1, len(KINDS), height=2.5, sharey=True)
    places = np.arange(len(results.names))
    for axis, kind in zip(axes[0], KINDS, strict=True):
        for offset, (key, colour) in zip((-0.2, 0.2), (("l2", "CLEVER"), ("linf", "I-FGSM")), strict=True):
            heights = [figure.known(cells[name, f"{KIND_TITLES[kind]} {key}"]) for name in results.names]
            axis.barh(places + offset, heights, 0.38, color=figure.COLOURS[colour], label=key)
        axis.set(title=f"{KIND_TITLES[kind]} target", xlim=(0, 105), xlabel="fits not rejected (%)")
        axis.set_yticks(places, [results.title(name) for name in results.names])
    axes[0, 0].invert_yaxis()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper right", ncols=len(NORM_KEYS))
    return made


def make(results: Results) -> None:
    """Write it."""
    if results.names:
        figure.write(draw(results), "ks", results.out)


PRODUCT = Product("ks_bars", ks.PRODUCT.networks, ks.PRODUCT.needs, make)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
