"""How far CW's l2 distortion is above CLEVER, random targets, ImageNet: `python -m paper.gaps`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from paper import figure
from paper.command import Product, main
from paper.networks import LARGE
from paper.results import Results, images_text
from paper.work import Question, clever

KIND = "random"


def pairs(results: Results, network: str) -> list[tuple[float, float]]:
    """(score, distortion) of each image that CW moved."""
    return results.pairs(network, "cw", "2", KIND)


def draw(results: Results) -> Any:
    """The distribution function of the gap, a panel for each network."""
    names = [name for name in results.names if name in LARGE and pairs(results, name)]
    if not names:
        return None
    made, axes = figure.subplots(1, len(names), height=1.9, sharey=True, sharex=True)
    found = {name: np.sort([above - below for below, above in pairs(results, name)]) for name in names}
    everything = np.concatenate([[0.0], *found.values()])
    room = 0.1 * max(float(np.ptp(everything)), 1e-3)
    left, right = float(everything.min()) - room, float(everything.max()) + room
    for axis, name in zip(axes[0], names, strict=True):
        gaps = found[name]
        heights = np.arange(len(gaps) + 1) / len(gaps)
        # A step for each image, from the left edge to the right edge.
        axis.step([left, *gaps, right], [*heights, 1.0], where="post", color=figure.COLOURS["CLEVER"])
        axis.axvline(0.0, color=figure.COLOURS["grey"], lw=0.7, ls=":")
        axis.set(
            title=f"{results.title(name)} (images: {images_text(len(gaps), len(results.scores(name, '2', KIND)))})",
            xlabel="CW distortion - CLEVER (l2)", xlim=(left, right), ylim=(0, 1.03),
        )  # fmt: skip
    axes[0, 0].set_ylabel("share of images up to here")
    return made


def make(results: Results) -> None:
    """Write it."""
    figure.write(draw(results), "gaps", results.out)


PRODUCT = Product("gaps", LARGE, (Question("cw", KIND), clever("2")), make)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
