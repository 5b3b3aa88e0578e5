"""How a stored run may be extended: by more inputs or a larger budget; no other setting may change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cleverscore.errors import CleverError
from cleverscore.estimators.budget import Budget
from cleverscore.estimators.stop_reason import StopReason
from cleverscore.runs.results import StudyConfig
from cleverscore.runs.store import Store


@dataclass(frozen=True)
class Growth:
    """How a run's stored config differs from that of a new command.

    config      the stored config with the changes that are allowed: more inputs, a larger budget.
    refused     the other differences, as texts.
    """

    config: dict[str, Any]
    refused: tuple[str, ...]

    @classmethod
    def between(cls, before: Mapping[str, Any], now: Mapping[str, Any]) -> Growth:
        """Compare the stored config `before` with the config `now` of a command."""
        config, refused = dict(before), []
        for key, value in now.items():
            if before.get(key) == value:
                continue
            if key == "inputs":
                config[key] = united_rows(str(before.get(key, "all")), str(value))
            elif key == "budget" and larger_budget(before.get(key), value):
                config[key] = value
            else:
                refused.append(f"{key}: {before.get(key)!r} then, {value!r} now")
        return cls(config, tuple(refused))


def united_rows(before: str, now: str) -> str:
    """The union of two selections of rows, sorted; a selection is "all" or row numbers with commas.

    >>> united_rows("0,1,2", "1,5"), united_rows("all", "3"), united_rows("3", "all")
    ('0,1,2,5', 'all', 'all')
    """
    if "all" in (before, now):
        return "all"
    return ",".join(map(str, sorted({*map(int, before.split(",")), *map(int, now.split(","))})))


def larger_budget(before: str | None, now: str | None) -> bool:
    """Whether the budget `now` allows at least as many gradients and as much time as `before`; None has no limit.

    >>> larger_budget("10s", "1m"), larger_budget("10s", None), larger_budget("1m", "10s"), larger_budget("10s", "1000")
    (True, True, False, False)
    """
    try:
        old, new = Budget.parse(before), Budget.parse(now)
    except CleverError:
        return False
    return new.gradients >= old.gradients and new.seconds >= old.seconds


def grow(store: Store, config: Mapping[str, Any], added: int) -> None:
    """Store the new config, and the number of inputs increased by `added`.

    If the budget changed, the measurements that the earlier budget had cut short are deleted, so that they are computed
    again.
    """
    before = store.meta
    if before["config"].get("budget") != config.get("budget"):
        names = list(StudyConfig.stored(store).series())
        store.forget(
            [
                (item.input_id, series)
                for series, items in store.measurements_by_norm(names, maxima=False).items()
                for item in items
                if StopReason.BUDGET in item.stopped
            ]
        )
    store.remember("inputs", int(before.get("inputs", 0)) + added)
    store.remember("config", json.loads(json.dumps(dict(config))))
