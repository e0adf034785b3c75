"""How freed memory is kept, so that an update does not fetch from the system what the last one gave back."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST_KEPT_BYTES = 32 * 1024 * 1024
"""The most the C library accepts; larger pieces still go back to the system at once."""


def keep_freed_memory() -> bool:
    """Let this process keep what its tensors free; returns whether the C library can be told so.

    By default glibc hands memory back after every update and takes it again in the next, a page fault for each 4 kB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(TRIM_THRESHOLD, 2**31 - 1) and mallopt(MMAP_THRESHOLD, LARGEST_KEPT_BYTES))
