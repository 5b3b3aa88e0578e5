"""Block maxima and the law fitted to them, for one image of several networks: `python -m paper.densities`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from scipy import stats

from paper import figure
from paper.command import Product, main
from paper.networks import NETWORKS
from paper.results import Results
from paper.sizes import BLOCK_COUNTS
from paper.work import Question

QUESTION = Question("many", "l2")
KIND = "random"
COLUMNS = 4


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000.0 else f"{value:.3g}"


def draw(results: Results) -> Any:
    """A panel for each network: histogram, density, parameters and the K-S test."""
    names = [name for name in results.names if results.rows(name, QUESTION)]
    if not names:
        return None
    lines = -(-len(names) // COLUMNS)
    made, axes = figure.subplots(lines, COLUMNS, height=1.75)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        row = next(iter(results.scores(name, "2", KIND, question=QUESTION).values()))
        maxima = np.array(row["maxima"])
        axis.hist(maxima, bins=25, density=True, color=figure.COLOURS["sky"], alpha=0.6)
        x = np.linspace(maxima.min(), max(maxima.max(), min(row["location"], 1.3 * maxima.max())), 300)
        axis.plot(x, stats.weibull_max.pdf(x, row["shape"], loc=row["location"], scale=row["scale"]), color="black")
        if row["location"] <= x[-1]:
            axis.axvline(row["location"], color=figure.COLOURS["CW"], lw=0.9, ls="--")
        axis.set_title(f"{results.title(name)}, blocks of {row['block_size']}")
        axis.text(
            0.9, 0.97,
            f"a {_number(row['location'])}\nb {_number(row['scale'])}\nc {row['shape']:.3g}\n"
            f"D {row['ks_statistic']:.3f}\np {row['ks_pvalue']:.2f}",
            transform=axis.transAxes, va="top", ha="right", fontsize=6, linespacing=1.1,
        )  # fmt: skip
        axis.set_yticks([])
        axis.margins(y=0.12)
    made.supxlabel(
        f"largest gradient norm of a block, l2, random target ({BLOCK_COUNTS[-1]} blocks); dashed: end-point a",
        fontsize=7.5,
    )
    made.supylabel("density", fontsize=7.5)
    return made


def make(results: Results) -> None:
    """Write it."""
    figure.write(draw(results), "densities", results.out)


PRODUCT = Product("densities", tuple(NETWORKS), (QUESTION,), make)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
