"""Provenance of results: time, package versions, git state."""

import platform
import subprocess
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from shoal import __version__

CORE = ("torch", "warp-lang", "rsl-rl-lib", "torchrunx", "mujoco", "mujoco-warp", "numpy")
"""Packages that the results of every task depend on."""

_OPTIONAL = ("gymnasium", "mjlab", "playground", "jax", "skrl", "rl-games")
"""Packages that results of some tasks and learners depend on."""


def now() -> str:
    """Return the local time in ISO 8601."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def versions(packages: Iterable[str] = (*CORE, *_OPTIONAL)) -> dict[str, str]:
    """Return the versions of Python, of Shoal, and of the packages that are installed."""
    found = {"python": platform.python_version(), "shoal": __version__}
    return found | {name: release for name in packages if (release := installed_version(name))}


def installed_version(package: str) -> str | None:
    """Return the version of a package, if it is installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state() -> dict[str, Any] | None:
    """Return commit and changed files of the current directory; None without git or a repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain").splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": changed[:100]}


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=5).stdout.strip()
