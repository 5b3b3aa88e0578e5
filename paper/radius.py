"""CLEVER in linf with the paper's radius and with a smaller one: `python -m paper.radius`."""

from __future__ import annotations

import sys

from paper.command import main, tables_product
from paper.networks import LARGE
from paper.results import Results
from paper.sizes import PAPER
from paper.tables import Cell, Table, published
from paper.work import Question, clever

RADII = (5.0, 0.1)  # the paper's, and that of the released program in linf
NETWORKS = ("cifar-brelu", *LARGE)
KIND = "random"


def question(radius: float) -> Question:
    """Scores in linf at a radius; 5 is the default, which other tables need, too."""
    return clever("inf", PAPER if radius == RADII[0] else f"{PAPER}@{radius:g}")


def cells(results: Results) -> list[Cell]:
    """Average scores for random targets at both radii, and CW's distortion."""
    found = []
    for network in (name for name in results.names if name in NETWORKS):
        paper = published("targeted")
        size = results.sizes[network]
        for radius in RADII:
            mean = results.mean_score(network, "inf", KIND, question=question(radius))
            if mean.count:
                found.append(
                    Cell(
                        network, f"CLEVER linf, radius {radius:g}", paper[network, f"{KIND}_clever_linf"], mean.value,
                        mean.images, size.words("clever"),
                    )
                )  # fmt: skip
        mean = results.mean_distortion(network, "cw", "inf", KIND)
        column = f"{KIND}_cw_linf"
        found.append(Cell(network, "CW linf", paper[network, column], mean.value, mean.images, size.words("cw")))
    return found


def tables(results: Results) -> list[Table]:
    """The table."""
    return [
        Table(
            "radius",
            "CLEVER in linf at two radii, random targets",
            "Ours, and in parentheses the numbers of the paper's anonymous submission.",
            tuple(cells(results)),
        )
    ]


PRODUCT = tables_product("radius", NETWORKS, (*(question(radius) for radius in RADII), Question("cw", KIND)), tables)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
