"""Temporary files of Warp's compiler: in its cache, and gone after the process that could not remove them."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import warp as wp

from shoal.sim.kernel_cache import exclusive_kernel_cache

if TYPE_CHECKING:
    import pytest


def test_a_killed_compiler_leaves_nothing_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wp.init()
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path))
    usual = tempfile.gettempdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / "temporary" / f"{platform.node()}.{gone.pid}"
    other = tmp_path / "temporary" / "another-host.1"
    for directory in (left, other):
        (directory / "wp_pch_1").mkdir(parents=True)
    with exclusive_kernel_cache():
        assert Path(tempfile.gettempdir()).parent == tmp_path / "temporary"
        assert not left.exists()
    assert other.exists()
    assert tempfile.gettempdir() == usual
