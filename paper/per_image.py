"""CLEVER and CW's l2 distortion image by image, random targets, ImageNet: `python -m paper.per_image`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from paper import figure, gaps
from paper.command import Product, main
from paper.networks import LARGE
from paper.results import Results


def draw(results: Results) -> Any:
    """Images in the order of their distortion, with the interval of each score."""
    names = [name for name in results.names if name in LARGE and gaps.pairs(results, name)]
    if not names:
        return None
    made, axes = figure.subplots(1, len(names), height=1.9)
    for axis, name in zip(axes[0], names, strict=True):
        distortions = results.distortions(name, "cw", "2", gaps.KIND)
        scores = results.scores(name, "2", gaps.KIND)
        order = sorted((i for i in scores if i in distortions), key=distortions.__getitem__)
        places = np.arange(1, len(order) + 1)
        values = np.array([scores[i]["score"] for i in order])
        low, high = (np.array([scores[i][end] for i in order]) for end in ("score_low", "score_high"))
        errors = np.maximum(np.stack([values - low, high - values]), 0.0)
        axis.errorbar(
            places, values, errors, fmt="o", ms=3, lw=0.8, color=figure.COLOURS["CLEVER"], label="CLEVER, 95% interval"
        )
        axis.plot(places, [distortions[i] for i in order], "^", ms=3.5, color=figure.COLOURS["CW"], label="CW")
        failed = [place for place, i in zip(places, order, strict=True) if not np.isfinite(distortions[i])]
        if failed:
            axis.plot(
                failed, [0.97] * len(failed), "x", ms=4, color=figure.COLOURS["CW"], label="CW failed",
                transform=axis.get_xaxis_transform(),
            )  # fmt: skip
        axis.set(title=results.title(name), xlabel="image, by CW's distortion", ylim=(0, None))
        if len(places) <= 10:
            axis.set_xticks(places)
            axis.set_xlim(0.5, len(places) + 0.5)
    axes[0, 0].set_ylabel("l2 distance")
    figure.legend(made, *axes[0])
    return made


def make(results: Results) -> None:
    """Write it."""
    figure.write(draw(results), "per-image", results.out)


PRODUCT = Product("per_image", LARGE, gaps.PRODUCT.needs, make)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
