"""Share of ImageNet images whose CLEVER is above an attack's distortion: `python -m paper.above`."""

from __future__ import annotations

import math
import sys

from paper.command import main, tables_product
from paper.networks import KINDS, LARGE
from paper.results import KIND_TITLES, NORM_KEYS, Results, images_text
from paper.tables import Cell, Table, published
from paper.untargeted import ATTACKS
from paper.work import NORMS, Question, clever


def counts(results: Results, network: str, attack: str, norm: str, kind: str) -> tuple[int, int, int]:
    """Images with a score above the attack's distortion, images that it moved, and all images."""
    moved = results.pairs(network, attack, norm, kind)
    higher = sum(score > distortion for score, distortion in moved)
    return higher, len(moved), len(results.scores(network, norm, kind))


def cells(results: Results) -> list[Cell]:
    """Shares in percent of the images that the attack moved: one that failed bounds nothing."""
    found = []
    paper = published("above")
    for network in (name for name in results.names if name in LARGE):
        size = results.sizes[network]
        for kind in KINDS:
            for attack, title in ATTACKS.items():
                for norm in NORMS:
                    higher, moved, count = counts(results, network, attack, norm, kind)
                    share = 100.0 * higher / moved if moved else math.nan
                    key = NORM_KEYS[norm]
                    found.append(
                        Cell(
                            network, f"{KIND_TITLES[kind]} {title} {key}", paper[network, f"{kind}_{attack}_{key}"],
                            share, images_text(moved, count), f"{size.words('clever')}; {size.words(attack)}",
                        )
                    )  # fmt: skip
    return found


def tables(results: Results) -> list[Table]:
    """The table."""
    return [
        Table(
            "above",
            "ImageNet images with a CLEVER score above the attack's distortion",
            "In percent of the images that the attack moved; ours, and the paper's in parentheses. Brackets: how many "
            "images it moved, where not all.",
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
