"""Errors of torch and Warp that mean that a GPU has no memory left, as an error of Shoal's own.

What a training takes at least is judged before it starts, in `shoal.plan.preflight`.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import warp as wp

from shoal.errors import TrainingFailedError
from shoal.plan.findings import size

if TYPE_CHECKING:
    from collections.abc import Iterator

_OUT_OF_MEMORY = re.compile(r"out of memory|Failed to allocate \d+ bytes on device 'cuda")
"""Matches errors of CUDA and torch, and those of Warp's allocator."""


@contextmanager
def translate_memory_errors(device: str, num_envs: int, flag: str) -> Iterator[None]:
    """Raise an error of Shoal's own where the body runs out of GPU memory.

    Args:
        device: The worker's device. On the CPU all errors are left as they are.
        num_envs: The worker's environments.
        flag: The flag that chose their number.

    Raises:
        TrainingFailedError: torch or Warp could not allocate memory of the GPU.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one.
        if device == "cpu" or not _OUT_OF_MEMORY.search(str(error)):
            raise
        gpu = wp.get_device(device)
        message = (
            f"A worker with {num_envs:,} environments ran out of memory on GPU {gpu.ordinal} ({gpu.name}), when "
            f"{size(gpu.free_memory)} of its {size(gpu.total_memory)} were free: pass a smaller {flag}, or end other "
            "processes that use this GPU."
        )
        raise TrainingFailedError(message) from error
