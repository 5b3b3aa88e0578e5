"""The list of runs in a folder: model, data, results and age of each."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleverscore.errors import CleverError
from cleverscore.reporting.findings import findings
from cleverscore.reporting.run_summary import run_summary
from cleverscore.runs.store import FILE_NAME, Store
from cleverscore.scores.text_table import number, table

DEEPEST = 4  # levels of folders below the given one in which runs are searched for


@dataclass(frozen=True)
class ListedRun:
    """A run with its summary, or with the reason why it cannot be read.

    folder      the folder of the run.
    changed     when something was last written to it, in seconds since 1970.
    summary     the dictionary of `run_summary`; empty if the run cannot be read.
    problem     why the run cannot be read; empty if it can.
    """

    folder: Path
    changed: float
    summary: dict[str, Any]
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for JSON, without the curves of robust accuracy, which `cleverscore show RUN --json` prints."""
        norms = [
            {name: value for name, value in norm.items() if name != "robust_accuracy"}
            for norm in self.summary.get("norms", ())
        ]
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.changed))
        problem = {"problem": self.problem} if self.problem else {}
        return {"run": str(self.folder), "changed": when, **self.summary, **problem, "norms": norms}


def listed(folder: Path) -> list[ListedRun]:
    """The runs in a folder and below, the one that changed last first."""
    found = []
    for depth in range(DEEPEST + 1):
        for path in folder.glob("*/" * depth + FILE_NAME):
            place = path.parent
            changed = _changed(path)
            try:
                with Store.open(place) as store:
                    found.append(ListedRun(place, changed, run_summary(findings(store, maxima=False))))
            except CleverError as error:
                found.append(ListedRun(place, changed, {}, str(error)))
    return sorted(found, key=lambda run: -run.changed)


def _changed(path: Path) -> float:
    """When something was last written to a run's file or to its write-ahead log, in seconds since 1970.

    Programs that only read a run leave an empty log; its time is not used.
    """
    changed = path.stat().st_mtime
    try:
        log = path.with_name(path.name + "-wal").stat()
    except FileNotFoundError:
        return changed
    return max(changed, log.st_mtime) if log.st_size else changed


def runs_table(runs: list[ListedRun], now: float | None = None) -> str:
    """A table as text, one line per run and norm; ages are relative to `now`, in seconds since 1970."""
    now = time.time() if now is None else now
    rows, below = [], []
    for run in runs:
        age = age_words(now - run.changed)
        if run.problem:
            rows.append([str(run.folder), "-", "-", "-", "-", "-", "-", "-", age])
            below.append(f"{run.folder}: {run.problem}")
        summary = run.summary
        for norm in summary.get("norms", ()):
            medians = [
                f"{method} {number(_value(found['median']), 3)}" for method, found in norm["methods"].items()
            ]  # fmt: skip
            accuracy = summary["accuracy"]
            rows.append(
                [
                    str(run.folder), _short(summary["model"]), _short(summary["data"]),
                    f"{summary['inputs']}{' *' if summary['unfinished'] else ''}",
                    "-" if accuracy is None else f"{accuracy:.0%}", norm["norm"], ", ".join(medians) or "-",
                    number(_value(norm["attack_median"]), 3), age,
                ]
            )  # fmt: skip
    headers = ["run", "model", "data", "inputs", "accuracy", "norm", "median score", "attack", "age"]
    if any(run.summary.get("unfinished") for run in runs):
        below.append("* unfinished: the command that made the run resumes it")
    return "\n".join([table(headers, rows), *below])


def _value(interval: dict[str, float | None]) -> float:
    value = interval["value"]
    return math.nan if value is None else value


def _short(text: str, most: int = 36) -> str:
    return text if len(text) <= most else f"...{text[3 - most :]}"


def age_words(seconds: float) -> str:
    """An age in seconds as text, in one unit.

    >>> age_words(30), age_words(7200), age_words(3 * 86400)
    ('30 s', '2 h', '3 d')
    """
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"
