"""Tables, figures and the page of the middle size, from the units alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from paper.medium import figures, tables
from paper.medium.claims import HOLDS, LAW_TITLES, NOT, RULE, Claim, Comparison, claims, claims_csv, rows_csv
from paper.medium.plan import Unit, all_units
from paper.medium.results import PENALTY, Drawn, MediumResults
from paper.medium.store import Store
from paper.networks import NETWORKS
from paper.readme import FIGURES, training
from paper.sizes import MEDIUM, PAPER, RELEASED, Size

TITLE = """# The paper, computed again

The tables, figures and claims of T.-W. Weng et al., *Evaluating the Robustness of Neural Networks: An Extreme Value
Theory Approach* (ICLR 2018), from this package. `python -m paper --medium --render` writes this page from finished
units of work, which are in the repository. Small sizes, all of them there: [paper/made](../made/README.md).
"""
HOW = """## How to make it

    make paper-medium DATA=folder   # compute the units that are not there yet, then write everything
    .venv/bin/python -m paper --medium --render                     # write everything from what is there
    .venv/bin/python -m paper --medium --estimate --data folder     # how much is left
    make paper DATA=folder          # small sizes, an hour or two: paper/made/README.md
    make paper-full DATA=folder     # the paper's sizes, for a cluster; prints what it will cost first

Each unit is a few images of one network under one question, some minutes on one core, and is kept in
`paper/medium/units` as soon as it is done: block maxima as float32, margins and targets, distortions of attacks. A unit
has the same bytes whenever it is computed on one machine. Kill the command whenever you like; each process loses the
unit that it was at. Laws are fitted when this page is written, so other penalties need no new gradients.

`DATA` holds what cannot be shipped: `cifar-10-batches-bin/` (CIFAR-10's binary files), `imagenet/` (pictures, the
number of the class first in the name or as the name of a sub-folder), `mobilenet_v1.onnx`, `resnet50.onnx`,
`inception_v3.onnx` (or torchvision, which then supplies the weights), and `mnist/` for test accuracies.
"""
CUT = """Smaller than the paper, or left out, because days of two cores do not hold it:

- Blocks, images and CW's iterations are those of the table above; the paper has 500 blocks of 1024 gradients.
- The first images of the small networks have 500 blocks in the uniform l2 ball, and those of the MLPs also from the
  authors' points.
- On ImageNet the sharp score (l2) and the best attack (l2 and linf) are for random targets alone.
- Untargeted scores leave classes out that can no longer be the smallest, whichever penalty the law is fitted with.
- The table of radii in linf and the timing are in `paper/made/README.md` (`make paper`).
"""
CAPTIONS = {
    "ks": "Fits that the K-S and the Anderson-Darling test do not reject at 0.05, ± two standard errors.",
    "blocks": "Scores from the first 50, 100, 250 and all 500 blocks of the same samples (l2) ± standard errors, and "
    "CW's distortion of the same images.",
}


def render(store: Store, out: Path, weights: Mapping[str, str], sizes: Mapping[str, Size] = MEDIUM) -> Path:
    """Write all of it."""
    names = tuple(name for name in NETWORKS if name in sizes)
    results = MediumResults(Drawn(store, weights), sizes, names, False, out)
    (out / "tables").mkdir(parents=True, exist_ok=True)
    made = tables.tables(results)
    for table in made:
        table.write(out / "tables")
    figures.write(results)
    found = claims(results)
    (out / "tables" / "claims.csv").write_text(claims_csv(found), encoding="utf-8")
    (out / "tables" / "rows.csv").write_text(rows_csv(results), encoding="utf-8")
    target = out / "README.md"
    parts = [TITLE, "## Which claims hold\n", summary(found), RULE, "", computed(results, store), CUT]
    parts += ["## Tables\n", *(table.markdown() for table in made), training()]
    parts += ["## Figures\n", *_figures(out, target.parent), HOW]
    target.write_text("\n".join(parts), encoding="utf-8")
    return target


def summary(found: Sequence[Claim]) -> str:
    """A line for each claim."""
    lines = [f"| claim | {LAW_TITLES[RELEASED]} | {LAW_TITLES[PAPER]} |", "|---|---|---|"]
    for text, group in itertools.groupby(found, key=lambda claim: claim.text):
        verdicts = {claim.law: _verdict(claim) for claim in group}
        lines.append(f"| {text} | {verdicts.get(RELEASED, '–')} | {verdicts.get(PAPER, '–')} |")
    return (
        "\n".join(lines) + "\n\nAuthors' points: within l2 distance 3 and clipped to the box, as their program draws "
        f"them. Uniform ball: radius 5 in the norm of the score, as the paper says. Fits have the penalty {PENALTY:g} "
        "of the authors' program. Behind each verdict: how many comparisons speak for and against the claim and are "
        "open, and the one that decides, with its interval.\n"
    )


def _verdict(claim: Claim) -> str:
    decisive = _decisive(claim)
    words = f"**{claim.verdict}**: {claim.counts}"
    if decisive is None:
        return words
    unit = claim.unit
    return (
        f"{words}; {decisive.name}: {decisive.estimate:.3g}{unit} [{decisive.low:.3g}, {decisive.high:.3g}] "
        f"({decisive.images} images)"
    )


def _decisive(claim: Claim) -> Comparison | None:
    """The comparison that decides: the clearest against, else the least clear."""
    known = [each for each in claim.comparisons if each.images >= 2]
    if not known:
        return None

    def reserve(each: Comparison) -> float:
        """How far the interval is inside the claimed range, in its own widths; negative outside."""
        return min(each.low - each.least, each.most - each.high) / max(each.high - each.low, 1e-12)

    if claim.verdict == NOT:
        return min((each for each in known if each.side == -1), key=reserve)
    return min(known, key=reserve) if claim.verdict == HOLDS else min((e for e in known if e.side == 0), key=reserve,
                                                                       default=None)  # fmt: skip


def computed(results: MediumResults, store: Store) -> str:
    """Sizes, and how many images of each network are there."""
    done: dict[tuple[str, str], int] = {}
    units = all_units(results.sizes)
    missing = 0
    for unit in units:
        whole = store.has(unit, results.sizes[unit.network], results.kept.weights.get(unit.network))
        missing += not whole
        key = unit.network, _group(unit)
        done[key] = done.get(key, 0) + (unit.stop - unit.start) * whole
    state = f"{len(units) - missing} of {len(units)} units of work are there"
    state += "." if not missing else "; `make paper-medium` computes the rest."
    columns = ("maxima-l2", "maxima-linf", "maxima-authors", "slope", "cw", "ifgsm", "best", "sharp")
    lines = [
        "| network | images | blocks | first images | CW | I-FGSM | " + " | ".join(columns) + " |",
        "|---|--:|---|---|---|---|" + "--:|" * len(columns),
    ]
    for name in results.names:
        size = results.sizes[name]
        many = f"{size.many}: {size.words('many')}" if size.many else "–"
        shares = []
        for column in columns:
            asked = {unit.question for unit in units if unit.network == name and _group(unit) == column}
            shares.append(f"{done.get((name, column), 0) / len(asked) / size.images:.0%}" if asked else "–")
        lines.append(
            f"| {results.title(name)} | {size.images} | {size.words('clever')} | {many} | {size.words('cw')} | "
            f"{size.words('ifgsm')} | {' | '.join(shares)} |"
        )
    return (
        f"## What was computed\n\n{state} Images are those that the network classifies correctly: the first ones of "
        "the MNIST and CIFAR-10 test sets, and of the ImageNet pictures some in random order. The last columns say how "
        "much is there of each kind of work.\n\n" + "\n".join(lines) + "\n"
    )


def _group(unit: Unit) -> str:
    return unit.question if unit.kind == "maxima" else unit.kind


def _figures(out: Path, beside: Path) -> list[str]:
    found = []
    for name, (_, usual) in FIGURES.items():
        caption = CAPTIONS.get(name, usual)
        path = out / "figures" / f"{name}.png"
        if path.is_file():
            found.append(f"![{caption}]({os.path.relpath(path, beside)})\n\n{caption}\n")
    return found
