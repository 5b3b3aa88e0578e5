"""Seconds for a block of 1024 gradients of each ImageNet network: `python -m paper.timing`."""

from __future__ import annotations

import sys

from paper.command import main, tables_product
from paper.networks import LARGE
from paper.results import Results
from paper.tables import Cell, Table, published
from paper.work import Question


def cells(results: Results) -> list[Cell]:
    """Seconds here; the paper's were measured on a GPU."""
    found = []
    for network in (name for name in results.names if name in LARGE):
        for row in results.rows(network, Question("time")):
            found.append(
                Cell(
                    network, "seconds for 1024 gradients", published("seconds")[network, "seconds"], row["seconds"],
                    "1", f"from {row['gradients']} gradients",
                )
            )  # fmt: skip
    return found


def tables(results: Results) -> list[Table]:
    """The table."""
    rows = [row for network in LARGE for row in results.rows(network, Question("time"))]
    machines = " or ".join(dict.fromkeys(row["machine"] for row in rows))
    return [
        Table(
            "timing",
            "Time for one block of 1024 gradients",
            f"Ours: {machines}, one target, l2. In parentheses the paper's: a GeForce GTX "
            "1080 Ti GPU. The two say nothing about each other's code; together they say what a block costs.",
            tuple(cells(results)),
            digits=1,
        )
    ]


PRODUCT = tables_product("timing", LARGE, (Question("time"),), tables)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
