"""CLEVER with 50, 100, 250 and 500 blocks beside CW's distortion, l2: `python -m paper.blocks`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from cleverscore import tails
from paper import figure
from paper.command import Product, main
from paper.networks import KINDS, NETWORKS
from paper.panels import panels
from paper.results import Results
from paper.sizes import BLOCK_COUNTS
from paper.work import Question

QUESTION = Question("many", "l2")
SHADES = ("#b3d4ea", "#7fb6dc", "#3d8fc4", "#0072B2")


def averages(results: Results, network: str, kind: str) -> dict[int, float]:
    """The average score over the images, by the number of blocks that are used."""
    rows = list(results.scores(network, "2", kind, question=QUESTION).values())
    if not rows:
        return {}
    maxima = np.array([row["maxima"] for row in rows])
    margins, radii = (np.array([row[key] for row in rows]) for key in ("margin", "radius"))
    found = {}
    for count in BLOCK_COUNTS:
        fits = tails.law(maxima[:, :count])
        found[count] = float(np.minimum(margins / fits.location, radii).mean())
    return found


def distortion(results: Results, network: str, kind: str) -> float:
    """CW's average on the same images."""
    distortions = results.distortions(network, "cw", "2", kind)
    same = results.scores(network, "2", kind, question=QUESTION)
    values = [distortions[i] for i in same if np.isfinite(distortions.get(i, np.inf))]
    return float(np.mean(values)) if values else float("nan")


def draw(results: Results) -> Any:
    """A panel for each data set and kind of target."""
    names = [name for name in results.names if results.rows(name, QUESTION)]
    if not names:
        return None
    made, found = panels(results, names, "l2 distance, average")
    for axis, members, kind in found:
        places = np.arange(len(members))
        for i, (count, shade) in enumerate(zip(BLOCK_COUNTS, SHADES, strict=True)):
            heights = [averages(results, name, kind)[count] for name in members]
            axis.bar(places + 0.16 * (i - 2), heights, 0.15, color=shade, label=f"{count} blocks")
        attacks = [distortion(results, name, kind) for name in members]
        axis.bar(places + 0.16 * 2, attacks, 0.15, color=figure.COLOURS["CW"], label="CW")
    figure.legend(made, found[0][0])
    return made


def make(results: Results) -> None:
    """Write it."""
    figure.write(draw(results), "blocks", results.out)


PRODUCT = Product("blocks", tuple(NETWORKS), (QUESTION, *(Question("cw", kind) for kind in KINDS)), make)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
