"""Memory that is freed between chunks and asked for again at once should not travel to the system and back.

glibc returns large blocks to the system as soon as they are free, and every page of the next chunk then costs a fault:
up to a fifth of the time of a large network. Raised thresholds keep the pages. Only processes of our own, the command
line's and its workers', are changed; where cleverscore is used as a library, its host is left alone, as are other
systems and C libraries.
"""

from __future__ import annotations

import ctypes
import platform

# Numbers of the parameters in malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc accepts no more
NEVER = 2**31 - 1


def keep_freed_pages() -> None:
    """From now on, memory that is freed stays with this process."""
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
