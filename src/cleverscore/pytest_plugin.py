"""A pytest plugin: the fixtures `assert_robust` and `clever_baseline`, and a summary at the end of the output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_DECISIONS = pytest.StashKey[list[tuple[int, int]]]()
_COMPARED = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixture `clever_baseline` to pytest's command line."""
    group = parser.getgroup("cleverscore")
    group.addoption("--clever-save", action="store_true", help="Keep the scores of clever_baseline as baselines.")
    group.addoption(
        "--clever-baselines", default=".clever-baselines", metavar="FOLDER",
        help="Where baselines of clever_baseline are kept.",
    )  # fmt: skip
    group.addoption(
        "--clever-compare-fail", metavar="median:SHARE",
        help="Fail a test whose median (or mean) score is below its baseline's by more than this, such as median:10%%.",
    )  # fmt: skip


@pytest.fixture
def assert_robust(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """assert_robust(classifier, x, p=2, at_least=0.3): fail the test unless every input's score is at least 0.3.

    Other arguments are those of `cs.decide`, whose `Decision` is returned.
    """
    from cleverscore.scores.decide import decide  # here, so that runs without such tests do not import torch

    spent = request.config.stash.setdefault(_DECISIONS, [])

    def check(classifier: Any, images: Any, *, p: float | str = 2.0, at_least: float, **options: Any) -> Any:
        __tracebackhide__ = True
        decision = decide(classifier, images, p=p, at_least=at_least, **options)
        spent.append((decision.gradients, decision.full_gradients))
        if not decision.passed:
            pytest.fail(str(decision), pytrace=True)
        return decision

    return check


@pytest.fixture
def clever_baseline(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """clever_baseline(classifier, x, p=2, labels=y): return the scores, and store or compare them if pytest is told to.

    With pytest's option `--clever-save` the scores are stored. With `--clever-compare-fail=median:10%` they are
    compared with the stored ones, and the test fails if the median is lower by more than 10%. If there are too few
    inputs to decide, or their scores are too noisy, the test passes and the end of pytest's output says so. Other
    arguments are those of `cs.clever`.
    """
    from cleverscore.reporting.gate import Result
    from cleverscore.reporting.score_baseline import (
        baseline_path,
        compare_baseline,
        parse_compare_fail,
        save_baseline,
    )
    from cleverscore.scores.clever import clever

    config = request.config
    said = config.stash.setdefault(_COMPARED, [])
    calls = 0

    def check(classifier: Any, images: Any, *, p: float | str = 2.0, labels: Any = None, **options: Any) -> Any:
        nonlocal calls
        __tracebackhide__ = True
        options = {"progress": False, **options}
        scores = clever(classifier, images, p=p, labels=labels, **options)
        calls += 1
        name = request.node.nodeid + (f"-{calls}" if calls > 1 else "")
        path = baseline_path(Path(config.getoption("--clever-baselines")), name)
        limit = config.getoption("--clever-compare-fail")
        if limit is not None:
            found = compare_baseline(path, scores, options, *parse_compare_fail(limit))
            said.append(f"{found.result.value} {request.node.nodeid}: {found.name}: {found.text}")
            if found.result is Result.FAIL:
                pytest.fail(f"{found.name}: {found.text}", pytrace=True)
        if config.getoption("--clever-save"):
            save_baseline(path, scores, options)
            said.append(f"kept {path}")
        return scores

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how many gradients `assert_robust` took, and what `clever_baseline` stored or found."""
    spent = config.stash.get(_DECISIONS, [])
    if spent:
        used, full = (sum(column) for column in zip(*spent, strict=True))
        terminalreporter.write_line(
            f"cleverscore: {len(spent)} robustness decisions, {used:,} gradients instead of {full:,}"
        )
    for line in config.stash.get(_COMPARED, []):
        terminalreporter.write_line(f"cleverscore: {line}")
