"""What answers the user at once imports nothing heavy: torch, Warp and MuJoCo cost over a second each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import shoal

PACKAGE = Path(shoal.__file__).parent
COLD = (
    "__init__.py",
    "api.py",
    "gym.py",
    "errors.py",
    "logs.py",
    "config/*.py",
    "machine/*.py",
    "plan/*.py",
    "checks/*.py",
    "cli/*.py",
)
COLD += ("tasks/__init__.py", "tasks/registry.py", "tasks/*/__init__.py", "tasks/*/config.py")
HEAVY = ("torch", "warp", "mujoco", "rsl_rl", "tensordict", "torchrunx")

IMPORT_ONE_BY_ONE = f"""
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    heavy = [package for package in {HEAVY} if package in sys.modules]
    if heavy:
        sys.exit(f"{{name}} imports {{', '.join(heavy)}}")
"""


def module_names() -> list[str]:
    """The importable name of every module that has to be cold."""
    paths = {path.relative_to(PACKAGE.parent) for pattern in COLD for path in PACKAGE.glob(pattern)}
    return sorted(".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths)


def run_python(script: str, *args: str) -> str:
    """Run `script` in a fresh interpreter and return what it says on standard error."""
    command = [sys.executable, "-c", script, *args]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=120).stderr


def test_modules_that_answer_at_once_import_nothing_heavy() -> None:
    names = module_names()
    assert {"shoal", "shoal.cli.main", "shoal.plan.nodes", "shoal.tasks.cartpole.config"} <= set(names)
    assert run_python(IMPORT_ONE_BY_ONE, *names) == ""


def test_listing_the_tasks_imports_nothing_heavy() -> None:
    listing = "from shoal.tasks.registry import registered; registered()"
    assert run_python(f"{listing}\n{IMPORT_ONE_BY_ONE}", "shoal") == ""


def test_a_heavy_import_is_named() -> None:
    assert run_python(IMPORT_ONE_BY_ONE, "shoal.errors", "warp") == "warp imports warp\n"
