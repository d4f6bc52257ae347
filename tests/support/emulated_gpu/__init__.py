"""An emulated machine with NVIDIA GPUs, for this process and all that it starts: a GPU rung of the tests without a GPU.

`SHOAL_EMULATED_GPU` holds the machine's `Settings` as JSON. With `site/` on `PYTHONPATH`, a process that finds the
variable gets emulated GPUs when it imports NVML, Warp or torch. When it ends, it writes what was done with them into
the directory that `SHOAL_EMULATED_REPORTS` names.
"""

from __future__ import annotations

import atexit
import dataclasses
import importlib.abc
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.emulated_gpu.driver import FIRST_CONTEXT, Driver, EmulationError, Settings, call_stack, patch_warp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from support.emulated_gpu.tensors import Torch

__all__ = ["REPORTS", "SETTINGS", "Settings", "environment", "install", "machine"]

SETTINGS = "SHOAL_EMULATED_GPU"
REPORTS = "SHOAL_EMULATED_REPORTS"
KERNEL_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "shoal-emulated-gpu"
"""Compiled kernels. Not where users have theirs: some are not compiled for real."""
_HERE = Path(__file__).parent


class Machine:
    """The emulated machine of this process."""

    def __init__(self, settings: Settings) -> None:
        """Start it without a driver: Warp brings that, when it starts."""
        self.settings = settings
        self.driver: Driver | None = None
        self.torch: Torch | None = None
        self.contexts: dict[int, tuple[str, ...]] = {}

    def open_driver(self, library: Any) -> Driver:
        """Make the driver over Warp's C library."""
        self.driver = Driver(library, self.settings, self.make_context)
        return self.driver

    def make_context(self, ordinal: int) -> int:
        """Return the handle of the context on a GPU, which is made if need be, on torch's or on Warp's behalf."""
        if not 0 <= ordinal < self.settings.count:
            message = f"GPU {ordinal} does not exist: the emulated machine has {self.settings.count}."
            raise EmulationError(message)
        if ordinal not in self.contexts:
            self.contexts[ordinal] = call_stack(3)
        return FIRST_CONTEXT + ordinal

    def forget(self) -> None:
        """Begin the account again."""
        self.contexts.clear()
        for side in (self.driver, self.torch):
            if side is not None:
                side.violations.clear()
                side.waits.clear()
        if self.torch is not None:
            self.torch.forget_device()

    @property
    def is_capturing(self) -> bool:
        """Whether a stream of Warp's is."""
        return self.driver is not None and self.driver.is_capturing

    @property
    def violations(self) -> list[Any]:
        """All that CUDA refuses, or that makes a context where none belongs."""
        return [*(self.driver.violations if self.driver else ()), *(self.torch.violations if self.torch else ())]

    def report(self) -> dict[str, Any]:
        """Return what was done with the machine, as plain values."""
        driver, tensors = self.driver, self.torch
        return {
            "pid": os.getpid(),
            "rank": int(os.environ.get("RANK", "0")),
            "contexts": {str(ordinal): list(stack) for ordinal, stack in self.contexts.items()},
            "violations": [[each.what, list(each.stack)] for each in self.violations],
            "graph_launches": driver.graph_launches if driver else 0,
            "peak_bytes": driver.peak_bytes if driver else 0,
            "waits_of_warp": dict(driver.waits) if driver else {},
            "waits_of_torch": [[*key, count] for key, count in tensors.waits.items()] if tensors else [],
            "collectives": tensors.collectives if tensors else [],
        }


_machine: Machine | None = None


def machine() -> Machine:
    """Return the emulated machine of this process.

    Raises:
        EmulationError: It has none.
    """
    if _machine is None:
        message = "This process has no emulated GPUs."
        raise EmulationError(message)
    return _machine


def environment(settings: Settings, reports: Path | None = None) -> dict[str, str]:
    """Return the variables that give emulated GPUs to a process and all that it starts."""
    paths = [str(_HERE / "site"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    named = {SETTINGS: json.dumps(dataclasses.asdict(settings)), "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    return named | ({REPORTS: str(reports)} if reports is not None else {})


def install(settings: Settings | None = None) -> None:
    """Give this process emulated GPUs. None of NVML, Warp and torch may have been imported.

    Args:
        settings: What the machine is like; by default what the environment says.

    Raises:
        EmulationError: It is too late.
    """
    global _machine  # noqa: PLW0603
    late = [name for name in ("pynvml", "warp", "torch") if name in sys.modules]
    if late:
        message = f"{', '.join(late)} was imported before the emulated GPUs were installed."
        raise EmulationError(message)
    settings = settings or Settings(**json.loads(os.environ[SETTINGS]))
    os.environ["WARP_CACHE_PATH"] = str(KERNEL_CACHE / ("compiled" if settings.compiles else "named"))
    _machine = made = Machine(settings)

    def patch_tensors(_: ModuleType) -> None:
        from support.emulated_gpu import tensors

        made.torch = tensors.Torch(settings, made.contexts, made.make_context, lambda: made.is_capturing)
        tensors.patch_torch(made.torch)

    hooks: dict[str, Callable[[ModuleType], None]] = {
        "pynvml": lambda module: _patch_nvml(module, settings),
        "warp._src.context": lambda module: patch_warp(module, made.open_driver),
        "torch": patch_tensors,
    }
    sys.meta_path.insert(0, _AfterImport(hooks))
    if REPORTS in os.environ:
        _report_at_the_end(made)


def _patch_nvml(module: ModuleType, settings: Settings) -> None:
    from support.fake_devices import FakeNvml, machine_of
    from support.fake_devices import machine as fake_machine

    gpus = machine_of(settings.count).gpus
    version: dict[str, Callable[..., object]] = {"nvmlSystemGetCudaDriverVersion_v2": lambda: settings.driver_version}
    fake = FakeNvml(fake_machine(*gpus, driver=settings.driver_release), answers=version)
    for name, value in vars(fake).items():
        if name.startswith("nvml"):
            setattr(module, name, value)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function right after a module was imported."""

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._hooks = hooks
        self._searches: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Find a module with the other finders, and let its loader call the hook."""
        if name not in self._hooks or name in self._searches:
            return None
        self._searches.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searches.remove(name)
        if spec is None or spec.loader is None:
            return None
        hook, execute = self._hooks[name], spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            hook(module)

        spec.loader.exec_module = exec_module
        return spec


def _report_at_the_end(made: Machine) -> None:
    """Write the report when this process ends, also where it leaves at once."""
    leave = os._exit

    def write() -> None:
        if made.driver is not None or made.torch is not None:
            file = Path(os.environ[REPORTS]) / f"{os.getpid()}.json"
            file.write_text(json.dumps(made.report()), encoding="utf-8")

    def leave_with_report(code: int) -> None:
        try:
            write()
        finally:
            leave(code)

    atexit.register(write)
    os._exit = leave_with_report  # pyright: ignore[reportAttributeAccessIssue]
