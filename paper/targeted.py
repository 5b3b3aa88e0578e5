"""Targeted CW, I-FGSM, CLEVER and SLOPE for all eleven networks: `python -m paper.targeted`."""

from __future__ import annotations

import sys

from paper.command import main, tables_product
from paper.networks import KINDS, NETWORKS
from paper.results import KIND_TITLES, NORM_KEYS, Results
from paper.tables import Cell, Table, published
from paper.untargeted import ATTACKS
from paper.work import NORMS, Question, clever


def slope(norm: str) -> Question:
    """SLOPE in a norm."""
    return Question("slope", f"paper-l{norm}")


def cells(results: Results) -> list[Cell]:
    """Averages over the images for each kind of target."""
    found = []
    paper = published("targeted")
    for network in results.names:
        size = results.sizes[network]
        for kind in KINDS:
            for method, title in (*ATTACKS.items(), ("clever", "CLEVER"), ("slope", "SLOPE")):
                for norm in NORMS:
                    key = NORM_KEYS[norm]
                    if method in ATTACKS:
                        mean = results.mean_distortion(network, method, norm, kind)
                    else:
                        question = clever(norm) if method == "clever" else slope(norm)
                        mean = results.mean_score(network, norm, kind, question=question)
                    published_here = paper.get((network, f"{kind}_{method}_{key}"))
                    column = f"{KIND_TITLES[kind]} {title} {key}"
                    found.append(Cell.average(network, column, published_here, mean, size.words(method)))
    return found


def tables(results: Results) -> list[Table]:
    """One table for each kind of target: all in one is too wide to read."""
    found = cells(results)
    return [
        Table(
            f"targeted-{kind.replace('_', '-')}",
            f"Targeted distortion, CLEVER and SLOPE, averages: {KIND_TITLES[kind].lower()} target",
            "Ours, and in parentheses the numbers of the paper's anonymous submission, which has no SLOPE. CLEVER and "
            "SLOPE are cut at the radius, 5. Brackets: how many images an attack moved, where not all.",
            tuple(cell for cell in found if cell.column.startswith(KIND_TITLES[kind])),
        )
        for kind in KINDS
    ]


PRODUCT = tables_product(
    "targeted",
    tuple(NETWORKS),
    (
        *(Question(attack, kind) for attack in ATTACKS for kind in KINDS),
        *(clever(norm) for norm in NORMS),
        *(slope(norm) for norm in NORMS),
    ),
    tables,
)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
