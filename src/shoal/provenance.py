"""Provenance of results: time, package versions, git state."""

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
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
    """Return commit and changed files of the current directory; None without git or a repository.

    No program is started that the configuration of the repository names, which may have been unpacked with a run.
    """
    off = {"core.fsmonitor": "false", "core.hooksPath": os.devnull}
    try:
        names = _git(off, "config", "--list", "--name-only", "-z").split("\0")
        off |= {name: "" for name in names if name.startswith("filter.")}
        commit = _git(off, "rev-parse", "HEAD").strip()
        changed = _git(off, "status", "--porcelain", "--ignore-submodules=all").splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": changed[:100]}


def _git(settings: Mapping[str, str], *arguments: str) -> str:
    environ = {
        **os.environ,
        "GIT_ALLOW_PROTOCOL": "",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    for number, (name, value) in enumerate(settings.items()):
        environ |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    command = ["git", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=5, env=environ).stdout
