"""The picture of docs/sharp.md: `python docs/_tools/sharp_picture.py [--out docs/_static/sharp.png]`.

Left, the margin of one MNIST image along straight ways out, with the shells of its score as bands. Right, what the
score is made of: the largest fall per length that the search found across each shell.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot
from matplotlib.axes import Axes

import cleverscore as cs
from cleverscore.estimators.ascent.boundary_descent import descend
from cleverscore.estimators.ascent.margin_rows import MarginRows

IMAGE, RANDOM = 1, 4
STEPS, POINTS = 80, 200
BEYOND = 1.15  # how far the ways are drawn, in distances of the nearest crossing


def ways(classifier: cs.Classifier, x: torch.Tensor, score: cs.Score) -> dict[str, list[torch.Tensor]]:
    """Directions of l2 length 1: to the nearest crossing that a descent meets, down the gradient, and at random."""
    target = torch.tensor([score.target])
    rows = MarginRows(classifier, score.predicted, [score.target], chunk_size=1024)
    _, points = descend(lambda z: rows.margins_and_gradients(z, target), x[None], x[None], p=2.0, steps=STEPS)
    _, gradients = rows.margins_and_gradients(x[None], target)
    drawn = torch.randn(RANDOM, *x.shape, generator=torch.Generator().manual_seed(0))
    return {
        "to the nearest crossing": [_unit(points[0] - x)],
        "against the gradient": [_unit(-gradients[0])],
        "at random": [_unit(direction) for direction in drawn],
    }


def _unit(direction: torch.Tensor) -> torch.Tensor:
    return direction / direction.norm()


def draw_margins(axes: Axes, classifier: cs.Classifier, x: torch.Tensor, score: cs.Score) -> None:
    """The margin along each way, over bands that are the shells."""
    assert score.profile is not None
    edges = score.profile.radii
    for k, (inner, outer) in enumerate(itertools.pairwise(edges)):
        axes.axvspan(inner, outer, color="0.5", alpha=0.08 + 0.1 * (k % 2), linewidth=0)
    lengths = torch.linspace(0.0, BEYOND * score.upper, POINTS)
    for (name, directions), color in zip(ways(classifier, x, score).items(), ("C0", "C1", "0.55"), strict=True):
        for number, direction in enumerate(directions):
            logits = classifier(x + lengths.view(-1, *(1 for _ in x.shape)) * direction).detach()
            margins = logits[:, score.predicted] - logits[:, score.target]
            axes.plot(lengths, margins, color=color, label=None if number else name)
    axes.axhline(0.0, color="black", linewidth=0.8)
    axes.axvline(score.value, color="C2", linestyle="--", label=f"score {score.value:.4g}")
    axes.set_xlabel("distance from the input, l2")
    axes.set_ylabel(f"margin of class {score.predicted} over {score.target}")
    axes.set_title("margin along straight ways; bands: shells", fontsize=10)
    axes.legend(fontsize=8)


def main() -> None:
    """Score one image and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "_static" / "sharp.png")
    out = parser.parse_args().out
    classifier = cs.load_model("zoo:mnist-mlp")
    images, _ = cs.load_data("zoo:mnist")
    x = torch.as_tensor(images[IMAGE])
    score = cs.clever(classifier, x[None], p=2, targets="runner_up", method="sharp", progress=False)[0]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8))
    draw_margins(left, classifier, x, score)
    cs.plots.profile(score, right)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
