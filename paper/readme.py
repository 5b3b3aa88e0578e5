"""Write the page beside the results, paper/made/README.md: `python -m paper.readme`."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import torch

from cleverscore import tails
from cleverscore.loading.zoo.train import RECIPES
from paper import above, accuracy, ks, radius, targeted, timing, untargeted
from paper.command import Product, main
from paper.findings import findings
from paper.networks import NETWORKS
from paper.results import Results
from paper.tables import Cell, Table

FIGURES = {
    "cone": ("cone", "Where the margin cannot reach zero: inside the cone of its Lipschitz constant."),
    "densities": (
        "densities",
        "Block maxima of one image per network and the law fitted to them: end-point a, scale b, shape c, K-S "
        "statistic D and its p-value.",
    ),
    "ks": ("ks_bars", "Fits that the K-S test does not reject at 0.05."),
    "linf": ("linf", "linf distances by kind of target; the axis is logarithmic."),
    "gaps": ("gaps", "How far CW's distortion lies above CLEVER: share of images up to a gap (l2, random targets)."),
    "per-image": ("per_image", "Each image's score with its interval, and CW's distortion (l2, random targets)."),
    "blocks": (
        "blocks",
        "Scores from the first 50, 100, 250 and all 500 blocks of the same sample (l2), and CW's distortion "
        "of the same images.",
    ),
    "planes": (
        "planes",
        "A network with three hidden ReLU units in the plane: regions of equal gradient norm, and the exact "
        "distribution of that norm in two discs, with sampled values.",
    ),
}
INTRODUCTION = """# The paper, computed again in small sizes

Larger sizes are in `paper/medium/README.md`.

Tables and figures of T.-W. Weng et al., *Evaluating the Robustness of Neural Networks: An Extreme Value Theory
Approach* (ICLR 2018), from this package. This page is written by `python -m paper.readme` from the results, as
they are.

    make paper DATA=folder          # everything, in small sizes: an hour or two on two cores
    make paper-full DATA=folder     # the paper's sizes, for a cluster; prints what it will cost first
    .venv/bin/python -m paper.untargeted --quick --data folder      # one table alone; --help lists the options
    .venv/bin/python -m paper.readme --quick --data folder          # this page, from what was computed

`make paper` makes `.venv`, in which the package is. With `--out folder` results go there, and this page, too.

Interrupt it whenever you like: every finished unit of work is kept in `paper/made/units`, and the same command goes on
from there. On a Ray cluster add `--ray-address`.

`DATA` holds what cannot be shipped: `cifar-10-batches-bin/` (CIFAR-10's binary files, checked against their published
MD5 sums), `imagenet/` (pictures, the number of the class first in the name or as the name of a sub-folder),
`mobilenet_v1.onnx`, `resnet50.onnx`, `inception_v3.onnx` (or torchvision, which then supplies the weights), and
`mnist/` for test accuracies. Networks without their files are named, and left out with `--available`. Weights of the
eight small networks are shipped; `make zoo` trains them again.
"""


def tables(results: Results) -> dict[str, list[Table]]:
    """All tables, under the module that makes them."""
    return {
        "untargeted": untargeted.tables(results),
        "targeted": targeted.tables(results),
        "ks": ks.tables(results),
        "above": above.tables(results),
        "radius": radius.tables(results),
        "timing": timing.tables(results),
    }


def page(results: Results) -> str:
    """The whole page."""
    made = tables(results)
    parts = [INTRODUCTION, _computed(results), "## Findings\n", *(found.markdown() for found in findings(results)), ""]
    parts += ["## Networks\n", *(table.markdown() for table in accuracy.tables(results)), training()]
    parts.append("## Tables\n")
    parts += [table.markdown() for group in made.values() for table in group if table.cells]
    parts.append("## Figures\n")
    for name, (module, caption) in FIGURES.items():
        path = results.out / "figures" / f"{name}.png"
        if path.is_file():
            where = os.path.relpath(path, results.out)
            parts.append(f"![{caption}]({where})\n\n{caption} (`python -m paper.{module}`)\n")
    parts.append("## Every cell\n")
    flag = "--full" if results.full else "--quick"
    for module, group in made.items():
        for table in (table for table in group if table.cells):
            parts.append(_every_cell(table, f"python -m paper.{module} {flag} --data DATA"))
    return "\n".join(parts)


def _computed(results: Results) -> str:
    """What the page rests on."""
    missing = [network.title for name, network in NETWORKS.items() if name not in results.names]
    left_out = f" Left out: {', '.join(missing)}." if missing else ""
    smaller = "" if results.full else " Blocks are smaller than the paper's 1024, so that they see smaller maxima."
    lines = [
        "| network | images | blocks | CW | I-FGSM | blocks compared | released code |",
        "|---|--:|---|---|---|---|---|",
    ]
    for name in results.names:
        size = results.sizes[name]
        many = f"{size.many} image{'s' * (size.many > 1)}, {size.words('many')}" if size.many else "–"
        released = f"{size.released} images" if size.released else "–"
        lines.append(
            f"| {results.title(name)} | {size.images} | {size.words('clever')} | {size.words('cw')} | "
            f"{size.words('ifgsm')} | {many} | {released} |"
        )
    return (
        f"## What was computed\n\nSizes: {'the paper’s' if results.full else 'quick'}; torch {torch.__version__}."
        f"{left_out} Images are those that the network classifies correctly: the first ones of the MNIST and CIFAR-10 "
        "test sets, and of the ImageNet pictures some in random order. Images that an attack did not move are left out "
        "of its average, and brackets in the tables say how many are left. I-FGSM's cross-entropy is taken at a "
        "temperature where logits are so far apart that its gradient is lost in rounding, as in the distilled "
        "networks; the paper takes more iterations there. The end-point is fitted with a weak penalty "
        f"({tails.PENALTY:g}, see docs/statistics.md), where the paper takes plain maximum likelihood.{smaller}\n\n"
        f"{chr(10).join(lines)}\n"
    )


def training() -> str:
    """How the networks came to be."""
    epochs = [recipe.epochs for recipe in RECIPES.values()]
    return (
        f"Trained here by `cleverscore.loading.zoo.train` (SGD with Nesterov momentum, cosine schedule, {min(epochs)} "
        f"to {max(epochs)} epochs; the recipes are in that file). Distillation at temperature 100; bounded ReLU clips "
        "every activation to [0, 1]. The ImageNet networks are other people's weights; "
        "MobileNet is v1 (with torchvision: v2).\n"
    )


def _with_error(table: Table, cell: Cell) -> str:
    error = "" if math.isnan(cell.error) else f" ± {cell.error:.2g}"
    return table.text(cell.ours) + error


def _every_cell(table: Table, command: str) -> str:
    lines = [
        f"| {NETWORKS[cell.network].title} | {cell.column} | {table.text(cell.paper)} | {_with_error(table, cell)} | "
        f"{cell.images} | {cell.sizes} |"
        for cell in table.cells
    ]
    header = "| network | cell | paper | ours ± standard error | images | sizes |\n|---|---|--:|--:|--:|---|\n"
    body = header + "\n".join(lines)
    return f"<details><summary>{table.title}: <code>{command}</code></summary>\n\n{body}\n\n</details>\n"


def make(results: Results) -> None:
    """Write it beside the results."""
    write(results, results.out / "README.md")


def write(results: Results, target: Path) -> None:
    """Write the page to a file."""
    target.write_text(page(results), encoding="utf-8")


PRODUCT = Product("readme", tuple(NETWORKS), (), make)


if __name__ == "__main__":
    sys.exit(main([PRODUCT], __doc__))
