"""Progress on stderr: a bar if it is a terminal, otherwise nothing, or a plain line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(total: int, label: str, *, lines: bool = False) -> Iterator[Callable[[int], None]]:
    """A context that shows the progress of `total` units of work, with the text `label`.

    It gives a function; call it with the number of units finished since its last call. If stderr is a terminal, a bar
    is shown. Otherwise nothing is printed, or with `lines` at most one line every ten seconds.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda done: bar.advance(task, done)
        return
    yield _lines(total, label) if lines else lambda done: None


def _lines(total: int, label: str) -> Callable[[int], None]:
    began = last = time.monotonic()
    finished = 0

    def advance(done: int) -> None:
        nonlocal last, finished
        finished += done
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            share = min(finished / max(total, 1), 1.0)
            left = (now - began) * (1.0 - share) / max(share, 1e-9)
            print(f"{label}: {share:.0%}, about {left:.0f} s left", file=sys.stderr, flush=True)

    return advance
