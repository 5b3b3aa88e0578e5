"""Score and Scores: scores with intervals, from block maxima (Algorithms 1 and 2 of the paper) or radial profiles."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from cleverscore import tails
from cleverscore.estimators.ascent.radial_profile import RadialProfile
from cleverscore.estimators.measurements import Measurements
from cleverscore.estimators.score_rule import ScoreRule
from cleverscore.estimators.stop_reason import is_eliminated
from cleverscore.inputs.targets import takes_smallest
from cleverscore.norms import norm_name
from cleverscore.scores.tables import below_the_table, scores_table
from cleverscore.tails import FitOutcome, TailFit

if TYPE_CHECKING:
    import pandas

Array = npt.NDArray[np.float64]
Created = TypeVar("Created")

COLUMNS = [
    "input", "label", "predicted", "correct", "target", "target_kind", "method",
    "norm", "radius", "margin", "score", "score_low", "score_high", "crossing", "capped",
    "lipschitz", "location", "scale", "shape", "sample_max", "penalty", "drift",
    "ks_statistic", "ks_pvalue", "ad_statistic", "ad_pvalue", "outcome", "blocks",
    "block_size", "gradients", "seconds", "stopped",
]  # fmt: skip


@dataclass(frozen=True)
class Tail:
    """Statistics of one target's block maxima: the fit, the interval of the end-point, the Kolmogorov-Smirnov test."""

    fit: TailFit
    end_low: float
    end_high: float
    ks_statistic: float
    ks_pvalue: float


@dataclass(frozen=True)
class Score:
    """The score of one input for one target class, or the smallest score over several targets.

    input       the id of the input.
    rule        how the score was computed from measurements: the method, the norm, the radius, the confidence level of
                intervals.
    margin      the difference of the logits of the predicted class and the target, at the input.
    value       min(margin / lipschitz, radius), unless `profile` or `slope` is given; NaN where a gradient was not
                finite.
    low, high   interval of `value` at the rule's level; it covers the statistical error of the end-point and is no
                certificate. Where the outcome says that the fit is unreliable, `low` is 0 and `high` is margin / sample
                maximum.
    capped      whether `value` is the largest possible score, the radius.
    lipschitz   the Lipschitz constant used: the fitted end-point, or the sample maximum where there is no fit.
    maxima      the block maxima.
    fit         the tail fit; None for methods without one.
    stopped     why sampling or search stopped.
    profile     the radial profile of a method that searches, else None. With a profile, `value` is the distance that
                the search found, `lipschitz` the mean decrease of the margin per unit of distance, `low` the smallest
                score that a longer search would probably give, and `high` is `value`.
    upper       distance of the nearest point of another class that the method found; infinite if it found none, NaN if
                it does not search for one.
    slope       the gradient norm at the input, for second-order scores; else None. With it, `maxima` and `lipschitz`
                are curvatures, and `value` is the distance r at which slope r + lipschitz r^2 / 2 = margin.
    """

    input: int
    label: int | None
    predicted: int
    target: int
    target_kind: str
    rule: ScoreRule
    margin: float
    value: float
    low: float
    high: float
    upper: float
    capped: bool
    lipschitz: float
    fit: TailFit | None
    ks_statistic: float
    ks_pvalue: float
    block_size: int
    gradients: int
    seconds: float
    stopped: str
    maxima: Array = field(repr=False, compare=False)
    profile: RadialProfile | None = field(default=None, repr=False, compare=False)
    slope: float | None = None

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.rule.method

    @property
    def p(self) -> float:
        """The norm."""
        return self.rule.p

    @property
    def radius(self) -> float:
        """The radius of the ball."""
        return self.rule.radius

    @property
    def outcome(self) -> FitOutcome:
        """How the tail fit or the search ended."""
        if self.fit is not None:
            return self.fit.outcome
        return FitOutcome.NOT_FINITE if self.profile is None else FitOutcome(self.profile.outcome)

    @property
    def open_below(self) -> bool:
        """Whether the interval has no lower limit: the blocks show no upper end-point of the gradient norm."""
        return self.fit is not None and self.low == 0.0 < self.value

    def with_constant(self, constant: float) -> float:
        """The score that another constant than `lipschitz` would give.

        constant    another end-point of the maxima: a Lipschitz constant, or a curvature for second-order scores.
        """
        return _converted(self.margin, constant, self.slope, self.rule.limit)

    @property
    def correct(self) -> bool | None:
        """Whether the prediction is the label; None without a label."""
        return None if self.label is None else self.label == self.predicted

    @property
    def counted(self) -> float:
        """The value of the score in medians, shares, gates and comparisons: 0 if the input is misclassified."""
        return 0.0 if self.correct is False else self.value

    @property
    def eliminated(self) -> bool:
        """Whether the target was eliminated, because it could not have the smallest score."""
        return is_eliminated(self.stopped)

    def cells(self) -> tuple[Any, ...]:
        """The values of a result row, in the order of COLUMNS."""
        fit, rule = self.fit, self.rule
        law = (
            (math.nan,) * 6
            if fit is None
            else (fit.location, fit.scale, fit.shape, fit.sample_max, fit.penalty, fit.drift)
        )
        tests = (math.nan, math.nan, 0) if fit is None else (fit.ad_statistic, fit.ad_pvalue, fit.blocks)
        return (
            self.input, self.label, self.predicted, self.correct, self.target, self.target_kind, rule.method,
            norm_name(rule.p), rule.radius, self.margin, self.value, self.low, self.high, self.upper, self.capped,
            self.lipschitz, *law, self.ks_statistic, self.ks_pvalue, *tests[:2], self.outcome.value, tests[2],
            self.block_size, self.gradients, self.seconds, str(self.stopped),
        )  # fmt: skip

    def row(self) -> dict[str, Any]:
        """The result row: the value of each column by the column's name."""
        return dict(zip(COLUMNS, self.cells(), strict=True))


def fit_tails(measurements: Sequence[Measurements], rule: ScoreRule) -> list[list[Tail]]:
    """Fit the tails of all (input, target) pairs: for each input one `Tail` per target, none for inputs with profiles.

    Pairs with equally many blocks of equal size are fitted together.
    """
    alike: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for i, item in enumerate(measurements):
        for t in range(0 if item.profiles else len(item.targets)):
            alike[len(item.maxima[t]), item.block_sizes[t]].append((i, t))
    found: dict[tuple[int, int], Tail] = {}
    for (_, size), group in alike.items():
        maxima = np.stack([measurements[i].maxima[t] for i, t in group])
        if rule.tail is not None:
            fits, intervals = tails.fit_own(maxima, rule.tail, level=rule.level)
        else:
            fits = tails.fit(maxima, rule.penalty, block_size=size)
            intervals = tails.interval(maxima, fits, level=rule.level, checkpoints=rule.checkpoints, block_size=size)
        statistics, pvalues = tails.kolmogorov_smirnov(maxima, fits)
        columns = (intervals.low.tolist(), intervals.high.tolist(), statistics.tolist(), pvalues.tolist())
        for row, (place, *numbers) in enumerate(zip(group, *columns, strict=True)):
            found[place] = Tail(fits[row], *numbers)
    return [
        [found[i, t] for t in range(0 if item.profiles else len(item.targets))] for i, item in enumerate(measurements)
    ]


def score_from(
    measurements: Sequence[Measurements], rule: ScoreRule, known: Sequence[Sequence[Tail]] | None = None
) -> Scores:
    """Compute all scores from measurements; `known` are their tails as `fit_tails` returns them, if already fitted.

    A rule for targets "untargeted" or "top:N" adds a row per input: the smallest score over its targets (Algorithm 2).
    """
    rows: list[Score] = []
    per_input: list[Score] = []
    kind = "all" if takes_smallest(rule.target_kind) else rule.target_kind
    for item, found in zip(measurements, fit_tails(measurements, rule) if known is None else known, strict=True):
        scores = [
            _profile_score(item, t, rule, kind) if item.profiles else _tail_score(item, t, rule, kind, found[t])
            for t in range(len(item.targets))
        ]
        smallest = _smallest(scores)
        if takes_smallest(rule.target_kind):
            smallest = replace_unchecked(smallest, target_kind=rule.target_kind)
            rows += [smallest, *scores]
        else:
            rows += scores
        per_input.append(smallest)
    return Scores(tuple(rows), tuple(per_input))


def _tail_score(item: Measurements, t: int, rule: ScoreRule, kind: str, tail: Tail) -> Score:
    """The score of target number t from its fitted end-point."""
    margin, fit, limit = item.margins[t], tail.fit, rule.limit
    slope = item.slopes[t] if item.slopes else None
    known = fit.outcome is not FitOutcome.NOT_FINITE
    value, low, high = (
        _converted(margin, end, slope, limit) if known else math.nan
        for end in (fit.location, tail.end_high, tail.end_low)
    )
    return new_unchecked(
        Score, **_common(item, t, rule, kind), value=value, low=low, high=high, upper=math.nan, capped=value >= limit,
        lipschitz=fit.location if known else math.nan, fit=fit, ks_statistic=tail.ks_statistic,
        ks_pvalue=tail.ks_pvalue, block_size=item.block_sizes[t], gradients=item.gradients[t],
        seconds=item.seconds * item.counts[t] / max(1, sum(item.counts)), profile=None, slope=slope,
    )  # fmt: skip


def _profile_score(item: Measurements, t: int, rule: ScoreRule, kind: str) -> Score:
    """The score of target number t from its radial profile: the distance that the search found."""
    profile = item.profiles[t]
    known = FitOutcome(profile.outcome) is not FitOutcome.NOT_FINITE
    value = profile.distance if known else math.nan
    return Score(
        **_common(item, t, rule, kind), value=value, low=profile.low if known else math.nan, high=value,
        upper=profile.upper, capped=value >= rule.limit, lipschitz=profile.mean_slope if known else math.nan, fit=None,
        ks_statistic=math.nan, ks_pvalue=math.nan, block_size=0, gradients=profile.gradients,
        seconds=item.seconds * profile.gradients / max(1, sum(other.gradients for other in item.profiles)),
        profile=profile,
    )  # fmt: skip


def _common(item: Measurements, t: int, rule: ScoreRule, kind: str) -> dict[str, Any]:
    """The fields of a score that are taken from the measurements and the rule as they are."""
    return {
        "input": item.input_id, "label": item.label, "predicted": item.predicted, "target": item.targets[t],
        "target_kind": kind, "rule": rule, "margin": item.margins[t], "stopped": item.stopped[t],
        "maxima": item.maxima[t],
    }  # fmt: skip


def new_unchecked(kind: type[Created], **fields: Any) -> Created:
    """Make a frozen dataclass from all its fields, without defaults and checks, in a tenth of the constructor's time.

    A large run has hundreds of thousands of scores.
    """
    created = object.__new__(kind)
    object.__setattr__(created, "__dict__", fields)
    return created


def replace_unchecked(score: Score, **fields: Any) -> Score:
    """A score with some fields replaced, as by `dataclasses.replace`, in a fraction of the time."""
    return new_unchecked(Score, **{**score.__dict__, **fields})


def _converted(margin: float, constant: float, slope: float | None, limit: float) -> float:
    """The score, at most `limit`: margin / constant, or with a slope the r with slope r + constant r^2 / 2 = margin.

    >>> _converted(1.0, 4.0, None, 5.0), _converted(1.0, 4.0, 1.0, 5.0), _converted(1.0, -1.0, 1.0, 5.0)
    (0.25, 0.5, 5.0)
    """
    if margin <= 0.0:
        return 0.0
    if slope is not None:
        inside = slope * slope + 2.0 * margin * constant
        if inside != inside:
            return math.nan
        # The usual formula for the root loses all digits for small curvatures; this one does not subtract.
        below = slope + math.sqrt(max(inside, 0.0))
        return min(2.0 * margin / below, limit) if inside >= 0.0 and below > 0.0 else limit
    if constant > 0.0:
        ratio = margin / constant
        return ratio if ratio < limit else limit
    return limit if constant == constant else math.nan  # NaN alone differs from itself


def _smallest(scores: Sequence[Score]) -> Score:
    """The smallest score over targets; NaN if the score of any target is NaN.

    Both ends of its interval and `upper` are the smallest over targets; gradients and seconds are sums over targets.
    """
    if len(scores) == 1:
        return scores[0]
    unknown = [score for score in scores if math.isnan(score.value)]
    # Eliminated targets have rough scores and wide intervals, which are left out: it is much surer that they do not
    # have the smallest score than what their scores are.
    rivals = [score for score in scores if not score.eliminated] or scores
    # Of several scores at the radius, the one with the smallest margin / lipschitz.
    least = unknown[0] if unknown else min(rivals, key=lambda s: (s.value, s.margin / max(s.lipschitz, 1e-300)))
    return replace_unchecked(
        least,
        low=math.nan if unknown else min(score.low for score in rivals),
        high=math.nan if unknown else min(score.high for score in rivals),
        upper=math.nan if unknown else min(score.upper for score in scores),
        gradients=sum(score.gradients for score in scores),
        seconds=sum(score.seconds for score in scores),
    )


@dataclass(frozen=True)
class Scores:
    """Scores of a batch: `scores[i]` is the score of the i-th input (the smallest over its targets).

    rows                the score of every (input, target); an untargeted score comes before those of its targets.
    per_input           the score of each input, the smallest over its targets.
    values, low, high   arrays (n,), one entry per input.
    class_names         names of the classes for tables, where known.
    """

    rows: tuple[Score, ...]
    per_input: tuple[Score, ...]
    class_names: tuple[str, ...] | None = field(default=None, compare=False)

    @classmethod
    def joined(cls, parts: Sequence[Scores], class_names: Sequence[str] | None = None) -> Scores:
        """The scores of several norms, methods or batches as one object, one after the other."""
        rows = tuple(row for part in parts for row in part.rows)
        names = None if not class_names else tuple(map(str, class_names))
        return cls(rows, tuple(score for part in parts for score in part), names)

    def __len__(self) -> int:
        return len(self.per_input)

    def __getitem__(self, position: int) -> Score:
        return self.per_input[position]

    def __repr__(self) -> str:
        return f"<Scores of {len(self)} inputs, {len(self.rows)} rows; print() shows the table>"

    def __iter__(self) -> Iterator[Score]:
        return iter(self.per_input)

    def _array(self, name: str) -> Array:
        return np.array([getattr(score, name) for score in self.per_input], dtype=np.float64)

    @property
    def values(self) -> Array:
        """The score of each input."""
        return self._array("value")

    @property
    def low(self) -> Array:
        """The lower end of the interval of each input's score."""
        return self._array("low")

    @property
    def high(self) -> Array:
        """The upper end of the interval of each input's score."""
        return self._array("high")

    @property
    def upper(self) -> Array:
        """Distance of the nearest point of another class that the method found; NaN if it does not search for one."""
        return self._array("upper")

    def to_frame(self) -> pandas.DataFrame:
        """A data frame with one row per (input, target) and one per untargeted score; columns as in docs/symbols.md."""
        import pandas

        frame: pandas.DataFrame = pandas.DataFrame([score.row() for score in self.rows], columns=COLUMNS)
        return frame

    def __str__(self) -> str:
        return self._with_summary(scores_table(self.per_input, class_names=self.class_names))

    def every_target(self) -> str:
        """The table with one line per target class instead of one per input, and why sampling stopped for each."""
        single = [score for score in self.rows if not takes_smallest(score.target_kind)]
        return self._with_summary(scores_table(single, class_names=self.class_names, stops=True))

    def _with_summary(self, table: str) -> str:
        return "\n".join([table, "", *below_the_table(self.per_input, self.rows)])
