"""Real file systems that are tiny or read-only, where this user may mount them."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def tiny_disk(where: Path, *options: str) -> Iterator[Path]:
    """Mount a file system of memory at `where`, with options such as ``size=64k``; skip the test where none may be."""
    where.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(where)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not mounted:
        pytest.skip("only root may mount a file system, and not in every container")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)
