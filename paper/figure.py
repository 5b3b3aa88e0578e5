"""How figures look, and how they are written: PNG and SVG, readable in a column of a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLUMN, PAGE = 3.35, 6.9  # inches
# Okabe & Ito's colours, which most colour-blind people can tell apart.
COLOURS = {
    "CLEVER": "#0072B2",
    "SLOPE": "#CC79A7",
    "CW": "#D55E00",
    "I-FGSM": "#E69F00",
    "grey": "#6b6b6b",
    "green": "#009E73",
    "sky": "#56B4E9",
}
STYLE = {
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.2,
    "svg.hashsalt": "cleverscore",
    "svg.fonttype": "none",
}


def subplots(rows: int, columns: int, *, width: float = PAGE, height: float = 2.0, **more: Any) -> tuple[Any, Any]:
    """A figure with our style and an array of axes, (rows, columns)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(STYLE)
    return pyplot.subplots(rows, columns, figsize=(width, height * rows), layout="constrained", squeeze=False, **more)


def legend(figure: Any, *axes: Any) -> None:
    """One legend for all panels, above them, with what appears in any of these."""
    found: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    figure.legend(found.values(), found, loc="outside upper center", ncols=len(found))


def write(figure: Any, name: str, out: Path) -> None:
    """PNG and SVG, or nothing where there is no figure; the same numbers give the same files."""
    if figure is None:
        return
    from matplotlib import pyplot

    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=200, metadata={"Software": None})
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
