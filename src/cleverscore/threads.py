"""Threads: how many, and pools of them in which torch uses one intra-operation thread each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from cleverscore.errors import SettingError
from cleverscore.validation import is_whole


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which torch uses one intra-operation thread; afterwards it uses as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A context with a pool of `workers` threads, in each of which torch uses one intra-operation thread.

    On leaving, tasks that have not begun are cancelled, and torch uses as many intra-operation threads as before.
    """
    before = torch.get_num_threads()
    executor = ThreadPoolExecutor(workers, initializer=lambda: torch.set_num_threads(1))
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        torch.set_num_threads(before)


def default_workers(device: torch.device) -> int:
    """The default number of threads: one per usable core on a CPU, one on an accelerator."""
    if device.type != "cpu":
        return 1
    affinity = getattr(os, "sched_getaffinity", None)
    return max(1, len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


def checked_workers(device: torch.device, workers: int | None) -> int:
    """The number of threads: `workers` if given, or the default; a SettingError if it is not a whole number from 1."""
    if workers is None:
        return default_workers(device)
    if not is_whole(workers) or workers < 1:
        raise SettingError(f"workers={workers!r}: give a whole number of threads, at least 1")
    return int(workers)
