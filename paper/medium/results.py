"""From units to rows: laws are fitted here, so that every penalty and number of blocks comes from the same maxima."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cleverscore import tails
from paper.medium.plan import AUTHORS, Unit, questions, units_of
from paper.medium.store import Arrays, Store, matches
from paper.networks import KINDS, LARGE
from paper.results import NORM_KEYS, Mean, Results
from paper.sizes import BLOCK_COUNTS, PAPER, RELEASED, Size
from paper.work import Question, Rows

PENALTY = 0.01  # that of the authors' program, which the paper's numbers come from
RADIUS = 5.0
REPLICATES = 99  # of the bootstrap behind an Anderson-Darling p-value
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """The block maxima of one image and target."""

    input: int
    target: int
    kinds: tuple[str, ...]
    margin: float
    block_size: int
    maxima: npt.NDArray[np.float32]


class Drawn:
    """What is kept in units, as rows like those that `quick` computes; whatever images are there count.

    weights     of each network: where its files are here only units of these weights are used.
    """

    def __init__(self, store: Store, weights: Mapping[str, str] | None = None, *, penalty: float = PENALTY) -> None:
        self.store, self.weights, self.penalty = store, weights or {}, penalty
        self._rows: dict[tuple[str, Question, Size], Rows] = {}
        self._samples: dict[tuple[str, str], list[tuple[str, Sample]]] = {}

    def answers(self, network: str, question: Question, size: Size) -> Rows:
        """Rows of a question, one for each image and target."""
        key = network, question, size
        if key not in self._rows:
            self._rows[key] = self._answered(network, question, size)
        return self._rows[key]

    def _answered(self, network: str, question: Question, size: Size) -> Rows:
        if question.kind in ("clever", "slope"):
            method, norm = question.detail.rsplit("-l", 1)
            if question.kind == "slope":
                unit, radius = f"slope-{NORM_KEYS[norm]}", RADIUS
            elif method == RELEASED:
                unit, radius = AUTHORS, math.inf
            elif method == PAPER:
                unit, radius = f"maxima-{NORM_KEYS[norm]}", RADIUS
            else:
                return []
            return self._fitted(network, unit, norm, size, size.blocks, radius)
        if question.kind == "many":
            norm = question.detail.removeprefix("l")
            return self._fitted(network, f"maxima-{NORM_KEYS[norm]}", norm, size, BLOCK_COUNTS[-1], RADIUS)
        if question.kind == "accuracy":
            return [
                {name: arrays[name].item() for name in ("accuracy", "images", "parameters")}
                for arrays in self.arrays(network, "accuracy", size)
            ]
        if question.name not in questions(network):
            return []
        columns = {"cw": ("l2", "linf", "iterations", "tries"), "ifgsm": ("l2", "linf", "iterations", "tries"),
                   "best": ("distortion",), "sharp": ("score", "crossing")}[question.kind]  # fmt: skip
        return [
            {"input": int(arrays["ids"][i]), **{name: arrays[name][i].item() for name in columns}}
            for arrays in self.arrays(network, question.name, size)
            for i in range(len(arrays["ids"]))
        ]

    def arrays(self, network: str, question: str, size: Size) -> Iterator[Arrays]:
        """Units of one question that are there."""
        for unit in units_of(network, question, size):
            found = self.store.load(unit)
            if found is not None and self._usable(found, unit, size):
                yield found

    def _usable(self, found: Arrays, unit: Unit, size: Size) -> bool:
        return matches(str(found["about"]), unit, size, self.weights.get(unit.network))

    def samples(self, network: str, unit: str, norm: str, size: Size) -> list[Sample]:
        """All samples of block maxima under one question."""
        key = network, unit
        if key not in self._samples:
            self._samples[key] = [
                (name, sample)
                for arrays in self.arrays(network, unit, size)
                for name in NORM_KEYS.values()
                if name in arrays
                for sample in _samples(arrays, name)
            ]
        return [sample for name, sample in self._samples[key] if name == NORM_KEYS[norm]]

    def _fitted(self, network: str, unit: str, norm: str, size: Size, blocks: int, radius: float) -> Rows:
        """Rows of the samples that have so many blocks: eliminated targets have fewer."""
        samples = [each for each in self.samples(network, unit, norm, size) if len(each.maxima) >= blocks]
        return fitted(samples, blocks, radius, self.penalty, intervals=network in LARGE)


def _samples(arrays: Arrays, norm: str) -> Iterator[Sample]:
    counts, targets, margins = (arrays[name] for name in ("counts", "targets", "margins"))
    ends = np.cumsum(counts)
    parts = np.split(arrays[norm], ends[:-1])
    kinds = arrays["kinds"]
    for place, maxima in enumerate(parts):
        i, t = divmod(place, counts.shape[1])
        target = int(targets[i, t])
        if target >= 0:
            meant = tuple(kind for kind, own in zip(KINDS, kinds[i], strict=True) if own == target)
            yield Sample(
                int(arrays["ids"][i]), target, meant, float(margins[i, t]), int(arrays["block_size"]), maxima
            )  # fmt: skip


def fitted(samples: list[Sample], blocks: int, radius: float, penalty: float, *, intervals: bool = False) -> Rows:
    """A row for each sample from its first blocks: score, law and the K-S test.

    intervals   whether scores have theirs: they take fifty times as long as the fits, and few figures show them.
    """
    if not samples:
        return []
    maxima = np.stack([sample.maxima[:blocks] for sample in samples]).astype(np.float64)
    fits = tails.fit(maxima, penalty=penalty)
    limits = tails.interval(maxima, fits) if intervals else None
    statistics, pvalues = tails.kolmogorov_smirnov(maxima, fits)
    margins = np.array([sample.margin for sample in samples])

    def score(ends: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(np.minimum(margins / ends, radius))

    values = score(fits.location)
    nothing = np.full(len(values), np.nan)
    low, high = (nothing, nothing) if limits is None else (score(limits.high), score(limits.low))
    return [
        {
            "input": sample.input, "target": sample.target, "kinds": list(sample.kinds), "margin": sample.margin,
            "radius": radius, "score": float(values[i]), "score_low": float(low[i]), "score_high": float(high[i]),
            "capped": bool(values[i] >= radius), "location": float(fits.location[i]), "scale": float(fits.scale[i]),
            "shape": float(fits.shape[i]), "outcome": str(fits.outcome[i]), "ks_statistic": float(statistics[i]),
            "ks_pvalue": float(pvalues[i]), "blocks": blocks, "block_size": sample.block_size, "maxima": maxima[i],
        }
        for i, sample in enumerate(samples)
    ]  # fmt: skip


@dataclass(frozen=True)
class MediumResults(Results):
    """Results of units that may not all be there yet: an average says of how many of the planned images it is."""

    kept: Drawn
    tested: dict[tuple[str, ...], dict[str, dict[int, bool]]] = field(default_factory=dict, compare=False)

    def mean_score(self, network: str, norm: str, kind: str, *, question: Question | None = None) -> Mean:
        """The average score."""
        return self.planned(super().mean_score(network, norm, kind, question=question), network)

    def mean_distortion(self, network: str, attack: str, norm: str, kind: str) -> Mean:
        """The average distortion of the attack's successes."""
        return self.planned(super().mean_distortion(network, attack, norm, kind), network)

    def planned(self, mean: Mean, network: str) -> Mean:
        """The same average, which knows how many images there will be."""
        return Mean(mean.value, mean.used, self.sizes[network].images, mean.error, failed=mean.count - mean.used)
