"""The results of a run as columns: for every norm, sequences with one entry per input, in the order of their ids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleverscore.brackets.agreement import above_attack, below_certificate, share_above_attack, share_certified
from cleverscore.errors import InputError
from cleverscore.estimators.estimator import Wording
from cleverscore.estimators.score_rule import ScoreRule
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.inputs.targets import takes_smallest
from cleverscore.norms import norm_name
from cleverscore.reporting.robust_accuracy import RobustAccuracy, Share, main_method, robust_accuracy
from cleverscore.runs.results import (
    StudyConfig,
    radii_text,
    rules_of,
    stored_bracket,
    stored_scores,
    what_is_missing,
    wordings_of,
)
from cleverscore.runs.store import Store
from cleverscore.runs.thumbnails import Picture
from cleverscore.scores.score import Score, Scores
from cleverscore.tails.paired_tests import Interval, median_interval

if TYPE_CHECKING:
    from cleverscore.brackets.bracket import Bracket

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Known:
    rows: list[Score]
    lower: Array
    upper: Array


@dataclass(frozen=True)
class NormFindings:
    """The results of a run in one norm; every sequence has one entry per input, in the order of `Findings.ids`.

    p, radius   the norm, and the radius of its scores.
    per_input   the score of each input, the smallest over its targets; None if it is not computed yet.
    certified   the certified radius of each input, NaN without a certificate.
    attacks     the name of the best attack on each input; None if none was run.
    targets     the scores of each input for its target classes, by `method`.
    method      the method of `per_input`: the first of the run that searches (such as sharp), else the first.
    by_method   `per_input` by every method of the run.
    uppers      for every method, the best attack's distortion of each input: NaN if none was run, infinite if all
                failed. They can differ between methods, because an attack is for the target of the method's score.
    certificates    for every method, the certified radii; they can differ for the same reason.
    """

    p: float
    radius: float
    per_input: tuple[Score | None, ...]
    certified: Array
    attacks: tuple[str | None, ...]
    targets: tuple[tuple[Score, ...], ...]
    method: str = ""
    by_method: Mapping[str, tuple[Score | None, ...]] = field(default_factory=dict)
    uppers: Mapping[str, Array] = field(default_factory=dict)
    certificates: Mapping[str, Array] = field(default_factory=dict)

    @property
    def upper(self) -> Array:
        """The best attack's distortion for the scores of `method`; NaN where there is no score or no attack."""
        return self.uppers.get(self.method, np.full(len(self.per_input), math.nan))

    @property
    def sampled(self) -> NormFindings:
        """The results with `per_input` by a method with block maxima: `method` if it has them, else the first other.

        They are unchanged if no method has any.
        """
        for scores in (self.per_input, *self.by_method.values()):
            if any(score is not None and len(score.maxima) for score in scores):
                return replace(self, per_input=scores)
        return self

    def judged_by(self, method: str) -> NormFindings:
        """The results with another method of the run as `method`, and its scores, radius and certified radii.

        `attacks` and `targets` stay as they are.
        """
        count = len(self.per_input)
        per_input = self.by_method.get(method, (None,) * count)
        known = [score for score in per_input if score is not None]
        return replace(
            self, method=method, per_input=per_input, radius=known[0].radius if known else self.radius,
            certified=self.certificates.get(method, np.full(count, math.nan)),
        )  # fmt: skip

    @property
    def other(self) -> str | None:
        """The first method of the run that is not `method`; None if there is no other."""
        return next((name for name in self.by_method if name != self.method), None)

    @property
    def name(self) -> str:
        """The name of the norm."""
        return norm_name(self.p)

    @property
    def known(self) -> list[Score]:
        """The scores that are already computed."""
        return [score for score in self.per_input if score is not None]

    def column(self, name: str) -> Array:
        """The attribute `name` of the score of each input, (inputs,); NaN without a score."""
        return np.array([math.nan if score is None else float(getattr(score, name)) for score in self.per_input])

    @property
    def median(self) -> Interval:
        """The median score with its interval over inputs; misclassified inputs have score 0."""
        return median_interval(self.column("counted"))

    def median_of(self, method: str) -> Interval:
        """The median score by one of the run's methods, as `median`."""
        return median_interval(self.counted_of(method))

    def counted_of(self, method: str) -> Array:
        """The scores of one method, 0 for misclassified inputs, NaN without a score."""
        return np.array([math.nan if score is None else score.counted for score in self.by_method[method]])

    @property
    def counted_upper(self) -> Array:
        """The best attacks' distortions, 0 for misclassified inputs, NaN where none was run."""
        return self._zeroed(self.upper)

    @property
    def counted_certified(self) -> Array:
        """The certified radii, 0 for misclassified inputs, NaN without a certificate."""
        return self._zeroed(self.certified)

    def _zeroed(self, values: Array) -> Array:
        wrong = np.array([score is not None and score.correct is False for score in self.per_input], dtype=bool)
        return np.asarray(np.where(wrong & ~np.isnan(values), 0.0, values))

    @property
    def attack_median(self) -> Interval:
        """The median of `counted_upper` with its interval; NaN if no attack was run."""
        return median_interval(self.counted_upper)

    @property
    def certified_median(self) -> Interval:
        """The median of `counted_certified` with its interval; NaN without certificates."""
        return median_interval(self.counted_certified)

    def over(self, ids: Sequence[int]) -> NormFindings:
        """The results of the inputs with these ids, in the order given; each must have a score."""
        places = {score.input: place for place, score in enumerate(self.per_input) if score is not None}
        keep = [places[i] for i in ids]
        return self._kept(keep)

    def _kept(self, keep: Sequence[int]) -> NormFindings:
        def kept(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[i] for i in keep)

        return replace(
            self, per_input=kept(self.per_input), certified=self.certified[list(keep)],
            attacks=kept(self.attacks), targets=kept(self.targets),
            by_method={name: kept(per_input) for name, per_input in self.by_method.items()},
            uppers={name: upper[list(keep)] for name, upper in self.uppers.items()},
            certificates={name: certified[list(keep)] for name, certified in self.certificates.items()},
        )  # fmt: skip

    @property
    def robust_accuracy(self) -> RobustAccuracy:
        """Robust accuracy against epsilon, over the inputs that have a score."""
        there = np.array([score is not None for score in self.per_input], dtype=bool)
        return robust_accuracy(_Known(self.known, self.certified[there], self.upper[there]))

    @property
    def above_attack(self) -> npt.NDArray[np.bool_]:
        """Whether the score of each input lies above the best attack, (inputs,)."""
        return above_attack(self.column("value"), self.upper)

    @property
    def below_certificate(self) -> npt.NDArray[np.bool_]:
        """Whether the score of each input is below the certified radius and not capped at the radius, (inputs,)."""
        capped = np.array([score is not None and score.capped for score in self.per_input], dtype=bool)
        return below_certificate(self.column("value"), self.certified, capped)

    def violation_rate_of(self, method: str) -> float:
        """Share of scores by `method` above the best attack, where one succeeded; NaN where none did."""
        if method not in self.by_method:
            return math.nan
        values = [math.nan if score is None else score.value for score in self.by_method[method]]
        return share_above_attack(np.array(values), self.uppers[method])

    @property
    def certified_share(self) -> float:
        """Share of inputs with a certified radius above 0; NaN without certificates."""
        return share_certified(self.certified)

    def flags(self) -> dict[str, npt.NDArray[np.bool_]]:
        """For each remark on inputs, such as "capped", whether it applies to each input, (inputs,)."""

        def marked(test: Any) -> npt.NDArray[np.bool_]:
            return np.array([score is not None and bool(test(score)) for score in self.per_input], dtype=bool)

        return {
            "misclassified": marked(lambda score: score.correct is False),
            "capped": marked(lambda score: score.capped),
            "open": marked(lambda score: score.open_below),
            "budget": marked(lambda score: score.stopped == StopReason.BUDGET),
            "no_score": marked(lambda score: math.isnan(score.value)),
            "above_attack": self.above_attack,
            "below_certificate": self.below_certificate,
        }


@dataclass(frozen=True)
class Findings:
    """Results of a run in all norms, its inputs and its settings.

    config      the settings of the run.
    meta        all that the run stores about itself, such as versions and names of classes.
    ids         the ids of the inputs that have a score in at least one norm, in ascending order.
    labels      the label of each input; None if it is not known.
    predicted   the class that the model predicts for each input.
    norms       the results in each norm.
    pictures    small pictures of the inputs by id, as far as the run stores them.
    wordings    the texts about the methods of the run, by method.
    unfinished  the progress of an unfinished run, as text; None if it is finished.
    excluded    a text that says that misclassified inputs were left out; empty if they are included with score 0.
    adversarials    the nearest adversarial input by (input, norm): its distance, its class, its picture.
    methods_remarks     sentences on how reliable the scores of several methods are; empty for a single method.
    folder      the folder of the run, for errors.
    """

    config: StudyConfig
    meta: Mapping[str, Any]
    ids: tuple[int, ...]
    labels: tuple[int | None, ...]
    predicted: tuple[int, ...]
    norms: tuple[NormFindings, ...]
    pictures: Mapping[int, Picture]
    wordings: Mapping[str, Wording]
    unfinished: str | None = None
    excluded: str = ""
    adversarials: Mapping[tuple[int, str], tuple[float, int, Picture]] = field(default_factory=dict)
    methods_remarks: tuple[str, ...] = ()
    folder: str = "the run"

    @property
    def accuracy(self) -> Share:
        """The share of inputs that are classified correctly; NaN without labels."""
        right = [
            label == predicted
            for label, predicted in zip(self.labels, self.predicted, strict=True)
            if label is not None
        ]
        return Share.of(sum(right), len(right))

    @property
    def wording(self) -> Wording:
        """The texts about the main method: that of `per_input` in the first norm."""
        return self.wordings[self.norms[0].method]

    @property
    def radii(self) -> str:
        """The radius as text, or the radii by norm where they differ."""
        return radii_text({norm.name: norm.radius for norm in self.norms}) or "-"

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, if the model or the data has them."""
        names = self.meta.get("class_names")
        return None if not names else [str(name) for name in names]


def findings(store: Store, *, maxima: bool = True) -> Findings:
    """Read the results of a run.

    Without `maxima`, block maxima are not read, which is faster; only plots of fits and `compare` need them.
    """
    config = StudyConfig.stored(store)
    meta = store.meta
    parts = [stored_scores(store, maxima=maxima, method=method) for method in config.methods]
    bracket = stored_bracket(store, *parts)
    scores = Scores.joined(parts)
    ids = sorted({score.input for score in scores})
    places = {input_id: place for place, input_id in enumerate(ids)}
    first: dict[int, Score] = {}
    for score in scores:
        first.setdefault(score.input, score)
    rules = rules_of(store, config, config.methods[0]).values()
    norms = tuple(_norm(rule, scores, bracket, places) for rule in rules)
    return Findings(
        config=config,
        meta=meta,
        ids=tuple(ids),
        labels=tuple(first[i].label for i in ids),
        predicted=tuple(first[i].predicted for i in ids),
        norms=norms,
        pictures=store.pictures(),
        wordings=wordings_of(store),
        unfinished=what_is_missing(store),
        excluded=_excluded(config, meta),
        adversarials=store.adversarials(),
        methods_remarks=_methods_remarks(bracket),
        folder=str(store.folder),
    )


def _methods_remarks(bracket: Bracket | None) -> tuple[str, ...]:
    if bracket is None or not bracket.others:
        return ()
    from cleverscore.brackets.tables import methods_remarks  # imports torch, which runs of one method need not

    return tuple(methods_remarks(bracket))


def _excluded(config: StudyConfig, meta: Mapping[str, Any]) -> str:
    """A text that says that the run left misclassified inputs out; empty if it did not."""
    return "misclassified inputs were left out of the run" if config.skip_misclassified or meta.get("selection") else ""


def _norm(rule: ScoreRule, scores: Scores, bracket: Bracket | None, places: Mapping[int, int]) -> NormFindings:
    p = rule.p
    methods: dict[str, list[Score | None]] = {}
    for score in scores:
        if score.p == p:
            methods.setdefault(score.method, [None] * len(places))[places[score.input]] = score
    of_norm = [score for score in scores if score.p == p]
    method = main_method(of_norm) if of_norm else rule.method
    per_input = methods.get(method, [None] * len(places))
    targets: list[list[Score]] = [[] for _ in places]
    for row in scores.rows:
        if row.p == p and row.method == method and not takes_smallest(row.target_kind):
            targets[places[row.input]].append(row)
    _, certified, attacks = _bounds(bracket, per_input)
    bounds = {name: _bounds(bracket, of) for name, of in methods.items()}
    return NormFindings(
        p, rule.radius, tuple(per_input), certified, attacks, tuple(map(tuple, targets)), method,
        {name: tuple(of) for name, of in methods.items()},
        {name: upper for name, (upper, _, _) in bounds.items()},
        {name: lower for name, (_, lower, _) in bounds.items()},
    )  # fmt: skip


def without_misclassified(found: Findings) -> Findings:
    """The results without the inputs that the model misclassifies. Raises an InputError if none is left."""
    keep = [i for i, (label, predicted) in enumerate(zip(found.labels, found.predicted, strict=True))
            if label is None or label == predicted]  # fmt: skip
    if not keep:
        raise InputError("all inputs are misclassified, and misclassified inputs are excluded: nothing is left")

    def kept(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[i] for i in keep)

    norms = tuple(norm._kept(keep) for norm in found.norms)
    return replace(
        found, ids=kept(found.ids), labels=kept(found.labels), predicted=kept(found.predicted), norms=norms,
        excluded=found.excluded or "misclassified inputs are excluded",
    )  # fmt: skip


def _bounds(bracket: Bracket | None, per_input: Sequence[Score | None]) -> tuple[Array, Array, tuple[str | None, ...]]:
    """For each score: the best attack's distortion, the certified radius, and the attack's name.

    The numbers are NaN and the name None where the run has none.
    """
    found: dict[tuple[Any, ...], tuple[float, float, str | None]] = {}
    if bracket is not None:
        for part in (bracket, *bracket.others):
            values = zip(part.rows, part.upper.tolist(), part.lower.tolist(), part.attack, strict=True)
            found |= {_place(row): (upper, lower, attack) for row, upper, lower, attack in values}
    empty = (math.nan, math.nan, None)
    found_for = [empty if score is None else found.get(_place(score), empty) for score in per_input]
    upper, lower, attacks = zip(*found_for, strict=True) if found_for else ((), (), ())
    return np.array(upper, np.float64), np.array(lower, np.float64), tuple(attacks)


def _place(row: Score) -> tuple[Any, ...]:
    return row.input, row.p, row.method, row.target, row.target_kind
