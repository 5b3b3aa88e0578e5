"""Settings and plots of the command `demo`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cleverscore.brackets.bracket import Bracket
from cleverscore.norms import norm_name
from cleverscore.reporting import plots
from cleverscore.scores.score import Scores

IMAGES = 10
BLOCKS = 64
BLOCK_SIZE = 64


def write_plots(scores: Scores, bracket: Bracket, folder: Path) -> Iterator[Path]:
    """Write three plots per norm into `folder`, and yield the path of each.

    They show robust accuracy, the scores of all inputs, and the fitted law of the input with the smallest score.
    """
    for p in sorted({score.p for score in scores}):
        of_norm = [score for score in scores if score.p == p]
        least = min(of_norm, key=lambda score: score.value)
        for name, axes in (
            ("robust-accuracy", plots.robust_accuracy(bracket, p=p)),
            ("scores", plots.bars(of_norm)),
            ("tail", plots.tail(least)),
        ):
            path = folder / f"{name}-l{norm_name(p)}.png"
            figure = axes.get_figure(root=True)
            assert figure is not None  # plots makes it
            figure.savefig(path)
            yield path
