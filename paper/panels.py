"""Figures with a row of panels for each data set and a panel for each kind of target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paper import figure
from paper.networks import KINDS, NETWORKS
from paper.results import KIND_TITLES, Results


def panels(results: Results, names: Sequence[str], ylabel: str) -> tuple[Any, list[tuple[Any, list[str], str]]]:
    """The figure, and of each panel its axes, its networks and its kind of target; the networks stand at 0, 1, ..."""
    families = [
        members
        for family in ("mnist", "cifar")
        if (members := [name for name in names if NETWORKS[name].family == family])
    ]
    made, axes = figure.subplots(len(families), len(KINDS), height=1.9, sharey="row")
    found = []
    for line, members in zip(axes, families, strict=True):
        line[0].set_ylabel(ylabel)
        for axis, kind in zip(line, KINDS, strict=True):
            axis.set_xticks(range(len(members)), [results.title(name).split("-", 1)[1] for name in members])
            axis.set_title(f"{results.title(members[0]).split('-')[0]}: {KIND_TITLES[kind].lower()} target")
            found.append((axis, members, kind))
    return made, found
