"""What answers the user at once imports nothing heavy: torch, Warp and MuJoCo cost over a second each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shoal

PACKAGE = Path(shoal.__file__).parent
HEAVY = ("torch", "warp", "mujoco", "rsl_rl", "tensordict", "torchrunx")
COLD = ("__init__.py", "errors.py", "logs.py", "config/**/*.py", "plan/**/*.py", "cli/**/*.py")
COLD += ("tasks/registry.py", "tasks/*/config.py")
REPORT = f"import sys; print(*(name for name in {HEAVY} if name in sys.modules))"


def module_names() -> list[str]:
    """The importable name of every module that has to be cold."""
    paths = {path.relative_to(PACKAGE.parent) for pattern in COLD for path in PACKAGE.glob(pattern)}
    return sorted(".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths)


def heavy_after(statement: str) -> list[str]:
    """The heavy packages that `statement` imports in a fresh interpreter."""
    command = [sys.executable, "-c", f"{statement}; {REPORT}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", module_names())
def test_module_imports_nothing_heavy(name: str) -> None:
    assert heavy_after(f"import {name}") == []


def test_listing_the_registered_tasks_imports_nothing_heavy() -> None:
    assert heavy_after("from shoal.tasks.registry import registered; registered()") == []


def test_a_heavy_import_is_noticed() -> None:
    assert "torchrunx" in heavy_after("import torchrunx")
