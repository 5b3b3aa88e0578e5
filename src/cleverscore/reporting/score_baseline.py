"""Scores of a test stored in a file, for comparison with later runs of the test."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cleverscore.errors import InputError, LoadError
from cleverscore.norms import norm_name
from cleverscore.reporting.compare import Change
from cleverscore.reporting.files import write_file
from cleverscore.reporting.gate import Check, drop_check, parse_drop
from cleverscore.scores.score import Scores

FORMAT = 1
LEVEL = 0.95


def parse_compare_fail(value: str) -> tuple[str, float]:
    """Parse the option --clever-compare-fail: mean or median, and the largest allowed drop.

    >>> parse_compare_fail("median:10%")
    ('median', 0.1)
    """
    return parse_drop(value, "--clever-compare-fail")


def baseline_path(folder: Path, test: str) -> Path:
    """The baseline file of a test, by its pytest id.

    >>> str(baseline_path(Path("kept"), "tests/test_model.py::test_digits[a b]"))
    'kept/tests-test_model.py--test_digits-a-b.json'
    """
    return folder / (re.sub(r"[^\w.-]", "-", test).strip("-") + ".json")


def save_baseline(path: Path, scores: Scores, settings: Mapping[str, Any]) -> None:
    """Store the scores (0 for misclassified inputs) with the settings of the test in a file."""
    content = {
        "format": FORMAT,
        "settings": {name: str(value) for name, value in sorted(settings.items())},
        "norm": norm_name(scores[0].p),
        "inputs": [score.input for score in scores],
        "scores": [score.counted for score in scores],
    }
    write_file(path, (json.dumps(content, indent=1) + "\n").encode())


def compare_baseline(path: Path, scores: Scores, settings: Mapping[str, Any], of: str, most: float) -> Check:
    """Check that the mean or median score dropped by at most a share of the baseline's; inputs are paired.

    path        the baseline file.
    settings    the settings of the test, which must be those of the baseline.
    of          "mean" or "median".
    most        the largest allowed drop, as a share of the baseline's value.

    Raises an InputError if there is no baseline, or one of other settings, inputs or norm.
    """
    try:
        kept = json.loads(path.read_text())
        before = np.array(kept["scores"], dtype=np.float64)
    except FileNotFoundError:
        raise InputError(f"there is no baseline {path}; make it with --clever-save") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(
            f"{path} is not a baseline that can be read ({error}); make it again with --clever-save"
        ) from None
    now = {"settings": {name: str(value) for name, value in sorted(settings.items())}, "norm": norm_name(scores[0].p),
           "inputs": [score.input for score in scores]}  # fmt: skip
    for name, value in now.items():
        if kept.get(name) != value:
            raise InputError(
                f"the baseline {path} has other {name} ({_short(kept.get(name))} then, {_short(value)} now); make it "
                "again with --clever-save"
            )
    after = np.array([score.counted for score in scores])
    known = ~(np.isnan(before) | np.isnan(after))
    change = Change.between(before[known], after[known], LEVEL, of)
    same = bool(np.array_equal(before[known], after[known]))
    return drop_check(f"l{now['norm']} {of} score", change, most, same)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
