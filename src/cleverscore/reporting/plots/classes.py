"""A heat map of scores by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cleverscore.errors import InputError
from cleverscore.inputs.targets import takes_smallest
from cleverscore.reporting.plots.canvas import new_axes, tex
from cleverscore.scores.score import Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_WRITTEN = 12  # classes; with more there is no room for numbers


def classes(scores: Scores, axes: Axes | None = None, *, names: Sequence[str] | None = None) -> Axes:
    """Heat map of the median score for each predicted class (rows) and target class (columns).

    Dark cells have small scores. `names` are the names of the classes, by number.
    """
    rows = [row for row in scores.rows if not takes_smallest(row.target_kind) and not np.isnan(row.value)]
    if not rows:
        raise InputError("there is no score to draw")
    if len({row.p for row in rows}) > 1:
        raise InputError("classes() draws one norm at a time, as scores in different norms have different units")
    down, across = sorted({row.predicted for row in rows}), sorted({row.target for row in rows})
    cells: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        cells.setdefault((row.predicted, row.target), []).append(row.value)
    table = np.full((len(down), len(across)), np.nan)
    for (predicted, target), values in cells.items():
        table[down.index(predicted), across.index(target)] = np.median(values)
    size = max(4.0, 0.42 * len(across))
    axes = new_axes(axes, (size + 1.2, max(3.2, 0.36 * len(down) + 1.0)))
    shown = axes.imshow(np.ma.masked_invalid(table), cmap="cividis", aspect="auto")
    axes.spines[["left", "bottom"]].set_visible(False)

    def name(number: int) -> str:
        return names[number] if names is not None and number < len(names) else str(number)

    axes.set_xticks(range(len(across)), [name(number) for number in across], fontsize=8)
    axes.set_yticks(range(len(down)), [name(number) for number in down], fontsize=8)
    if max(table.shape) <= MOST_WRITTEN:
        middle = (np.nanmin(table) + np.nanmax(table)) / 2.0
        for (i, j), value in np.ndenumerate(table):
            if not np.isnan(value):
                color = "white" if value < middle else "black"
                axes.text(j, i, f"{value:.2g}", ha="center", va="center", fontsize=7, color=color)
    axes.set_xlabel("target class")
    axes.set_ylabel("predicted class")
    figure = axes.get_figure(root=True)
    assert figure is not None  # axes are always in one
    figure.colorbar(shown, ax=axes, label=rf"median score, $\ell_{{{tex(rows[0].p)}}}$")
    return axes
