"""Untargeted CW, I-FGSM and CLEVER for the eight small networks: `python -m paper.untargeted`."""

from __future__ import annotations

import sys

from paper.command import main, tables_product
from paper.networks import SMALL
from paper.results import NORM_KEYS, Results
from paper.sizes import PAPER, RELEASED
from paper.tables import Cell, Table, published
from paper.work import NORMS, Question, clever

ATTACKS = {"cw": "CW", "ifgsm": "I-FGSM"}
PRESETS = {PAPER: "CLEVER", RELEASED: "CLEVER, released code"}


def cells(results: Results) -> list[Cell]:
    """Averages over the images: attacks, then both readings of CLEVER."""
    found = []
    paper = published("untargeted")
    for network in (name for name in results.names if name in SMALL):
        size = results.sizes[network]
        for attack, title in ATTACKS.items():
            for norm in NORMS:
                key, mean = NORM_KEYS[norm], results.mean_distortion(network, attack, norm, "any")
                published_here = paper[network, f"{attack}_{key}"]
                found.append(Cell.average(network, f"{title} {key}", published_here, mean, size.words(attack)))
        for preset, title in PRESETS.items():
            for norm in NORMS:
                key = NORM_KEYS[norm]
                mean = results.mean_score(network, norm, "any", question=clever(norm, preset))
                if mean.count:
                    published_here = paper[network, f"clever_{key}"]
                    found.append(Cell.average(network, f"{title} {key}", published_here, mean, size.words("clever")))
    return found


def tables(results: Results) -> list[Table]:
    """The table."""
    return [
        Table(
            "untargeted",
            "Untargeted distortion and CLEVER, averages",
            "Ours, and the paper's in parentheses. CW minimises l2, its linf is that of the same examples; I-FGSM the "
            "other way round. CLEVER is sampled as the paper says (ball of radius 5) and as the released code does. "
            "Brackets: over how many images, where they are not all.",
            tuple(cells(results)),
        )
    ]


PRODUCT = tables_product(
    "untargeted",
    SMALL,
    (
        *(Question(attack, "any") for attack in ATTACKS),
        *(clever(norm, preset) for preset in PRESETS for norm in NORMS),
    ),
    tables,
)

if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
