"""What a run found, as flat columns: one entry per input in every norm, in the order of the inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleverscore.estimators.stop_reason import BUDGET
from cleverscore.inputs.targets import takes_smallest
from cleverscore.norms import norm_name, parse_norm
from cleverscore.reporting.stored import stored_table
from cleverscore.runs.results import radii_text, what_is_missing
from cleverscore.runs.store import Store
from cleverscore.runs.study import StudyConfig
from cleverscore.runs.thumbnails import Picture
from cleverscore.scores.score import Score, Scores
from cleverscore.tails.paired_tests import Interval, median_interval

if TYPE_CHECKING:
    import pandas

Array = npt.NDArray[np.float64]

SLACK = 1e-4  # relative: an attack ends just beyond the boundary, and a score may be exact


@dataclass(frozen=True)
class NormFindings:
    """One norm: the smallest score of each input, None where it is not there yet, and what stands around it.

    upper       the best attack's distortion, NaN where none was run, infinite where all failed.
    certified   the certified radius, NaN where nothing was certified.
    targets     all scores of an input, one per target class.
    """

    p: float
    radius: float
    heads: tuple[Score | None, ...]
    upper: Array
    certified: Array
    attacks: tuple[str | None, ...]
    targets: tuple[tuple[Score, ...], ...]

    @property
    def name(self) -> str:
        """The norm as it is written."""
        return norm_name(self.p)

    @property
    def known(self) -> list[Score]:
        """The scores that there are."""
        return [head for head in self.heads if head is not None]

    def column(self, name: str) -> Array:
        """A number of each head, NaN where there is none."""
        return np.array([math.nan if head is None else float(getattr(head, name)) for head in self.heads])

    @property
    def median(self) -> Interval:
        """The median score and its interval over inputs."""
        return median_interval(self.column("value"))

    @property
    def above_attack(self) -> npt.NDArray[np.bool_]:
        """Inputs whose score lies above the best attack."""
        return np.asarray(self.column("value") > self.upper * (1.0 + SLACK))

    @property
    def below_certificate(self) -> npt.NDArray[np.bool_]:
        """Inputs whose score lies below what is certified, not cut at the radius."""
        capped = np.array([head is not None and head.capped for head in self.heads], dtype=bool)
        return np.asarray((self.column("value") < self.certified * (1.0 - SLACK)) & ~capped)

    @property
    def violation_rate(self) -> float:
        """Share of attacked inputs whose score lies above the attack; NaN without attacks."""
        attacked = np.isfinite(self.upper) & ~np.isnan(self.column("value"))
        return float(self.above_attack[attacked].mean()) if attacked.any() else math.nan

    @property
    def certified_share(self) -> float:
        """Share of inputs with a certified radius above 0; NaN without certificates."""
        asked = ~np.isnan(self.certified)
        return float((self.certified[asked] > 0.0).mean()) if asked.any() else math.nan

    def flags(self) -> dict[str, npt.NDArray[np.bool_]]:
        """What a reader should know about an input, by name."""

        def marked(test: Any) -> npt.NDArray[np.bool_]:
            return np.array([head is not None and bool(test(head)) for head in self.heads], dtype=bool)

        return {
            "misclassified": marked(lambda head: head.correct is False),
            "capped": marked(lambda head: head.capped),
            "open": marked(lambda head: head.low == 0.0 < head.value),
            "budget": marked(lambda head: head.stopped == BUDGET),
            "no_score": marked(lambda head: math.isnan(head.value)),
            "above_attack": self.above_attack,
            "below_certificate": self.below_certificate,
        }


@dataclass(frozen=True)
class Findings:
    """All norms of a run, its inputs and what it was made with.

    ids         the inputs that have a score in at least one norm.
    unfinished  how far a run is that is not finished, in words; None where it is.
    """

    config: StudyConfig
    meta: Mapping[str, Any]
    ids: tuple[int, ...]
    labels: tuple[int | None, ...]
    predicted: tuple[int, ...]
    norms: tuple[NormFindings, ...]
    pictures: Mapping[int, Picture]
    unfinished: str | None = None

    @property
    def radii(self) -> str:
        """The radius, or the radii by norm where they differ."""
        return radii_text({norm.name: norm.radius for norm in self.norms}) or "-"

    @property
    def penalty(self) -> float:
        """The penalty of the tail fits; NaN where nothing was fitted."""
        fitted = (head.fit.penalty for norm in self.norms for head in norm.known)
        return next((penalty for penalty in fitted if not math.isnan(penalty)), math.nan)

    @property
    def penalty_words(self) -> str:
        """The penalty in a sentence, with a comma behind it; nothing where nothing was fitted."""
        return "" if math.isnan(self.penalty) else f"penalty {self.penalty:g}, "

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, where the model or the data has them."""
        names = self.meta.get("class_names")
        return None if not names else [str(name) for name in names]

    def class_name(self, number: int | None) -> str:
        """A class in words."""
        names = self.class_names
        if number is None:
            return "-"
        return names[number] if names is not None and 0 <= number < len(names) else str(number)


def findings(store: Store) -> Findings:
    """Read a run."""
    config = StudyConfig.stored(store)
    meta = store.meta
    scores, frame = stored_table(store)
    ids = sorted({head.input for head in scores})
    places = {input_id: place for place, input_id in enumerate(ids)}
    first: dict[int, Score] = {}
    for head in scores:
        first.setdefault(head.input, head)
    norms = tuple(_norm(config, norm, scores, frame, places) for norm in config.norms)
    return Findings(
        config=config,
        meta=meta,
        ids=tuple(ids),
        labels=tuple(first[i].label for i in ids),
        predicted=tuple(first[i].predicted for i in ids),
        norms=norms,
        pictures=store.pictures(),
        unfinished=what_is_missing(store),
    )


def _norm(
    config: StudyConfig, norm: str, scores: Scores, frame: pandas.DataFrame, places: Mapping[int, int]
) -> NormFindings:
    p = parse_norm(norm)
    radius = config.settings(norm).radius
    assert radius is not None  # Settings fills it in
    heads: list[Score | None] = [None] * len(places)
    for head in scores:
        if head.p == p:
            heads[places[head.input]] = head
    targets: list[list[Score]] = [[] for _ in places]
    for row in scores.rows:
        if row.p == p and not takes_smallest(row.target_kind):
            targets[places[row.input]].append(row)
    upper, certified, attacks = _bounds(frame, heads, p)
    return NormFindings(p, radius, tuple(heads), upper, certified, attacks, tuple(map(tuple, targets)))


def _bounds(
    frame: pandas.DataFrame, heads: Sequence[Score | None], p: float
) -> tuple[Array, Array, tuple[str | None, ...]]:
    """The columns upper, certified and attack of the heads, where the run has them."""
    nothing = np.full(len(heads), math.nan)
    if not {"upper", "certified", "attack"} <= set(frame.columns):
        return nothing, nothing.copy(), (None,) * len(heads)
    part = frame[frame["norm"] == norm_name(p)]
    keys = zip(part["input"], part["target"], part["target_kind"], strict=True)
    values = zip(part["upper"], part["certified"], part["attack"], strict=True)
    found = dict(zip(keys, values, strict=True))
    empty = (math.nan, math.nan, None)
    of_head = [
        empty if head is None else found.get((head.input, head.target, head.target_kind), empty) for head in heads
    ]
    return (
        np.array([float(row[0]) for row in of_head]),
        np.array([float(row[1]) for row in of_head]),
        tuple(row[2] if isinstance(row[2], str) else None for row in of_head),
    )
