"""What the kernel counts when memory is taken and given back, as mini-batches do, in a process of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

PAGES = 4 * 2**20 // 4096
ROUNDS = 100
SCRIPT = f"""
import resource
import torch
from shoal.learn.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({ROUNDS}):
        torch.ones(2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_freed_memory()
print(before, faults())
"""


def faults(**environ: str) -> tuple[int, int]:
    """Page faults of the rounds before and after the allocator was told."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = map(int, done.stdout.split())
    return before, after


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_memory_that_was_freed_is_found_again() -> None:
    _, kept = faults()
    assert kept < 3 * PAGES


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_what_a_user_has_chosen_stays() -> None:
    # Every round takes four new megabytes, and clears all their pages.
    before, after = faults(MALLOC_MMAP_THRESHOLD_="65536")
    assert before >= ROUNDS * PAGES / 2
    assert after >= ROUNDS * PAGES / 2
