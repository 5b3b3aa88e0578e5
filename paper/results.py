"""Averages, shares and lists over what was computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paper.networks import NETWORKS
from paper.sizes import PAPER, Size
from paper.work import Question, Rows, clever

KIND_TITLES = {"least_likely": "Least likely", "random": "Random", "runner_up": "Top-2"}
NORM_KEYS = {"2": "l2", "inf": "linf"}
LEVEL = 0.05  # of the K-S test


class Answers(Protocol):
    """Where rows come from."""

    def answers(self, network: str, question: Question, size: Size) -> Rows:
        """All rows of a question; none where it was not computed."""
        ...


@dataclass(frozen=True)
class Results:
    """What was computed, by network.

    full    whether the sizes are the paper's.
    """

    kept: Answers
    sizes: Mapping[str, Size]
    names: tuple[str, ...]
    full: bool
    out: Path

    def rows(self, network: str, question: Question) -> Rows:
        """Rows of one question; none where it was not computed."""
        if network not in self.names:
            return []
        return self.kept.answers(network, question, self.sizes[network])

    def scores(self, network: str, norm: str, kind: str, *, question: Question | None = None) -> dict[int, Any]:
        """Rows by input: of one kind of target, or, with kind "any", the smallest over all targets."""
        found: dict[int, Any] = {}
        for row in self.rows(network, question or clever(norm, PAPER)):
            if kind == "any":
                best = found.get(row["input"])
                if best is None or row["score"] < best["score"]:
                    found[row["input"]] = row
            elif kind in row["kinds"]:
                found[row["input"]] = row
        return found

    def distortions(self, network: str, attack: str, norm: str, kind: str) -> dict[int, float]:
        """Distortion by input; infinite where the attack failed."""
        key = NORM_KEYS[norm]
        return {row["input"]: row[key] for row in self.rows(network, Question(attack, kind))}

    def pairs(self, network: str, attack: str, norm: str, kind: str) -> list[tuple[float, float]]:
        """(score, distortion) of each image that an attack moved."""
        distortions = self.distortions(network, attack, norm, kind)
        found = [(row["score"], distortions.get(i, math.inf)) for i, row in self.scores(network, norm, kind).items()]
        return [pair for pair in found if math.isfinite(pair[1])]

    def mean_score(self, network: str, norm: str, kind: str, *, question: Question | None = None) -> Mean:
        """The average score."""
        found = self.scores(network, norm, kind, question=question)
        return Mean.of([row["score"] for row in found.values()])

    def mean_distortion(self, network: str, attack: str, norm: str, kind: str) -> Mean:
        """The average distortion of the attack's successes."""
        return Mean.of(list(self.distortions(network, attack, norm, kind).values()))

    def title(self, network: str) -> str:
        """The paper's name of a network."""
        return NETWORKS[network].title


@dataclass(frozen=True)
class Mean:
    """An average over `used` of `count` images, with its standard error; `failed` of them an attack did not move."""

    value: float
    used: int
    count: int
    error: float
    failed: int = 0

    @property
    def images(self) -> str:
        """How many images it is over: "20", or "18 of 20" where some have none."""
        text = images_text(self.used, self.count)
        return f"{text}, {self.failed} failed" if self.failed else text

    @classmethod
    def of(cls, values: list[float]) -> Mean:
        """Of the values that are numbers; a failed attack's is infinite."""
        good = [value for value in values if math.isfinite(value)]
        error = float(np.std(good, ddof=1)) / math.sqrt(len(good)) if len(good) > 1 else math.nan
        return cls(float(np.mean(good)) if good else math.nan, len(good), len(values), error)


def images_text(used: int, count: int) -> str:
    """How many images something is over.

    >>> images_text(20, 20), images_text(1, 3)
    ('20', '1 of 3')
    """
    return str(count) if used == count else f"{used} of {count}"
