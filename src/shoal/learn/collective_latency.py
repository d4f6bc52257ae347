"""Latency of collectives: the time of an all_reduce, and the number of them in a training iteration."""

import time
from statistics import median

import torch
import torch.distributed as dist

from shoal.errors import TrainingFailedError
from shoal.learn.groups import World
from shoal.learn.learner import Learner

_WARM_UP = 3
_REPEATS = 20


def _timed_all_reduce(numbers: int, world: World) -> float:
    """Return the median time of an all_reduce of so many numbers among all ranks [s].

    Raises:
        TrainingFailedError: A sum was wrong.
    """
    values = torch.empty(numbers, device=world.device)
    times: list[float] = []
    for _ in range(_WARM_UP + _REPEATS):
        values.fill_(1.0)
        if values.is_cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        dist.all_reduce(values)
        if values.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
        if not bool((values == world.size).all()):
            message = f"An all_reduce of {numbers:,} numbers among {world.size} ranks returned a wrong sum."
            raise TrainingFailedError(message)
    return median(times[_WARM_UP:])


def measure_collective_latency(learner: Learner, world: World, numbers: int = 0) -> dict[str, float]:
    """Time all_reduce among all ranks, and count those of an iteration.

    `numbers` is the size of the longer message; by default that of the learner's gradient.

    Returns:
        Median times [s] of an all_reduce of one number, `latency`, and of a gradient, `gradient`; the latter's `bytes`;
        and how many an iteration has of each, `small` and `gradients`.
    """
    counts = learner.collectives()
    numbers = numbers or counts.gradient_size
    latency, gradient = (_timed_all_reduce(count, world) for count in (1, numbers))
    return {
        "latency": latency,
        "gradient": gradient,
        "bytes": 4.0 * numbers,
        "small": 1.0 + counts.small,  # One pools the statistics.
        "gradients": float(counts.gradients),
    }
