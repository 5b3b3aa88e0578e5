"""CLEVER in linf with the paper's radius, with a smaller one and as the released code: `python -m paper.radius`."""

from __future__ import annotations

import sys

from paper.command import main, tables_product
from paper.networks import LARGE
from paper.results import Results
from paper.sizes import PAPER, RELEASED
from paper.tables import Cell, Table, published
from paper.work import Question, clever

METHODS = {
    "radius 5": PAPER,
    "radius 0.1": f"{PAPER}@0.1",
    "released code": RELEASED,  # whatever the norm: an l2 ball times a length up to 3, clipped to the box
}
NETWORKS = ("cifar-brelu", *LARGE)
KIND = "random"


def cells(results: Results) -> list[Cell]:
    """Average scores for random targets under each law of the points, and CW's distortion."""
    found = []
    paper = published("targeted")
    for network in (name for name in results.names if name in NETWORKS):
        size = results.sizes[network]
        for title, method in METHODS.items():
            mean = results.mean_score(network, "inf", KIND, question=clever("inf", method))
            if mean.count:
                published_here = paper[network, f"{KIND}_clever_linf"]
                found.append(Cell.average(network, f"CLEVER linf, {title}", published_here, mean, size.words("clever")))
        mean = results.mean_distortion(network, "cw", "inf", KIND)
        found.append(Cell.average(network, "CW linf", paper[network, f"{KIND}_cw_linf"], mean, size.words("cw")))
    return found


def tables(results: Results) -> list[Table]:
    """The table."""
    return [
        Table(
            "radius",
            "CLEVER in linf from points of three kinds, random targets",
            "Ours, and in parentheses the numbers of the paper's anonymous submission. Points: uniform in an linf ball "
            "of radius 5, as the paper says; of radius 0.1; and as the released code draws them unless told otherwise, "
            "within l2 distance 3 and clipped to the box.",
            tuple(cells(results)),
        )
    ]


PRODUCT = tables_product(
    "radius", NETWORKS, (*(clever("inf", method) for method in METHODS.values()), Question("cw", KIND)), tables
)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
