"""Is B more robust than A? Paired differences of two runs on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cleverscore import tails
from cleverscore.errors import InputError
from cleverscore.reporting.findings import Findings, NormFindings
from cleverscore.reporting.robust_accuracy import ATTACKED, RobustAccuracy
from cleverscore.runs.results import radii_text
from cleverscore.scores.score import Score
from cleverscore.scores.text_table import number
from cleverscore.tails.paired_tests import FEWEST, Difference, difference, relative_change

Array = npt.NDArray[np.float64]

MUST_AGREE = ("targets", "region", "radius")
LEAST_HALF = 10  # blocks: the noise of a score is estimated from two halves of its blocks, with so many each at least
ATTACK, CERTIFICATE = "best attack", "certificate"


@dataclass(frozen=True)
class Change:
    """The relative change of a mean (or a median) over paired inputs, with its bootstrap interval.

    of              "mean" or "median".
    before, after   the mean (or median) of the first and of the second run.
    value           after / before - 1; NaN if `before` is not positive, or if one of the two is NaN.
    low, high       the interval at the confidence level `level`; NaN if `value` is, or for fewer than six inputs.
    """

    of: str
    before: float
    after: float
    value: float
    low: float
    high: float
    level: float

    @classmethod
    def between(cls, first: Array, second: Array, level: float, of: str = "mean") -> Change:
        """The change from `first` to `second`, (inputs,) each; infinite values are replaced as in `finite`."""
        first, second = finite(first, second)
        found = relative_change(first, second, of=of, level=level)
        statistic: Callable[..., Any] = np.mean if of == "mean" else np.median
        before, after = (float(statistic(values)) if len(values) else math.nan for values in (first, second))
        return cls(of, before, after, found.value, found.low, found.high, level)

    @property
    def words(self) -> str:
        """Both means (or medians), the change and its interval, as text."""
        text = f"{self.of} {number(self.before, 3)} then {number(self.after, 3)}"
        if math.isnan(self.value):
            return f"{text}, of which no relative change can be given"
        return f"{text}, {self.short}"

    @property
    def short(self) -> str:
        """The change and its interval, as text."""
        if math.isnan(self.value):
            return "-"
        if math.isnan(self.low):
            return f"{self.value:+.1%} (no interval with fewer than {FEWEST} inputs)"
        return f"{self.value:+.1%} ({100.0 * self.level:.3g}% interval {self.low:+.1%} to {self.high:+.1%})"


def finite(first: Array, second: Array) -> tuple[Array, Array]:
    """The distances of two runs, with infinite ones (no attack succeeded) replaced by the largest finite one of both.

    If no distance is finite, they are replaced by 0.
    """
    known = np.concatenate([first, second])
    largest = float(known[np.isfinite(known)].max(initial=0.0))
    return np.minimum(first, largest), np.minimum(second, largest)


@dataclass(frozen=True)
class Evidence:
    """One measure of two runs, over the same inputs.

    kind            "score (METHOD)", "best attack" or "certificate".
    first, second   (inputs,), the distances in the first and in the second run: scores, distortions or radii.
    difference      how they differ.
    change          the relative change of their mean.
    """

    kind: str
    first: Array
    second: Array
    difference: Difference
    change: Change


@dataclass(frozen=True)
class Pairing:
    """The comparison of two runs in one norm, over the inputs that both have.

    An input that a model misclassifies has score 0 for that model, unless such inputs are excluded.

    norm            the name of the norm.
    ids             the ids of the compared inputs.
    first, second   (inputs,), the scores of these inputs in the first and in the second run.
    difference      how the scores differ.
    left_out        number of inputs that both runs have and that are not compared: they have no score in one of the
                    runs, or are misclassified and excluded.
    unpaired        number of inputs that only one of the runs has.
    counts          numbers of inputs that the first and the second run have.
    bounds          the input bounds of the two runs, None for a run without bounds.
    same_model      whether the models of both runs have the same weights.
    capped          number of inputs of which at least one of the two scores is capped at the radius.
    misclassified   numbers of compared inputs that the first and the second model misclassify.
    method          the method of the scores: one that both runs have.
    methods         all methods of the first and of the second run.
    change          the relative change of the mean score.
    further         the other measures that both runs have: scores of another method, best attacks, certificates.
    curves          robust accuracy of the two runs over the compared inputs; None if there are none.
    """

    norm: str
    ids: tuple[int, ...]
    first: Array
    second: Array
    difference: Difference
    left_out: int
    unpaired: int
    counts: tuple[int, int]
    bounds: tuple[tuple[float, float] | None, tuple[float, float] | None]
    same_model: bool
    capped: int
    misclassified: tuple[int, int]
    method: str
    methods: tuple[tuple[str, ...], tuple[str, ...]]
    change: Change
    further: tuple[Evidence, ...]
    curves: tuple[RobustAccuracy, RobustAccuracy] | None

    @property
    def measures(self) -> tuple[Evidence, ...]:
        """All measures: the scores of `method`, then `further`."""
        scores = Evidence(f"score ({self.method})", self.first, self.second, self.difference, self.change)
        return scores, *self.further

    @property
    def verdict(self) -> int:
        """1 if the second model is more robust, -1 if the first is, else 0.

        It is 0 if no measure favours a model, if measures favour different ones, and if both runs are of one model.
        """
        told = set(self.verdicts.values()) - {0}
        return 0 if self.same_model or len(told) != 1 else told.pop()

    @property
    def verdicts(self) -> dict[str, int]:
        """For each kind of measure, the model that it favours: 1 for the second, -1 for the first, 0 for none."""
        return {each.kind: each.difference.verdict for each in self.measures}

    @property
    def contradict(self) -> bool:
        """Whether one measure favours the first model and another the second."""
        return set(self.verdicts.values()) >= {-1, 1}

    @property
    def same_scores(self) -> bool:
        """Whether every input has the same score in both runs."""
        return bool(len(self.first)) and bool(np.array_equal(self.first, self.second))

    @property
    def same_bounds(self) -> bool:
        """Whether both runs have the same input bounds; if not, their attacks are not compared."""
        return self.bounds[0] == self.bounds[1]

    @property
    def same_methods(self) -> bool:
        """Whether both runs have the same methods, in any order."""
        return set(self.methods[0]) == set(self.methods[1])

    @property
    def both_attacked(self) -> bool:
        """Whether both runs have attacks, also where different bounds keep them from being compared."""
        return self.curves is not None and all(curve.line(ATTACKED) is not None for curve in self.curves)

    def score_change(self, of: str = "mean") -> Change:
        """The relative change of the mean or, with of="median", of the median score."""
        return self.change if of == "mean" else Change.between(self.first, self.second, self.change.level, of)

    def attack_change(self, of: str = "mean") -> Change | None:
        """The relative change of the best attack's mean (or median) distortion; None if attacks are not compared."""
        found = next((each for each in self.further if each.kind == ATTACK), None)
        if found is None or of == "mean":
            return None if found is None else found.change
        return Change.between(found.first, found.second, found.change.level, of)

    def changed_most(self, count: int) -> list[int]:
        """Positions in `ids` of at most `count` inputs whose scores differ most, the largest difference first."""
        gaps = np.abs(self.second - self.first)
        return [int(i) for i in np.argsort(-gaps, kind="stable")[:count] if gaps[i] > 0.0]


def compare(
    first: Findings, second: Findings, *, level: float = 0.95, tests: int = 1, exclude_misclassified: bool = False
) -> list[Pairing]:
    """Compare two runs: one `Pairing` for each norm that both have.

    level                   the confidence level at which the verdicts in all norms and by all measures hold together.
    tests                   the number of runs that are compared with the first, one call each, if the verdicts of all
                            these calls must hold together at `level`.
    exclude_misclassified   leave out an input that one of the models misclassifies; else it has score 0 for that model.

    Runs with different methods are compared by those that both have: see `common_method`. Raises an InputError if the
    runs cannot be compared, for example because they are of different data.
    """
    common = _comparable(first, second)
    same_model = bool(first.config.model_fingerprint) and (
        first.config.model_fingerprint == second.config.model_fingerprint
    )
    share = (1.0 - level) / (tests * len(common))
    return [
        _pairing(first, second, one, other, 1.0 - share, same_model, exclude_misclassified) for one, other in common
    ]


def common_method(first: Findings, second: Findings) -> str:
    """The method whose scores are compared: the main method of the first run if the second has it too.

    Else it is the main method of the second run if the first has it, else the first method that both have. The main
    method of a run is the first that searches (such as sharp), since its scores are nearer to the true distances, or
    else its first method. Raises an InputError if the runs have no method in common.
    """
    both = [method for method in first.config.methods if method in second.config.methods]
    if not both:
        raise InputError(
            f"the runs cannot be compared: they have no method in common ({_methods_of(first)}; "
            f"{_methods_of(second)}); score one of the models again with a --method of the other"
        )
    mains = [found.norms[0].method for found in (first, second)]
    return next((method for method in mains if method in both), both[0])


def _methods_of(found: Findings) -> str:
    return f"{found.folder} has {listed(found.config.methods)}"


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    >>> listed(["paper"]), listed(["paper", "sharp"]), listed(["paper", "sharp", "slope"])
    ('paper', 'paper and sharp', 'paper, sharp and slope')
    """
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _norms(found: Findings) -> str:
    return f"{found.folder} has {', '.join(f'l{norm.name}' for norm in found.norms)}"


def _comparable(first: Findings, second: Findings) -> list[tuple[NormFindings, NormFindings]]:
    """For each norm that both runs have, the results of the first and of the second run, by their common method.

    Raises an InputError if the runs differ in their data, or in a setting on which scores depend.
    """
    names = first.folder, second.folder
    if first.config.data_fingerprint != second.config.data_fingerprint:
        one, other = first.config.data, second.config.data
        data = f"{names[0]} is of the data {one} and {names[1]} of {other}, and their contents differ"
        if one == other:
            data = f"both are of the data {one}, whose content changed between them"
        raise InputError(f"the runs cannot be compared: {data}; score both models on the same data")
    if first.config.region != "ball" and bounds_of(first) != bounds_of(second):
        raise InputError(
            f"the runs cannot be compared: {bounds_words(bounds_of(first), bounds_of(second), names)}, and scores in "
            f"the region {first.config.region} depend on them; score both models with the same --bounds"
        )
    method = common_method(first, second)
    others = {norm.p: norm.judged_by(method) for norm in second.norms}
    common = [(norm.judged_by(method), others[norm.p]) for norm in first.norms if norm.p in others]
    if not common:
        raise InputError(
            f"the runs cannot be compared: they have no norm in common ({_norms(first)}; {_norms(second)}); score one "
            "of the models again with --norm"
        )
    for name in MUST_AGREE:
        one, other = (getattr(found.config, name) for found in (first, second))
        if name == "radius":
            one, other = (radii_text({pair[k].name: pair[k].radius for pair in common}) for k in (0, 1))
        if one != other:
            raise InputError(
                f"the runs cannot be compared: {names[0]} has {name} {one} and {names[1]} has {name} {other}; score "
                "one of the models again with the setting of the other"
            )
    return common


def bounds_of(found: Findings) -> tuple[float, float] | None:
    """The input bounds (low, high) of a run; None if its model has none."""
    kept = (found.meta.get("used") or {}).get("bounds")
    return None if kept is None else (float(kept[0]), float(kept[1]))


def bounds_words(
    first: tuple[float, float] | None,
    second: tuple[float, float] | None,
    names: tuple[str, str],
) -> str:
    """The input bounds of two runs as text.

    >>> bounds_words(None, (0.0, 1.0), ("A", "B"))
    'A has no input bounds, B has input bounds 0 to 1'
    """
    return ", ".join(
        f"{name} has {'no input bounds' if each is None else f'input bounds {each[0]:g} to {each[1]:g}'}"
        for name, each in zip(names, (first, second), strict=True)
    )


def _pairing(
    first: Findings,
    second: Findings,
    one: NormFindings,
    other: NormFindings,
    level: float,
    same_model: bool,
    exclude: bool,
) -> Pairing:
    mine = {score.input: score for score in one.known}
    theirs = {score.input: score for score in other.known}
    both = [(mine[i], theirs[i]) for i in mine if i in theirs]
    if not both:
        reason = first.unfinished or second.unfinished or "score the same rows of the data"
        raise InputError(
            f"the runs cannot be compared: {first.folder} and {second.folder} have no input in common in the "
            f"l{one.name} norm; {reason}"
        )
    used = [
        pair
        for pair in both
        if not any(math.isnan(score.counted) or (exclude and score.correct is False) for score in pair)
    ]
    scores = np.array([[score.counted for score in pair] for pair in used]).reshape(-1, 2)
    noise = sum((_noise([pair[k] for pair in used]) for k in (0, 1)), np.zeros(1))
    ids = [pair[0].input for pair in used]
    bounds = bounds_of(first), bounds_of(second)
    further = _further(one, other, ids, attacks=bounds[0] == bounds[1])
    share = (1.0 - level) / (1 + len(further))
    level = 1.0 - share
    return Pairing(
        norm=one.name,
        ids=tuple(ids),
        first=scores[:, 0],
        second=scores[:, 1],
        difference=difference(scores[:, 0], scores[:, 1], noise=noise if len(used) else None, level=level),
        left_out=len(both) - len(used),
        unpaired=len(mine.keys() ^ theirs.keys()),
        counts=(len(mine), len(theirs)),
        bounds=bounds,
        same_model=same_model,
        capped=sum(pair[0].capped or pair[1].capped for pair in used),
        misclassified=(sum(a.correct is False for a, _ in used), sum(b.correct is False for _, b in used)),
        method=one.method,
        methods=(first.config.methods, second.config.methods),
        change=Change.between(scores[:, 0], scores[:, 1], level),
        further=tuple(
            Evidence(kind, a, b, difference(*finite(a, b), level=level), Change.between(a, b, level))
            for kind, (a, b) in further.items()
        ),
        curves=(one.over(ids).robust_accuracy, other.over(ids).robust_accuracy) if ids else None,
    )


def _further(
    one: NormFindings, other: NormFindings, ids: Sequence[int], *, attacks: bool
) -> dict[str, tuple[Array, Array]]:
    """The measures besides the score that both runs have for all inputs `ids`: by kind, the values in both runs.

    Misclassified inputs have the value 0. Without `attacks`, best attacks are left out.
    """
    parts = [norm.over(ids) for norm in (one, other)]
    found: dict[str, tuple[Array, Array]] = {}
    for method in one.by_method:
        if method != one.method and method in other.by_method:
            first, second = (part.counted_of(method) for part in parts)
            found[f"score ({method})"] = first, second
    if attacks:
        found[ATTACK] = parts[0].counted_upper, parts[1].counted_upper
    found[CERTIFICATE] = parts[0].counted_certified, parts[1].counted_certified
    return {
        kind: pair for kind, pair in found.items() if len(ids) and not any(np.isnan(values).any() for values in pair)
    }


def _noise(scores: Sequence[Score]) -> Array:
    """The variance of each score that comes from sampling, (scores,); NaN for scores from too few blocks.

    It is a quarter of the squared difference of the two scores that the halves of the blocks give.
    """
    noise = np.full(len(scores), math.nan)
    groups: dict[int, list[int]] = {}
    for place, score in enumerate(scores):
        half = len(score.maxima) // 2
        if half >= LEAST_HALF and np.isfinite(score.maxima).all():
            groups.setdefault(half, []).append(place)
    for half, places in groups.items():
        maxima = np.stack([[scores[i].maxima[:half], scores[i].maxima[half : 2 * half]] for i in places])
        locations = tails.law(maxima, scores[places[0]].rule.penalty).location
        halves = np.array(
            [[scores[i].with_constant(float(end)) for end in ends] for i, ends in zip(places, locations, strict=True)]
        )
        noise[places] = (halves[:, 0] - halves[:, 1]) ** 2 / 4.0
    return noise
