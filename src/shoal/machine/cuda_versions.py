"""CUDA versions that torch and Warp were built with, read from their files: importing either takes over a second."""

import ctypes
import runpy
from importlib.util import find_spec
from pathlib import Path

Version = tuple[int, int]
"""Major and minor version of CUDA, such as (13, 2)."""


def read_built_with() -> dict[str, Version]:
    """Return the CUDA version that torch and warp-lang were built with. A build without CUDA is left out."""
    found = {"torch": _torch_cuda(), "warp-lang": _warp_cuda()}
    return {name: version for name, version in found.items() if version is not None}


def _torch_cuda() -> Version | None:
    try:
        major, minor = runpy.run_path(str(_directory("torch") / "version.py"))["cuda"].split(".")[:2]
    except (OSError, KeyError, AttributeError):  # Not installed, or a build without CUDA, where `cuda` is None.
        return None
    return int(major), int(minor)


def _warp_cuda() -> Version | None:
    """Ask Warp's library, which needs no driver, and writes 13040 for 13.4."""
    try:
        version = ctypes.CDLL(str(_directory("warp") / "bin" / "warp.so")).wp_cuda_toolkit_version()
    except (OSError, AttributeError):  # Not installed, another system than Linux, or a release without the function.
        return None
    return (version // 1000, version % 1000 // 10) if version else None


def _directory(package: str) -> Path:
    """Return the directory of a package without importing it; one that does not exist where it is not installed."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else Path("/nonexistent")
