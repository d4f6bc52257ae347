"""Errors of a GPU as errors of Shoal's own: of torch and Warp without memory, and of a GPU that is broken."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import warp as wp

from shoal.errors import ShoalError, TrainingFailedError, WorkerLostError
from shoal.text import size

_OUT_OF_MEMORY = re.compile(r"out of memory|Failed to allocate \d+ bytes on device 'cuda:\d+'\s*$")
"""Matches errors of CUDA, torch and Warp's allocator. The latter appends any other reason, such as missing pools."""


@contextmanager
def translate_memory_errors(device: str, num_envs: int, flag: str) -> Iterator[None]:
    """Translate out-of-memory errors of the body; `flag` is that of the worker's `num_envs`. Others pass unchanged.

    Raises:
        TrainingFailedError: torch or Warp could not allocate memory of the GPU.
    """
    try:
        yield
    except (RuntimeError, ShoalError) as error:  # torch.OutOfMemoryError is a RuntimeError.
        # A graph that CUDA has no memory for is an error of Shoal's own, about the capture.
        cause = error.__cause__ if isinstance(error, ShoalError) else error
        if device == "cpu" or not _OUT_OF_MEMORY.search(str(cause)):
            raise
        gpu = wp.get_device(device)
        raise TrainingFailedError(
            f"A worker with {num_envs:,} environments ran out of memory on GPU {gpu.ordinal} ({gpu.name}), when "
            f"{size(gpu.free_memory)} of its {size(gpu.total_memory)} were free: pass a smaller {flag}, or end other "
            "processes that use this GPU."
        ) from error


def refuse_broken_gpu(device: str, rank: int, error: Exception) -> None:
    """Lose this rank, after `error`, if its GPU does nothing any more, as after an illegal access.

    Raises:
        WorkerLostError: The GPU cannot be used.
    """
    if device == "cpu":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as broken:
        raise WorkerLostError(f"Rank {rank} cannot use its GPU any more ({broken}).", rank=rank) from error
