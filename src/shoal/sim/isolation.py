"""One rank, one device: what a worker allocates goes to its own, and no other GPU gets as much as a context.

Which rank gets which device is decided in `shoal.plan`. Nothing here may ask torch or Warp about *all*
devices: to look at the memory of a GPU is to make a context on it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
import warp as wp

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_DRIVER = b"Could not find or load the NVIDIA CUDA driver"
"""What Warp's native library writes on machines without a GPU. Shoal says in words of its own where it trains."""

EGL_DEVICE_VARIABLE = "MUJOCO_EGL_DEVICE_ID"
"""Which GPU MuJoCo renders on. MuJoCo 4 counts as CUDA does, among the visible devices."""


@contextmanager
def isolated(device: str, *, threads: int | None = None) -> Iterator[None]:
    """Make `device` the default of torch, Warp and EGL for the time of the body; put all back afterwards.

    Enter it before anything allocates. It changes the whole process, so a process isolates one device at a
    time.

    Args:
        device: ``"cpu"`` or ``"cuda:<index>"``, counted among the visible GPUs.
        threads: Threads that torch may use for the CPU's share of the work; None leaves torch's own choice.

    Raises:
        UsageError: If Warp does not know the device.
    """
    with ExitStack() as stack:
        stack.enter_context(_silent_greeting(device))
        warp_device = _warp_device(device)
        if warp_device.is_cuda:
            stack.enter_context(_torch_gpu(warp_device.ordinal))
            stack.enter_context(_egl_gpu(warp_device.ordinal))
        if threads is not None:
            stack.enter_context(_torch_threads(threads))
        stack.enter_context(wp.ScopedDevice(warp_device))
        yield


def _warp_device(device: str) -> wp.Device:
    """Return Warp's device of that name; Warp makes its context only when it is first used."""
    try:
        return wp.get_device(device)
    except ValueError as error:
        visible = ", ".join(known.alias for known in wp.get_devices())
        message = f"The device '{device}' was asked for, but Warp sees only: {visible}. Name one of these."
        raise UsageError(message) from error


@contextmanager
def _silent_greeting(device: str) -> Iterator[None]:
    """Start Warp without its greeting, which makes a context on every GPU to ask for its memory."""
    level = wp.config.log_level
    wp.config.log_level = max(level, wp.LOG_WARNING)
    try:
        with _without_line(_NO_DRIVER) if device == "cpu" else nullcontext():
            wp.init()
        yield
    finally:
        wp.config.log_level = level


@contextmanager
def _without_line(mark: bytes) -> Iterator[None]:
    """Hold back what the body writes to standard error, and then let all lines pass but those with `mark` in them."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held, os.fdopen(os.dup(2), "wb", buffering=0) as usual:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(usual.fileno(), 2)
            held.seek(0)
            for line in held:
                if mark not in line:
                    sys.stderr.write(line.decode(errors="replace"))


@contextmanager
def _torch_gpu(index: int) -> Iterator[None]:
    """Make a GPU torch's current one."""
    # Asking torch for its current device would wake GPU 0 if torch has not touched CUDA yet.
    before = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    torch.cuda.set_device(index)
    try:
        yield
    finally:
        if before is not None:
            torch.cuda.set_device(before)


@contextmanager
def _egl_gpu(index: int) -> Iterator[None]:
    """Make a GPU the one that MuJoCo renders on, unless the user has chosen one."""
    if EGL_DEVICE_VARIABLE in os.environ:
        yield
        return
    os.environ[EGL_DEVICE_VARIABLE] = str(index)
    try:
        yield
    finally:
        os.environ.pop(EGL_DEVICE_VARIABLE, None)


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    """Give torch a share of the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
