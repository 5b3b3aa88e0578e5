"""Memory that is freed between chunks and asked for again at once should not travel to the system and back.

glibc returns large blocks to the system as soon as they are free, and every page of the next chunk then costs a fault:
up to a fifth of the time of a large network. Raised thresholds keep the pages until sampling ends. Other systems and C
libraries are left alone.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Numbers of the parameters in malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc accepts no more
NEVER = 2**31 - 1


@cache
def _library() -> ctypes.CDLL | None:
    """glibc, with thresholds raised; None elsewhere."""
    if platform.libc_ver()[0] != "glibc":
        return None
    try:
        library = ctypes.CDLL(None)
        tune = library.mallopt
        library.malloc_trim  # noqa: B018  # is it there?
    except (OSError, AttributeError):
        return None
    # One arena: those of further threads live in heaps of 64 MB that go back to the system when they are empty.
    tune(M_ARENA_MAX, 1)
    tune(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    tune(M_TRIM_THRESHOLD, NEVER)
    tune(M_TOP_PAD, LARGEST_MMAP_THRESHOLD)
    return library


@contextmanager
def kept_pages() -> Iterator[None]:
    """Inside, freed memory stays with the process; after it, what is free goes back to the system."""
    library = _library()
    try:
        yield
    finally:
        if library is not None:
            library.malloc_trim(0)
