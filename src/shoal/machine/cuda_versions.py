"""CUDA versions that torch and Warp were built with, read from their files: importing either takes over a second."""

import ctypes
import runpy
from importlib.util import find_spec
from pathlib import Path

Version = tuple[int, int]
"""Major and minor version of CUDA, such as (13, 2)."""


def read_built_with() -> dict[str, Version]:
    """Return the CUDA version that torch and warp-lang were built with. A build without CUDA is left out."""
    found = {"torch": torch_cuda(_directory("torch")), "warp-lang": warp_cuda(_directory("warp"))}
    return {name: version for name, version in found.items() if version is not None}


def torch_cuda(package: Path) -> Version | None:
    """Return the CUDA version of the torch in the directory `package`, from its file ``version.py``."""
    try:
        major, minor = runpy.run_path(str(package / "version.py"))["cuda"].split(".")[:2]
    except (OSError, KeyError, AttributeError):  # Not installed, or a build without CUDA, where `cuda` is None.
        return None
    return int(major), int(minor)


def warp_cuda(package: Path) -> Version | None:
    """Return the CUDA version of the Warp in the directory `package`.

    A function of its library returns it, as 13040 for 13.4, and needs no driver.
    """
    try:
        version = ctypes.CDLL(str(package / "bin" / "warp.so")).wp_cuda_toolkit_version()
    except (OSError, AttributeError):  # Not installed, another system than Linux, or a release without the function.
        return None
    return (version // 1000, version % 1000 // 10) if version else None


def _directory(package: str) -> Path:
    """Return the directory of a package without importing it; one that does not exist where it is not installed."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else Path("/nonexistent")
