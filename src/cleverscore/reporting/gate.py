"""A gate for release pipelines: thresholds per norm and a comparison with a baseline; PASS, FAIL or UNDECIDED."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
from scipy import stats

from cleverscore.errors import InputError, SettingError
from cleverscore.norms import numbers_by_norm
from cleverscore.reporting.compare import Change, Pairing, bounds_words, compare, listed
from cleverscore.reporting.comparison_text import remarks, verdict
from cleverscore.reporting.findings import Findings, NormFindings, without_misclassified
from cleverscore.reporting.robust_accuracy import ATTACKED, CERTIFIED, ESTIMATED, check_norms
from cleverscore.scores.text_table import number


class Result(Enum):
    """The result of a check; UNDECIDED if the inputs decide neither for PASS nor for FAIL."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True)
class Check:
    """One check of a run: what is checked, the result, and the measured value with the threshold in words."""

    name: str
    result: Result
    text: str


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of a gate. Dictionaries are by norm; "" holds for every norm.

    In a dictionary of single numbers, the entry of a norm overrides that of "".

    min_median      the smallest allowed median score.
    min_score       the smallest allowed score of any input.
    max_violations  the largest allowed share of scores above the best attack, among inputs where one succeeded.
    min_robust      pairs (share, epsilon): the smallest allowed robust accuracy at epsilon.
    min_accuracy    the smallest allowed accuracy; None for no such check.
    max_drop        "mean" or "median", and the largest allowed drop from the baseline as a share of it; None to check
                    instead whether the baseline is more robust.
    """

    min_median: dict[str, float] = field(default_factory=dict)
    min_score: dict[str, float] = field(default_factory=dict)
    max_violations: dict[str, float] = field(default_factory=dict)
    min_robust: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    min_accuracy: float | None = None
    max_drop: tuple[str, float] | None = None

    def __bool__(self) -> bool:
        return self != Thresholds()


def parse_thresholds(values: Sequence[str], option: str) -> dict[str, float]:
    """Parse thresholds of the command line: 0.3 for every norm, or inf=0.02 for one. Errors name `option`.

    >>> parse_thresholds(["0.3", "inf=0.02"], "--min-score")
    {'': 0.3, 'inf': 0.02}
    """
    found: dict[str, float] = {}
    for value in values:
        one = numbers_by_norm([value], option, examples=("0.3", "inf=0.02"))
        if any(not math.isfinite(limit) or limit < 0.0 for limit in one.values()):
            raise SettingError(f"{option} {value!r}: the threshold must be a number, at least 0")
        found |= one
    return found


def parse_share(value: str, option: str) -> float:
    """Parse a share of the command line: 10% or 0.1. Errors name `option`.

    >>> parse_share("10%", "--max-drop"), parse_share("0.25", "--max-drop")
    (0.1, 0.25)
    """
    text = value.strip()
    try:
        share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = math.nan
    if not 0.0 <= share <= 1.0:
        raise SettingError(f"{option} {value!r}: give a share such as 10% or 0.1")
    return share


def parse_drop(value: str, option: str) -> tuple[str, float]:
    """Parse the largest allowed drop of the mean or the median: mean:10% or median:10%. Errors name `option`.

    >>> parse_drop("median:10%", "--max-drop")
    ('median', 0.1)
    """
    what, colon, share = value.strip().partition(":")
    if what not in ("median", "mean") or not colon:
        raise SettingError(f"{option} {value!r}: write median:SHARE or mean:SHARE, such as median:10%")
    return what, parse_share(share, option)


def parse_robust(values: Sequence[str], option: str) -> dict[str, list[tuple[float, float]]]:
    """Parse shares with their epsilon: 0.8@0.03 or 80%@8/255 for every norm, inf=0.8@8/255 for one.

    Errors name `option`. Returns the pairs (share, epsilon) by norm.

    >>> parse_robust(["0.8@0.5", "inf=80%@8/255"], "--min-robust-accuracy")
    {'': [(0.8, 0.5)], 'inf': [(0.8, 0.03137254901960784)]}
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for value in values:
        front, at, epsilon = value.rpartition("@")
        norm, equals, share = front.rpartition("=")
        if not at:
            raise SettingError(f"{option} {value!r}: write share@epsilon, such as 0.8@0.03 or inf=0.8@8/255")
        ((name, distance),) = numbers_by_norm(
            [f"{norm}{equals}{epsilon}"], option, examples=("0.8@0.03", "inf=0.8@8/255")
        ).items()
        if not (math.isfinite(distance) and distance >= 0.0):
            raise SettingError(f"{option} {value!r}: epsilon must be a number, at least 0")
        found.setdefault(name, []).append((parse_share(share, option), distance))
    return found


def checks(
    found: Findings, thresholds: Thresholds, baseline: Findings | None = None, *, exclude_misclassified: bool = False
) -> list[Check]:
    """All checks of a run: accuracy, then the thresholds norm by norm, then the comparison with the baseline.

    found                   the run.
    baseline                another run, with which the run is compared; None for no comparison.
    exclude_misclassified   leave misclassified inputs out; else they have score 0.

    If the run has labels, a check fails for an accuracy no better than chance whatever the thresholds are, because the
    scores of a constant or random classifier mean nothing. Raises an InputError if a check cannot be made.
    """
    for run, name in ((found, "the run"), (baseline, "the baseline")):
        if run is not None and run.unfinished is not None:
            raise InputError(f"{name} {run.folder} is not finished; repeat its score command first ({run.unfinished})")
    if thresholds.max_drop is not None and baseline is None:
        raise InputError("--max-drop needs a run to compare with: --baseline RUN")
    for limits in (thresholds.min_median, thresholds.min_score, thresholds.max_violations, thresholds.min_robust):
        check_norms(limits, {norm.name for norm in found.norms})
    made = _chance(found)
    if thresholds.min_accuracy is not None:
        made.append(_accuracy(found, thresholds.min_accuracy, exclude_misclassified))
    for norm in (without_misclassified(found) if exclude_misclassified else found).norms:
        made += _of_norm(norm, thresholds)
    if baseline is not None:
        for pairing in compare(baseline, found, exclude_misclassified=exclude_misclassified):
            made += _baseline(pairing, thresholds.max_drop)
    return made


def _chance(found: Findings) -> list[Check]:
    """A failed check if the accuracy is no better than guessing, else no check; none without labels either.

    It fails if the accuracy is closer to that of guessing than to 1, and not significantly (5%) above guessing.
    """
    pairs = zip(found.labels, found.predicted, strict=True)
    right = [label == predicted for label, predicted in pairs if label is not None]
    if found.excluded or not right:
        return []
    # The number of classes may be unknown; the largest number of a class in the run is then taken for the last class.
    # Targets are included, because a constant classifier predicts one class only.
    targets = (score.target for norm in found.norms for row in norm.targets for score in row)
    met = max([1, *found.predicted, *(label for label in found.labels if label is not None), *targets])
    chance = 1.0 / max(1 + met, len(found.class_names or ()))
    if sum(right) / len(right) > (1.0 + chance) / 2.0:
        return []
    if stats.binomtest(sum(right), len(right), chance, alternative="greater").pvalue < 0.05:
        return []
    words = (
        f"{sum(right)} of {len(right)} inputs are classified correctly, which is no better than chance ({chance:.1%}): "
        "are the weights loaded, and do the labels belong to these inputs?"
    )
    return [Check("better than chance", Result.FAIL, words)]


def _accuracy(found: Findings, least: float, exclude_misclassified: bool) -> Check:
    share = found.accuracy
    if math.isnan(share.value):
        raise InputError("--min-accuracy needs labels, and the run has none; score data with labels")
    if found.excluded or exclude_misclassified:
        raise InputError(
            "--min-accuracy: misclassified inputs were excluded, so the accuracy is not known; leave out "
            "--exclude-misclassified, or score without --correct-only and --skip-misclassified"
        )
    words = f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%}) classified correctly, at least {least:.1%} asked"
    return Check("accuracy", _passed(share.value >= least), words)


def _passed(yes: bool) -> Result:
    return Result.PASS if yes else Result.FAIL


def _of_norm(norm: NormFindings, thresholds: Thresholds) -> list[Check]:
    values = norm.column("counted")
    known = values[~np.isnan(values)]
    missing = int(np.isnan(values).sum())
    made = []
    least = _limit(thresholds.min_median, norm)
    if least is not None:
        middle = norm.median
        at_radius = ">= " if middle.value >= norm.radius else ""
        words = (
            f"median {at_radius}{number(middle.value)} ({number(middle.low)} to {number(middle.high)}), at least "
            f"{least:g} asked{_beyond(least, norm)}"
        )
        made.append(Check(f"l{norm.name} median score ({norm.method})", _reached(middle.value, least, norm), words))
    least = _limit(thresholds.min_score, norm)
    if least is not None:
        below = [score for score in norm.known if not score.counted >= least]
        smallest = float(known.min()) if len(known) else math.nan
        words = f"smallest {number(smallest)}, at least {least:g} asked{_beyond(least, norm)}"
        if below:
            few = ", ".join(f"#{score.input} {number(score.counted, 3)}" for score in below[:5])
            words += f"; {len(below)} of {len(values)} inputs are below: {few}{', ...' if len(below) > 5 else ''}"
        if missing:
            words += f"; {missing} inputs have no score"
        result = Result.FAIL if missing or not len(known) else _reached(smallest, least, norm)
        made.append(Check(f"l{norm.name} smallest score ({norm.method})", result, words))
    for share, epsilon in [*thresholds.min_robust.get("", []), *thresholds.min_robust.get(norm.name, [])]:
        made.append(_robust(norm, share, epsilon))
    most = _limit(thresholds.max_violations, norm)
    if most is not None:
        made.append(_violations(norm, most))
    return made


def _reached(value: float, least: float, norm: NormFindings) -> Result:
    """Whether `value` is at least `least`; undecided if it is capped at a radius below `least`."""
    if value < least and least > norm.radius and value >= norm.radius:
        return Result.UNDECIDED
    return _passed(value >= least)


def _beyond(least: float, norm: NormFindings) -> str:
    if least <= norm.radius:
        return ""
    return f"; scores end at the radius {norm.radius:g}: score with a larger --radius"


def _robust(norm: NormFindings, least: float, epsilon: float) -> Check:
    """Check that the robust accuracy at epsilon is at least `least`, in this order:

    PASS if the certified share is at least `least`; FAIL if the attacked share is below it; UNDECIDED if epsilon is
    beyond the radius of capped scores; PASS if the estimated share is at least `least`. Else UNDECIDED, or FAIL for a
    run without attacks.
    """
    curves = norm.robust_accuracy
    shares = curves.at(epsilon)
    words = ", ".join(f"{line.label} {shares[line.kind]}" for line in curves.lines)
    certified, estimated, attacked = (
        math.nan if kind not in shares else shares[kind].value for kind in (CERTIFIED, ESTIMATED, ATTACKED)
    )
    if certified >= least:
        result = Result.PASS
    elif attacked < least:
        result = Result.FAIL
    elif math.isnan(estimated):
        result = Result.UNDECIDED
        words += f"; scores end at the radius {norm.radius:g}: score with a larger --radius"
    elif estimated >= least:
        result = Result.PASS
    else:
        # Without attacks the estimate is all there is.
        result = Result.FAIL if math.isnan(attacked) else Result.UNDECIDED
    return Check(f"l{norm.name} robust accuracy at {epsilon:.4g}", result, f"{words}; at least {least:.1%} asked")


def _violations(norm: NormFindings, most: float) -> Check:
    rate = norm.violation_rate_of(norm.method)
    if np.isnan(norm.upper).all():
        raise InputError(
            f"--max-violations needs attacks beside the scores, and the run has none in the norm {norm.name}; add "
            "them with: cleverscore score ... --attack best"
        )
    name = f"l{norm.name} scores ({norm.method}) above the attack"
    if math.isnan(rate):
        return Check(name, Result.UNDECIDED, "no attack succeeded, so there is nothing to hold the scores against")
    words = f"{rate:.1%} of attacked inputs score above their attack, at most {most:.1%} allowed"
    return Check(name, _passed(rate <= most), words)


def _baseline(pairing: Pairing, max_drop: tuple[str, float] | None) -> list[Check]:
    """The checks in one norm against the baseline, the first run of `pairing`.

    With `max_drop`, they are about the drop of the scores and of the best attacks' distances; else there is one, that
    the baseline is not more robust.
    """
    if max_drop is not None:
        of, most = max_drop
        name = f"l{pairing.norm} {of} score ({pairing.method})"
        made = [drop_check(name, pairing.score_change(of), most, pairing.same_scores)]
        attack, name = pairing.attack_change(of), f"l{pairing.norm} {of} of the best attack"
        if attack is not None:
            made.append(drop_check(name, attack, most, False))
        elif not pairing.same_bounds and pairing.both_attacked:
            words = "score both models with the same --bounds"
            made.append(Check(f"{name}, drop against the baseline", Result.UNDECIDED, words))
    else:
        made = [_not_less_robust(pairing)]
    added = ""
    if pairing.unpaired:
        before, now = pairing.counts
        added += f"; compared on {len(pairing.ids)} of {now} inputs (the baseline has {before})"
    if not pairing.same_methods:
        theirs, ours = map(listed, pairing.methods)
        added += f"; judged by {pairing.method}, which both runs have (the baseline has {theirs}, this run {ours})"
    if not pairing.same_bounds:
        bounds = bounds_words(*pairing.bounds, ("the baseline", "this run"))
        added += f"; {bounds}, so attacks are not compared"
    return [replace(check, text=check.text.removesuffix(".") + added) if added else check for check in made]


def _not_less_robust(pairing: Pairing) -> Check:
    name = f"l{pairing.norm} not less robust than the baseline"
    if pairing.verdict or not (pairing.same_model or pairing.same_scores):
        result = {1: Result.PASS, -1: Result.FAIL, 0: Result.UNDECIDED}[pairing.verdict]
        names = ("the baseline", "this run")
        return Check(name, result, " ".join([verdict(pairing, names), *remarks(pairing, names)]))
    equal = f"equal scores ({pairing.method})"
    return Check(name, Result.PASS, "the model is that of the baseline" if pairing.same_model else equal)


def drop_check(name: str, change: Change, most: float, same: bool) -> Check:
    """The check that a drop is at most the share `most`.

    It passes if the whole interval of the change is at least -most, fails if the whole interval is below -most, and is
    else undecided. With `same`, for equal scores, it passes.
    """
    name = f"{name}, drop against the baseline"
    limit = f"at most {most:.1%} lower allowed"
    if same:
        return Check(name, Result.PASS, f"equal scores; {limit}")
    if math.isnan(change.value):
        return Check(name, Result.UNDECIDED, f"{change.words}; {limit}")
    result = Result.PASS if change.low >= -most else Result.FAIL if change.high < -most else Result.UNDECIDED
    advice = "; more inputs would tell" if result is Result.UNDECIDED else ""
    return Check(name, result, f"{change.words}; {limit}{advice}")


def _limit(limits: dict[str, float], norm: NormFindings) -> float | None:
    return limits.get(norm.name, limits.get(""))


def outcome(made: Sequence[Check], *, strict: bool = False) -> Result:
    """The result of all checks together: FAIL if any check fails; with `strict` also if any is undecided."""
    results = {check.result for check in made}
    if Result.FAIL in results or (strict and Result.UNDECIDED in results):
        return Result.FAIL
    return Result.UNDECIDED if Result.UNDECIDED in results else Result.PASS


def summary_line(made: Sequence[Check], run: str, *, strict: bool = False) -> str:
    """One line for the log of a pipeline: the result, the run's name, and the checks that failed or are undecided."""
    result = outcome(made, strict=strict)
    if result is Result.PASS:
        return f"PASS {run}: {len(made)} of {len(made)} checks"
    parts = []
    for kind, word in ((Result.FAIL, "failed"), (Result.UNDECIDED, "undecided")):
        named = [check.name for check in made if check.result is kind]
        if named:
            parts.append(f"{len(named)} of {len(made)} checks {word}: {'; '.join(named)}")
    return f"{result.value} {run}: {'. '.join(parts)}"
