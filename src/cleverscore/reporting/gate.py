"""A gate for release pipelines: thresholds per norm, a comparison with a baseline, JUnit XML."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from cleverscore.errors import InputError, LoadError, SettingError
from cleverscore.norms import numbers_by_norm
from cleverscore.reporting.compare import compare, sentence
from cleverscore.reporting.findings import Findings, NormFindings, without_misclassified
from cleverscore.scores.text_table import number


@dataclass(frozen=True)
class Check:
    """One question to a run, answered."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True)
class Thresholds:
    """What a run must reach, per norm ("" is every norm).

    min_median      the median score must not be below.
    min_score       no score must be below.
    max_violations  at most this share of attacked inputs may have a score above their attack.
    """

    min_median: dict[str, float]
    min_score: dict[str, float]
    max_violations: dict[str, float]

    def __bool__(self) -> bool:
        return bool(self.min_median or self.min_score or self.max_violations)


def parse_thresholds(values: Sequence[str], option: str) -> dict[str, float]:
    """Thresholds as the command line writes them: 0.3 for every norm, or inf=0.02 for one.

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


def checks(
    found: Findings, thresholds: Thresholds, baseline: Findings | None = None, *, exclude_misclassified: bool = False
) -> list[Check]:
    """All that is asked of a run, in the order of norms; misclassified inputs count as 0 unless they are excluded."""
    if found.unfinished is not None:
        raise InputError(f"the run is not finished; repeat its score command first ({found.unfinished})")
    known = {norm.name for norm in found.norms}
    for asked in (thresholds.min_median, thresholds.min_score, thresholds.max_violations):
        for name in asked:
            if name and name not in known:
                raise InputError(f"the run has no scores in the norm {name}; it has {', '.join(sorted(known))}")
    made = []
    for norm in (without_misclassified(found) if exclude_misclassified else found).norms:
        made += _of_norm(norm, thresholds)
    if baseline is not None:
        for pairing in compare(baseline, found, exclude_misclassified=exclude_misclassified):
            words = sentence(pairing, ("the baseline", "this run"))
            made.append(Check(f"l{pairing.norm} not less robust than the baseline", pairing.verdict >= 0, words))
    return made


def _of_norm(norm: NormFindings, thresholds: Thresholds) -> list[Check]:
    values = norm.column("counted")
    known = values[~np.isnan(values)]
    missing = int(np.isnan(values).sum())
    made = []
    least = _limit(thresholds.min_median, norm)
    if least is not None:
        middle = norm.median
        words = (
            f"median {number(middle.value)} ({number(middle.low)} to {number(middle.high)}), at least {least:g} asked"
        )
        made.append(Check(f"l{norm.name} median score", middle.value >= least, words))
    least = _limit(thresholds.min_score, norm)
    if least is not None:
        below = [head for head in norm.known if not head.counted >= least]
        passed = len(known) > 0 and not below
        words = f"smallest {number(float(known.min()) if len(known) else math.nan)}, at least {least:g} asked"
        if below:
            few = ", ".join(f"#{head.input} {number(head.counted, 3)}" for head in below[:5])
            words += f"; {len(below)} of {len(values)} inputs are below: {few}{', ...' if len(below) > 5 else ''}"
        if missing:
            words += f"; {missing} inputs have no score"
        made.append(Check(f"l{norm.name} smallest score", passed, words))
    most = _limit(thresholds.max_violations, norm)
    if most is not None:
        rate = norm.violation_rate
        if math.isnan(rate):
            raise InputError(
                f"--max-violations needs attacks beside the scores, and the run has none in the norm {norm.name}; add "
                "them with: cleverscore score ... --attack best"
            )
        words = f"{rate:.1%} of attacked inputs score above their attack, at most {most:.1%} allowed"
        made.append(Check(f"l{norm.name} scores above the attack", rate <= most, words))
    return made


def _limit(limits: dict[str, float], norm: NormFindings) -> float | None:
    return limits.get(norm.name, limits.get(""))


def summary_line(made: Sequence[Check], run: str) -> str:
    """One line for a pipeline's log."""
    failed = [check for check in made if not check.passed]
    if not failed:
        return f"PASS {run}: {len(made)} of {len(made)} checks"
    return f"FAIL {run}: {len(failed)} of {len(made)} checks: " + "; ".join(check.name for check in failed)


def write_junit(made: Sequence[Check], run: str, out: Path) -> None:
    """The checks as JUnit XML: one test case each."""
    failed = sum(not check.passed for check in made)
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        name="cleverscore gate",
        tests=str(len(made)),
        failures=str(failed),
        errors="0",
        skipped="0",
    )
    for check in made:
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(run), name=_xml(check.name))
        if check.passed:
            ElementTree.SubElement(case, "system-out").text = _xml(check.text)
        else:
            ElementTree.SubElement(case, "failure", message=_xml(check.text)).text = _xml(check.text)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(suites).write(out, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise LoadError(f"{out} cannot be written: {error.strerror}") from error


def _xml(text: str) -> str:
    """Text without the characters that XML does not have."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)
