from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import cleverscore as cs

# What `make check` leaves out: whole programs, processes, browsers, attacks and searches, pages that are run.
SLOW_ROOMS = {"attacks", "brackets", "certificates", "cli", "docs", "exact", "paper", "runs"}
SLOW_FILES = {
    "test_report",
    "test_compare",
    "test_formats",
    "test_decide",
    "test_profile_search",
    "test_sharp",
    "test_regions",
    "test_zoo",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in SLOW_ROOMS or item.path.stem in SLOW_FILES:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def mnist() -> tuple:
    return cs.load_data("zoo:mnist")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Optional parts may skip on a user's machine; in CI a skip fails."""
    report = (yield).get_result()
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
