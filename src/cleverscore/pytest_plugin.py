"""A pytest plugin: the fixture `assert_robust`, and a line at the end that says what it cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_DECISIONS = pytest.StashKey[list[tuple[int, int]]]()


@pytest.fixture
def assert_robust(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """assert_robust(classifier, x, p=2, at_least=0.3): fail the test unless every input's score is at least that."""
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the decisions cost."""
    spent = config.stash.get(_DECISIONS, [])
    if spent:
        used, full = (sum(column) for column in zip(*spent, strict=True))
        terminalreporter.write_line(
            f"cleverscore: {len(spent)} robustness decisions, {used:,} gradients instead of {full:,}"
        )
