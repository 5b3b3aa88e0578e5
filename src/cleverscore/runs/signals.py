"""Ctrl-C once finishes the shards that are being computed, twice stops at once; SIGTERM is like one Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether a signal has asked the run to stop: `asked`."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def stopping(on_ask: Callable[[], None] | None = None) -> Iterator[Stop]:
    """Within the block, the first SIGINT or SIGTERM sets `asked` of the `Stop` and calls `on_ask`.

    A later SIGINT raises KeyboardInterrupt. Signals are left alone outside the main thread, where Python allows no
    signal handlers.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not stop.asked and on_ask is not None:
            on_ask()
        stop.asked = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
