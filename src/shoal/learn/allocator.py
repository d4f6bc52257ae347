"""Settings of glibc's memory allocator for training on the CPU."""

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's <malloc.h>; mallopt(3)
_LARGEST_TRIM_THRESHOLD = 2**31 - 1
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # half of glibc's HEAP_MAX_SIZE on 64-bit machines; it refuses more
_USER_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """Let glibc reuse freed blocks of some megabytes instead of returning them to the kernel.

    Each mini-batch frees and allocates such blocks, and the kernel clears every page of a new one: without this there
    are four times as many page faults (docs/benchmarks.md). It lasts as long as the process, as glibc has no way to
    read the former setting. Other C libraries, and a user's own setting in the environment, are left alone.
    """
    if any(name in os.environ for name in _USER_SETTINGS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _LARGEST_TRIM_THRESHOLD)
