"""Is B more robust than A? Paired differences of two runs on the same inputs, as tables and sentences."""

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
from cleverscore.reporting.robust_accuracy import ATTACKED, KINDS, RobustAccuracy
from cleverscore.runs.results import radii_text
from cleverscore.scores.score import Score
from cleverscore.scores.text_table import number, table
from cleverscore.tails.paired_tests import FEWEST, Difference, difference, relative_change

Array = npt.NDArray[np.float64]

MUST_AGREE = ("targets", "method", "region", "radius")
LEAST_HALF = 10  # blocks: a fit to fewer says nothing about its noise
ATTACK, CERTIFICATE = "best attack", "certificate"
MOST_CAPPED = 0.2  # share of pairs cut at the radius above which a comparison is warned of


@dataclass(frozen=True)
class Change:
    """The relative change of a mean (or a median) over paired inputs, with its bootstrap interval.

    before, after   the two means.
    value           after / before - 1; NaN if the first mean is 0, infinite or unknown.
    low, high       the interval; NaN for fewer than six inputs.
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
        """The change of paired values; an infinite value is replaced by the largest finite one."""
        first, second = finite(first, second)
        found = relative_change(first, second, of=of, level=level)
        statistic: Callable[..., Any] = np.mean if of == "mean" else np.median
        before, after = (float(statistic(values)) if len(values) else math.nan for values in (first, second))
        return cls(of, before, after, found.value, found.low, found.high, level)

    @property
    def words(self) -> str:
        """The change with both means and the interval, as text."""
        text = f"{self.of} {number(self.before, 3)} then {number(self.after, 3)}"
        if math.isnan(self.value):
            return f"{text}, of which no relative change can be given"
        return f"{text}, {self.short}"

    @property
    def short(self) -> str:
        """The change alone, as text."""
        if math.isnan(self.value):
            return "-"
        if math.isnan(self.low):
            return f"{self.value:+.1%} (no interval with fewer than {FEWEST} inputs)"
        return f"{self.value:+.1%} ({100.0 * self.level:.3g}% interval {self.low:+.1%} to {self.high:+.1%})"


def finite(first: Array, second: Array) -> tuple[Array, Array]:
    """Distances, with infinite ones (no attack succeeded) replaced by the largest finite distance of both runs."""
    known = np.concatenate([first, second])
    largest = float(known[np.isfinite(known)].max(initial=0.0))
    return np.minimum(first, largest), np.minimum(second, largest)


@dataclass(frozen=True)
class Evidence:
    """One measure of two runs, paired over inputs: scores of another method, attacks or certificates."""

    kind: str
    first: Array
    second: Array
    difference: Difference
    change: Change


@dataclass(frozen=True)
class Pairing:
    """Two runs in one norm, over the inputs that both have; misclassified inputs have score 0 unless they are excluded.

    ids             the inputs.
    first, second   the scores of the inputs in the two runs.
    misclassified   numbers of compared inputs that the first and the second model misclassify.
    left_out        inputs of both runs that are not compared: without a score, or misclassified and excluded.
    unpaired        inputs that only one of the runs has.
    counts          numbers of inputs with a score in the first and the second run.
    bounds          the input bounds of the two runs, None for a run without bounds.
    same_model      whether both runs are of the same weights.
    capped          number of inputs with at least one score capped at the radius.
    method          the method of the scores.
    change          the change of the mean score.
    further         other measures that both runs have: scores of another method, best attacks, certificates.
    curves          robust accuracy of the two runs, over the inputs that are compared.
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
    change: Change
    further: tuple[Evidence, ...]
    curves: tuple[RobustAccuracy, RobustAccuracy] | None

    @property
    def verdict(self) -> int:
        """1 if the second model is more robust, -1 if the first is, 0 if undecided or if measures contradict."""
        told = set(self.verdicts.values()) - {0}
        return 0 if self.same_model or len(told) != 1 else told.pop()

    @property
    def verdicts(self) -> dict[str, int]:
        """The verdict of each measure alone."""
        return {
            f"score ({self.method})": self.difference.verdict,
            **{each.kind: each.difference.verdict for each in self.further},
        }

    @property
    def same_scores(self) -> bool:
        """Whether every input has the same score in both runs."""
        return bool(len(self.first)) and bool(np.array_equal(self.first, self.second))

    @property
    def same_bounds(self) -> bool:
        """Whether both runs have the same input bounds; if not, their attacks are not compared."""
        return self.bounds[0] == self.bounds[1]

    @property
    def both_attacked(self) -> bool:
        """Whether both runs have attacks, compared or not."""
        return self.curves is not None and all(curve.line(ATTACKED) is not None for curve in self.curves)

    def score_change(self, of: str = "mean") -> Change:
        """The change of the mean or median score."""
        return self.change if of == "mean" else Change.between(self.first, self.second, self.change.level, of)

    def attack_change(self, of: str = "mean") -> Change | None:
        """The change of the mean or median distortion of the best attack; None if attacks are not compared."""
        found = next((each for each in self.further if each.kind == ATTACK), None)
        if found is None or of == "mean":
            return None if found is None else found.change
        return Change.between(found.first, found.second, found.change.level, of)

    def changed_most(self, count: int) -> list[int]:
        """Positions of the inputs whose scores differ most, largest difference first; never one with equal scores."""
        gaps = np.abs(self.second - self.first)
        return [int(i) for i in np.argsort(-gaps, kind="stable")[:count] if gaps[i] > 0.0]


def compare(
    first: Findings, second: Findings, *, level: float = 0.95, tests: int = 1, exclude_misclassified: bool = False
) -> list[Pairing]:
    """Compare two runs in every norm; `tests` is the number of comparisons that must hold together at `level`.

    An input that a model misclassifies has score 0 for that model; with `exclude_misclassified` it is left out.
    """
    _check(first, second)
    same_model = bool(first.config.model_fingerprint) and (
        first.config.model_fingerprint == second.config.model_fingerprint
    )
    others = {norm.p: norm for norm in second.norms}
    common = [(norm, others[norm.p]) for norm in first.norms if norm.p in others]
    if not common:
        raise InputError(
            f"the runs have no norm in common ({_norms(first)}; {_norms(second)}); score one of them again with --norm"
        )
    share = (1.0 - level) / (tests * len(common))
    return [
        _pairing(first, second, one, other, 1.0 - share, same_model, exclude_misclassified) for one, other in common
    ]


def _norms(found: Findings) -> str:
    return ", ".join(norm.name for norm in found.norms)


def _check(first: Findings, second: Findings) -> None:
    """Raise an error if the two runs have different settings or data."""
    if first.config.data_fingerprint != second.config.data_fingerprint:
        one, other = first.config.data, second.config.data
        data = f"the first is of the data {one} and the second of {other}, and their contents differ"
        if one == other:
            data = f"both are of the data {one}, whose content changed between them"
        raise InputError(f"the runs cannot be compared: {data}; score both models on the same data")
    if first.config.region != "ball" and bounds_of(first) != bounds_of(second):
        raise InputError(
            f"the runs cannot be compared: {bounds_words(bounds_of(first), bounds_of(second))}, and scores in the "
            f"region {first.config.region} depend on them; score both models with the same --bounds"
        )
    for name in MUST_AGREE:
        one, other = (getattr(found.config, name) for found in (first, second))
        if name == "radius":
            common = {norm.name for norm in first.norms} & {norm.name for norm in second.norms}
            one, other = (
                radii_text({norm.name: norm.radius for norm in found.norms if norm.name in common})
                for found in (first, second)
            )
        if one != other:
            raise InputError(
                f"the runs cannot be compared: {name.replace('_', ' ')} is {one} in the first and {other} in the "
                "second; score one of them again with the setting of the other"
            )


def bounds_of(found: Findings) -> tuple[float, float] | None:
    """The input bounds of a run; None if its model has none."""
    kept = (found.meta.get("used") or {}).get("bounds")
    return None if kept is None else (float(kept[0]), float(kept[1]))


def bounds_words(
    first: tuple[float, float] | None,
    second: tuple[float, float] | None,
    names: tuple[str, str] = ("the first", "the second"),
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
        raise InputError(f"the runs have no input in common in the l{one.name} norm; {reason}")
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
    """The other measures that both runs have, over the same inputs; misclassified inputs count as 0."""
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
    """Variance of each score due to sampling: a quarter of the squared difference of scores from halves of blocks."""
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


def sentence(pairing: Pairing, names: tuple[str, str] = ("A", "B")) -> str:
    """The verdict as a sentence: which model is more robust, by which measures; if undecided, what would decide it."""
    found, (first, second) = pairing.difference, names
    if found.count == 0:
        return (
            f"It cannot be told whether {second} is more robust than {first} in the l{pairing.norm} norm: no input has "
            "a score in both that counts."
        )
    seen = _seen(found, pairing.change, names, f"score ({pairing.method})")
    more = "".join(f"; {_seen(each.difference, each.change, names, each.kind)}" for each in pairing.further)
    curve = curve_words(pairing, names)
    seen += more + (f"; {curve}" if curve else "")
    asked = f"whether {second} is more robust than {first} in the l{pairing.norm} norm"
    if pairing.verdict:
        better, worse = (second, first) if pairing.verdict > 0 else (first, second)
        silent = [kind for kind, verdict in pairing.verdicts.items() if not verdict]
        alone = f" {_capital(_listed(silent))} alone would not tell." if silent else ""
        return f"{better} is more robust than {worse} in the l{pairing.norm} norm: {seen}.{alone}"
    contradict = set(pairing.verdicts.values()) >= {-1, 1}
    if pairing.same_scores and (pairing.same_model or not contradict):
        model = " They are the same model." if pairing.same_model else ""
        return f"{equal_words(pairing, names)} in the l{pairing.norm} norm: {seen}.{model}"
    if pairing.same_model:
        return (
            f"It cannot be told {asked}, and no run "
            f"will tell: they are the same model. What differs is the noise of sampling: {seen}."
        )
    if contradict:
        sides = {
            side: _listed([kind for kind, verdict in pairing.verdicts.items() if verdict == side]) for side in (1, -1)
        }
        return (
            f"It cannot be told {asked}: {sides[1]} speaks for {second}, {sides[-1]} for {first}. Where scores and "
            f"attacks contradict, gradients may be masked: run a stronger attack. {_capital(seen)}."
        )
    return f"It cannot be told {asked}: {seen}. {_what_would_tell(found)}"


def _listed(kinds: Sequence[str]) -> str:
    return " and ".join(f"the {kind}" for kind in kinds)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def equal_words(pairing: Pairing, names: tuple[str, str]) -> str:
    """That two runs with equal scores have them, as text."""
    first, second = names
    return f"{_capital(first)} and {second} have equal scores ({pairing.method}) on all {len(pairing.ids)} inputs"


def _seen(found: Difference, change: Change, names: tuple[str, str], kind: str) -> str:
    first, second = names
    if found.above == found.below == 0:
        same = f"{second}'s {kind} equals that of {first} on all {found.count} inputs"
        return f"{same}, {change.of} {number(change.before, 3)}"
    percent = f"{100.0 * found.level:.3g}%"
    return (
        f"{second}'s {kind} is larger on {found.above} of {found.count} inputs and smaller on {found.below}, on "
        f"average by {_signed(found.mean.value)} ({percent} interval {_signed(found.mean.low)} to "
        f"{_signed(found.mean.high)}; sign test p {found.sign_pvalue:.2g}), {change.words}"
    )


def reference_epsilon(pairing: Pairing) -> float:
    """The epsilon at which robust accuracies are quoted: the first run's median positive score, to two digits."""
    known = pairing.first[pairing.first > 0.0]
    middle = float(np.median(known)) if len(known) else 0.0
    return float(f"{middle:.2g}")


def curve_words(pairing: Pairing, names: tuple[str, str]) -> str:
    """Robust accuracy of both runs at one epsilon, as text, by every line that both have."""
    epsilon = reference_epsilon(pairing)
    if pairing.curves is None or epsilon == 0.0:
        return ""
    shares = [curve.at(epsilon) for curve in pairing.curves]
    parts = [
        f"{kind} {shares[0][kind].value:.0%} for {names[0]} and {shares[1][kind].value:.0%} for {names[1]}"
        for kind in KINDS
        if (kind != ATTACKED or pairing.same_bounds)
        and all(kind in share and not math.isnan(share[kind].value) for share in shares)
    ]
    return f"robust accuracy at epsilon {epsilon:g}: {', '.join(parts)}" if parts else ""


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value, 3)


def _what_would_tell(found: Difference) -> str:
    remedies = []
    if found.inputs_needed is not None:
        # An estimate below what was used was not enough this time: a quarter more is the next thing to try.
        needed = max(found.inputs_needed, math.ceil(1.25 * found.count))
        remedies.append(f"about {needed} inputs in all instead of {found.count}")
    if found.blocks_factor is not None and 1.0 < found.blocks_factor <= 100.0:
        remedies.append(f"about {found.blocks_factor:.2g} times the blocks on the same inputs")
    bound = max(abs(found.mean.low), abs(found.mean.high))
    if not remedies:
        return (
            f"The mean difference is at most {number(bound, 3)} either way; one as small as was seen would not be told "
            "by any realistic number of inputs or blocks."
        )
    blocks = "" if len(remedies) > 1 else "; more blocks on the same inputs would not"
    return f"A difference of the size that was seen would be told by {', or by '.join(remedies)}{blocks}."


def comparison_text(runs: Sequence[tuple[str, Findings]], pairings: Sequence[Sequence[Pairing]], most: int) -> str:
    """The comparison of every run with the first, as text: a table, the inputs that changed most, and sentences."""
    letters = [letter_of(place) for place in range(len(runs))]
    parts = [f"{letter}: {name}" for letter, (name, _) in zip(letters, runs, strict=True)]
    parts += [
        f"{letter} is {found.unfinished}" for letter, (_, found) in zip(letters, runs, strict=True) if found.unfinished
    ]
    parts.append("")
    rows = []
    for letter, of_run in zip(letters[1:], pairings, strict=True):
        for pairing in of_run:
            own = (f"score ({pairing.method})", pairing.first, pairing.second, pairing.difference, pairing.change)
            others = [(each.kind, each.first, each.second, each.difference, each.change) for each in pairing.further]
            rows += [
                [
                    f"{letter} - A", pairing.norm, kind, str(found.count), number(float(np.median(first))),
                    number(float(np.median(second))), _signed(found.mean.value),
                    f"{_signed(found.mean.low)} .. {_signed(found.mean.high)}",
                    "-" if math.isnan(change.value) else f"{change.value:+.1%}", f"{found.above}:{found.below}",
                    f"{found.sign_pvalue:.2g}",
                ]
                for kind, first, second, found, change in [own, *others]
                if found.count
            ]  # fmt: skip
    headers = ["pair", "norm", "measure", "inputs", "median A", "median", "mean diff", "interval", "change",
               "larger:smaller", "sign p"]  # fmt: skip
    parts += [table(headers, rows), ""]
    for letter, of_run in zip(letters[1:], pairings, strict=True):
        for pairing in of_run:
            places = pairing.changed_most(most)
            if places:
                words = ", ".join(
                    f"#{pairing.ids[i]} ({number(float(pairing.first[i]), 3)} to {number(float(pairing.second[i]), 3)})"
                    for i in places
                )
                parts.append(f"changed most, A to {letter}, norm {pairing.norm}: {words}")
    parts += ["", *(f"{words}" for words in notes(pairings, letters[1:]))]
    for letter, of_run in zip(letters[1:], pairings, strict=True):
        parts += [sentence(pairing, ("A", letter)) for pairing in of_run]
    return "\n".join(parts)


def letter_of(place: int) -> str:
    """The letter of a run in a comparison: A, B, ... in the given order."""
    return chr(ord("A") + place) if place < 26 else f"run {place + 1}"


def notes(pairings: Sequence[Sequence[Pairing]], letters: Sequence[str]) -> list[str]:
    """Remarks on a comparison, such as left-out inputs and capped scores."""
    found = []
    for letter, of_run in zip(letters, pairings, strict=True):
        for pairing in of_run:
            if pairing.left_out:
                found.append(
                    f"note: {pairing.left_out} inputs were left out of A and {letter} in norm {pairing.norm}: "
                    "without a score, or misclassified by one of the models and excluded"
                )
            if any(pairing.misclassified):
                wrong = pairing.misclassified
                found.append(
                    f"note: in norm {pairing.norm} {wrong[0]} inputs count as 0 for A and {wrong[1]} for {letter}, "
                    "which misclassifies them; --exclude-misclassified leaves them out"
                )
            if pairing.unpaired:
                found.append(
                    f"note: {pairing.unpaired} inputs are in one of A and {letter} only, norm {pairing.norm}, and "
                    "cannot be compared; --correct-only chooses other rows for each model, --index the same"
                )
            if not pairing.same_bounds:
                found.append(
                    f"note: {bounds_words(*pairing.bounds, ('A', letter))}, so attacks are not compared in norm "
                    f"{pairing.norm}: they search different regions; score both models with the same --bounds"
                )
            if pairing.capped > MOST_CAPPED * max(1, pairing.difference.count):
                found.append(
                    f"note: {pairing.capped} of {pairing.difference.count} pairs in norm {pairing.norm} are cut at the "
                    "radius, which hides differences; score with a larger --radius"
                )
    return found
