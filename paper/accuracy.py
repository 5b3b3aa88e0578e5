"""The networks and their test accuracies: `python -m paper.accuracy`."""

from __future__ import annotations

import sys

from paper.command import main, tables_product
from paper.networks import LARGE, NETWORKS
from paper.results import Results
from paper.tables import Cell, Table
from paper.work import Question


def cells(results: Results) -> list[Cell]:
    """Accuracy in percent and parameters in millions; of the paper's networks only few accuracies are known."""
    found = []
    for network in results.names:
        for row in results.rows(network, Question("accuracy")):
            images = str(row["images"])
            found.append(Cell(network, "accuracy (%)", None, 100.0 * row["accuracy"], images, "all of them"))
            found.append(Cell(network, "parameters (millions)", None, row["parameters"] / 1e6, "–", "–"))
    return found


def tables(results: Results) -> list[Table]:
    """The table."""
    found = cells(results)
    counts = {cell.images for cell in found if cell.network in LARGE and cell.images != "–"}
    return [
        Table(
            "accuracy",
            "The networks",
            "Accuracy on all test images; of the ImageNet networks on the pictures that were there "
            f"({', '.join(sorted(counts)) or 'none'}), which may be training images.",
            tuple(found),
            digits=2,
        )
    ]


PRODUCT = tables_product("accuracy", tuple(NETWORKS), (Question("accuracy"),), tables)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
