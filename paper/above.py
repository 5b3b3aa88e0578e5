"""Share of ImageNet images whose CLEVER is above an attack's distortion: `python -m paper.above`."""

from __future__ import annotations

import math
import sys

from paper.command import main, tables_product
from paper.networks import KINDS, LARGE
from paper.results import KIND_TITLES, NORM_KEYS, Results
from paper.tables import Cell, Table, published
from paper.untargeted import ATTACKS
from paper.work import NORMS, Question, clever


def cells(results: Results) -> list[Cell]:
    """Shares in percent; an attack that failed bounds nothing, so no score is above it."""
    found = []
    paper = published("above")
    for network in (name for name in results.names if name in LARGE):
        size = results.sizes[network]
        for kind in KINDS:
            for attack, title in ATTACKS.items():
                for norm in NORMS:
                    scores = results.scores(network, norm, kind)
                    distortions = results.distortions(network, attack, norm, kind)
                    both = [(row["score"], distortions[i]) for i, row in scores.items() if i in distortions]
                    share = 100.0 * sum(a > b for a, b in both) / len(both) if both else math.nan
                    key = NORM_KEYS[norm]
                    found.append(
                        Cell(
                            network, f"{KIND_TITLES[kind]} {title} {key}", paper[network, f"{kind}_{attack}_{key}"],
                            share, str(len(both)), f"{size.words('clever')}; {size.words(attack)}",
                        )
                    )  # fmt: skip
    return found


def tables(results: Results) -> list[Table]:
    """The table."""
    return [
        Table(
            "above",
            "ImageNet images with a CLEVER score above the attack's distortion",
            "In percent; ours, and the paper's in parentheses.",
            tuple(cells(results)),
            digits=0,
            unit="%",
        )
    ]


PRODUCT = tables_product(
    "above",
    LARGE,
    (*(Question(attack, kind) for attack in ATTACKS for kind in KINDS), *(clever(norm) for norm in NORMS)),
    tables,
)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
