"""Figures with a row of panels for each data set and a panel for each kind of target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paper import figure
from paper.networks import KINDS, NETWORKS
from paper.results import KIND_TITLES, Results

FAMILIES = {"mnist": "MNIST", "cifar": "CIFAR", "imagenet": "ImageNet"}


def _short(title: str) -> str:
    return title.removeprefix("MNIST-").removeprefix("CIFAR-")


def panels(
    results: Results, names: Sequence[str], ylabel: str, *, sharey: str = "none"
) -> tuple[Any, list[tuple[Any, list[str], str]]]:
    """The figure, and of each panel its axes, its networks and its kind of target; the networks stand at 0, 1, ..."""
    families = [
        members for family in FAMILIES if (members := [name for name in names if NETWORKS[name].family == family])
    ]
    made, axes = figure.subplots(len(families), len(KINDS), height=1.9, sharey=sharey)
    found = []
    for line, members in zip(axes, families, strict=True):
        line[0].set_ylabel(ylabel)
        for axis, kind in zip(line, KINDS, strict=True):
            axis.set_xticks(range(len(members)), [_short(results.title(name)) for name in members])
            axis.set_xlim(-0.6, len(members) - 0.4)
            axis.set_title(f"{FAMILIES[NETWORKS[members[0]].family]}: {KIND_TITLES[kind].lower()} target")
            found.append((axis, members, kind))
    return made, found
