"""Common parts of plots: colours, axes, names of norms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cleverscore.errors import InputError, MissingExtraError
from cleverscore.norms import dual_exponent, norm_name
from cleverscore.scores.score import Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe & Ito.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"


def new_axes(axes: Axes | None, size: tuple[float, float] = (5.0, 3.4)) -> Axes:
    """The given axes, or new ones in a new figure without a window."""
    if axes is not None:
        return axes
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError.of("matplotlib", "report", "plotting") from error
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    new: Axes = figure.subplots()
    new.spines[["top", "right"]].set_visible(False)
    return new


def tex(p: float) -> str:
    """The p of a norm as TeX."""
    return r"\infty" if math.isinf(p) else norm_name(p)


def gradient_label(p: float) -> str:
    """The axis label of block maxima, the largest gradient norms of blocks, for scores in norm p."""
    return rf"largest $\Vert\nabla g\Vert_{{{tex(dual_exponent(p))}}}$ of a block"


def checked_score(score: Score, name: str) -> Score:
    """The score itself; raises an InputError for anything but one `Score`. `name` is the plot's, for the error."""
    if not isinstance(score, Score):
        raise InputError(f"{name}() draws one Score, not a {type(score).__name__}; take one input's: scores[0]")
    return score


def title_of(score: Score) -> str:
    """The title of a plot of one score: input, predicted class, target and value."""
    return f"input {score.input}: class {score.predicted} against {score.target}, score {score.value:.4g}"
