"""Share of fits that the K-S test does not reject, for all eleven networks: `python -m paper.ks`."""

from __future__ import annotations

import math
import sys

from paper.command import main, tables_product
from paper.networks import KINDS, NETWORKS
from paper.results import KIND_TITLES, LEVEL, NORM_KEYS, Results
from paper.tables import Cell, Table, published
from paper.work import NORMS, clever


def cells(results: Results) -> list[Cell]:
    """Shares in percent."""
    found = []
    paper = published("ks")
    for network in results.names:
        for kind in KINDS:
            for norm in NORMS:
                rows = results.scores(network, norm, kind).values()
                values = [row["ks_pvalue"] for row in rows if not math.isnan(row["ks_pvalue"])]
                share = 100.0 * sum(value > LEVEL for value in values) / len(values) if values else math.nan
                key = NORM_KEYS[norm]
                found.append(
                    Cell(
                        network, f"{KIND_TITLES[kind]} {key}", paper[network, f"{kind}_{key}"], share,
                        str(len(values)), results.sizes[network].words("clever"),
                    )
                )  # fmt: skip
    return found


def tables(results: Results) -> list[Table]:
    """The table."""
    return [
        Table(
            "ks",
            "Fits with a K-S p-value above 0.05",
            "In percent of the images; ours, and the paper's in parentheses. The law was fitted to the same maxima, "
            "which makes the test easy to pass: see docs/statistics.md.",
            tuple(cells(results)),
            digits=1,
        )
    ]


PRODUCT = tables_product("ks", tuple(NETWORKS), tuple(clever(norm) for norm in NORMS), tables)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
