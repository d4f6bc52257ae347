"""Device isolation: one rank allocates on its own device, and makes no context on another GPU.

Which rank gets which device is decided in `shoal.plan`. Nothing here may ask torch or Warp about *all*
devices: to query the memory of a GPU makes a context on it.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import torch
import warp as wp

from shoal.errors import UsageError
from shoal.heartbeat import Heartbeat
from shoal.sim.kernel_cache import shared_kernel_cache

_NO_DRIVER = b"Could not find or load the NVIDIA CUDA driver"
"""Output of Warp's native library on machines without a GPU. Shoal reports the device itself."""

EGL_DEVICE_VARIABLE = "MUJOCO_EGL_DEVICE_ID"
"""The GPU that MuJoCo renders on. MuJoCo 4 counts as CUDA does, among the visible devices."""


@contextmanager
def isolated(
    device: str, *, threads: int | None = None, matmul_precision: str | None = None, beat: Heartbeat | None = None
) -> Iterator[None]:
    """Make `device` the default of torch, Warp and EGL in the body, and restore the old ones.

    It is ``"cpu"`` or ``"cuda:<index>"``, counted among the visible GPUs. torch may use so many `threads` on the CPU,
    and multiplies matrices with `matmul_precision`; None leaves its own choice. Kernels are compiled by one process at
    a time, and `beat` shows a wait for another.

    Raises:
        UsageError: If Warp does not know the device.
    """
    with ExitStack() as stack:
        stack.enter_context(_without_greeting(device))
        try:
            warp_device = wp.get_device(device)  # Warp makes its context only when it is first used.
        except ValueError as error:
            visible = ", ".join(known.alias for known in wp.get_devices())
            message = f"The device '{device}' was asked for, but Warp sees only: {visible}. Name one of these."
            raise UsageError(message) from error
        if warp_device.is_cuda:
            # Asking torch for its current device would wake GPU 0 if torch has not touched CUDA yet.
            if torch.cuda.is_initialized():
                stack.callback(torch.cuda.set_device, torch.cuda.current_device())
            torch.cuda.set_device(warp_device.ordinal)
            if EGL_DEVICE_VARIABLE not in os.environ:  # Or the user has chosen one.
                os.environ[EGL_DEVICE_VARIABLE] = str(warp_device.ordinal)
                stack.callback(os.environ.pop, EGL_DEVICE_VARIABLE, None)
        if threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)
        if matmul_precision is not None:
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision(matmul_precision)
        stack.enter_context(wp.ScopedDevice(warp_device))
        stack.enter_context(shared_kernel_cache(beat or Heartbeat()))
        yield


@contextmanager
def _without_greeting(device: str) -> Iterator[None]:
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
    """Buffer standard error of the body, and then write all lines but those with `mark` in them."""
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
