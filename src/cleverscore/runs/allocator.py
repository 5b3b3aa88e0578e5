"""Keeps freed memory in the process instead of returning it to the system between chunks.

glibc returns large blocks to the system as soon as they are freed, and every page of the next chunk then costs a page
fault: up to a fifth of the time of a large network. Higher thresholds keep the pages. This is done only with glibc, and
only in the processes of the command line and its workers, not where cleverscore is used as a library.
"""

from __future__ import annotations

import ctypes
import platform

# Numbers of the parameters in malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc accepts no more
NEVER = 2**31 - 1


def keep_freed_pages() -> None:
    """Keep memory that is freed from now on in this process; without glibc, do nothing."""
    if platform.libc_ver()[0] != "glibc":
        return
    try:
        tune = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    # One arena: those of further threads live in heaps of 64 MB that go back to the system when they are empty.
    tune(M_ARENA_MAX, 1)
    tune(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    tune(M_TRIM_THRESHOLD, NEVER)
    tune(M_TOP_PAD, LARGEST_MMAP_THRESHOLD)
