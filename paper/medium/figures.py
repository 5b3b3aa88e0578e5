"""Figures of the middle size: those of `quick` from these results, and two with error bars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from paper import cone, densities, figure, gaps, linf, per_image, planes
from paper.blocks import SHADES
from paper.medium import tables
from paper.medium.results import MediumResults
from paper.networks import KINDS, SMALL
from paper.panels import panels
from paper.results import KIND_TITLES, Mean
from paper.sizes import BLOCK_COUNTS
from paper.work import Question

TESTS = (("K-S", "o", "green"), ("A-D", "s", "CW"))


def draw_ks(results: MediumResults) -> Any:
    """Shares of fits that pass each test ± two standard errors, and the paper's: a panel for each norm and target."""
    found = {table.name: {(cell.network, cell.column): cell for cell in table.cells} for table in tables.ks(results)}
    names = [name for name in results.names if any(not math.isnan(cell.ours) for table in found.values()
             for (network, _), cell in table.items() if network == name)]  # fmt: skip
    if not names:
        return None
    places = np.arange(len(names))
    made, axes = figure.subplots(len(found), len(KINDS), height=2.6, sharey=True, sharex=True)
    for line, (table, cells) in zip(axes, found.items(), strict=True):
        for axis, kind in zip(line, KINDS, strict=True):
            for offset, (test, mark, colour) in zip((-0.17, 0.17), TESTS, strict=True):
                here = [cells[name, f"{KIND_TITLES[kind]} {test}"] for name in names]
                axis.errorbar(
                    [cell.ours for cell in here], places + offset, xerr=[2.0 * cell.error for cell in here],
                    fmt=mark, ms=3, lw=0.8, color=figure.COLOURS[colour], label=f"{test}, ours ± 2 standard errors",
                )  # fmt: skip
            paper = [cells[name, f"{KIND_TITLES[kind]} K-S"].paper for name in names]
            axis.plot(
                paper, places - 0.17, "o", ms=5.5, mfc="none", color=figure.COLOURS["grey"], label="K-S, the paper's"
            )
            axis.set_title(f"{KIND_TITLES[kind]} target, {table.removeprefix('ks-')}")
            axis.grid(lw=0.3)
            axis.set_yticks(places, [results.title(name) for name in names])
    for axis in axes[-1]:
        axis.set_xlabel("fits not rejected (%)")
    axes[0, 0].invert_yaxis()
    axes[0, 0].set_xlim(right=103.0)
    figure.legend(made, axes[0, 0])
    return made


def draw_blocks(results: MediumResults) -> Any:
    """Average l2 scores by the number of blocks ± standard errors, and CW's distortion of the same images."""
    names = [name for name in results.names if name in SMALL and tables.by_blocks(results, name, KINDS[0])[50]]
    if not names:
        return None
    made, found = panels(results, names, "l2 distance, average")
    for axis, members, kind in found:
        places = np.arange(len(members))
        scores = [tables.by_blocks(results, name, kind) for name in members]
        bars = [(f"{count} blocks", shade, [Mean.of(list(each[count].values())) for each in scores])
                for count, shade in zip(BLOCK_COUNTS, SHADES, strict=True)]  # fmt: skip
        moved = [results.distortions(name, "cw", "2", kind) for name in members]
        attacks = [Mean.of([own[i] for i in each[50] if i in own]) for own, each in zip(moved, scores, strict=True)]
        for i, (label, colour, means) in enumerate([*bars, ("CW", figure.COLOURS["CW"], attacks)]):
            axis.bar(
                places + 0.16 * (i - 2), [mean.value for mean in means], 0.15, color=colour, label=label,
                yerr=[mean.error for mean in means], error_kw={"lw": 0.7, "ecolor": "black"},
            )  # fmt: skip
    figure.legend(made, found[0][0])
    return made


def write(results: MediumResults) -> None:
    """All of them; those without any image are left out."""
    modules = [cone, planes, densities, gaps, per_image]
    if any(results.rows(name, Question("cw", "random")) for name in SMALL):
        modules.append(linf)
    for module in modules:
        module.PRODUCT.make(results)
    figure.write(draw_ks(results), "ks", results.out)
    figure.write(draw_blocks(results), "blocks", results.out)
