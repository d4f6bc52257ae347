"""The floors and fences of pyproject.toml hold, and each of them would notice a breach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shoal

PACKAGE = Path(shoal.__file__).parent
SETTINGS = Path(__file__).parents[2] / "pyproject.toml"


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """Check the package in `source` against our contracts."""
    script = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [script, "--config", SETTINGS, "--no-cache", "--no-logo"],
        env=os.environ | {"PYTHONPATH": str(source)},
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_every_contract_is_kept() -> None:
    done = lint_imports(PACKAGE.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("errors.py", "import shoal.config", "Layers: a module imports"),
        ("plan/spec.py", "import shoal.cli", "Layers: a module imports"),
        ("drawer.py", "", "Layers: a module imports"),
        ("tasks/drawer.py", "", "Layers: task families"),
        ("errors.py", "import rich", "Fence: tyro and rich"),
        ("logs.py", "def f():\n    from rsl_rl.env import VecEnv", "Fence: rsl_rl"),
        ("errors.py", "import warp", "Fence: warp and mujoco"),
        ("plan/spec.py", "import torchrunx", "Fence: torchrunx"),
        ("learn/rsl_rl/ppo.py", "import viser", "Fence: viser"),
        ("sweep/worker.py", "import optuna", "Fence: optuna"),
        ("plan/ranks.py", "import pynvml", "Fence: pynvml"),
    ],
)
def test_a_breach_is_noticed(module: str, line: str, contract: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "shoal" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    broken = [text for text in done.stdout.splitlines() if text.startswith(contract)]
    assert done.returncode == 1, done.stdout + done.stderr
    assert "BROKEN" in broken[0]
