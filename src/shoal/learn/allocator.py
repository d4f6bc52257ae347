"""The C library's memory allocator, told what a learner on the CPU does with it."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's <malloc.h>; mallopt(3)
_LARGEST_TRIM_THRESHOLD = 2**31 - 1
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # half of glibc's HEAP_MAX_SIZE on 64-bit machines; it refuses more
_CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables by which a user has said what the allocator is to do."""


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, so that the next mini-batch finds it: otherwise the kernel clears each page anew.

    A mini-batch's activations and gradients are some megabytes each, which glibc gives back to the kernel as soon as
    they are freed, and asks for again a moment later. Kept, they cost a fourth of the page faults; what that is worth
    is in docs/benchmarks.md. It lasts as long as the process: glibc does not tell what held before. Other C libraries,
    and users who have chosen for themselves, are left alone.
    """
    if any(name in os.environ for name in _CHOICES):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _LARGEST_TRIM_THRESHOLD)
