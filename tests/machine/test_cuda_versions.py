"""What torch and Warp were built with is read as they report it themselves, without importing them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import torch
import warp as wp

from shoal.machine import gpu_health
from shoal.machine.gpu_health import read_built_with

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_versions_are_those_that_torch_and_warp_report() -> None:
    wp.init()
    reported = {
        "torch": None if torch.version.cuda is None else tuple(map(int, torch.version.cuda.split(".")[:2])),
        "warp-lang": wp.get_cuda_toolkit_version(),
    }
    assert read_built_with() == {name: version for name, version in reported.items() if version is not None}


def test_neither_is_imported() -> None:
    script = (
        "import sys; from shoal.machine.gpu_health import read_built_with; read_built_with();"
        "print('torch' in sys.modules, 'warp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_a_build_without_cuda_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version.py").write_text("__version__ = '2.15.0+cpu'\ncuda = None\n")
    monkeypatch.setattr(gpu_health, "_directory", lambda _package: tmp_path)
    assert read_built_with() == {}


def test_a_package_that_is_not_there_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_health, "find_spec", lambda _package: None)
    assert read_built_with() == {}
