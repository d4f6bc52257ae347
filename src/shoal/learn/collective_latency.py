"""Latency of collectives: the time of an all_reduce, and of as many as a training iteration has."""

import json
import time
from functools import cache
from statistics import median

import torch
import torch.distributed as dist

from shoal.errors import TrainingFailedError
from shoal.learn.groups import World
from shoal.reading import parse_json

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


def measure_collective_latency(world: World, numbers: int = 0) -> dict[str, float]:
    """Time all_reduce among all ranks, and as many as the last iteration had collectives, of the same sizes.

    `numbers` is the size of the longer message; by default that of which the iteration sent most numbers.

    Returns:
        Median times [s] of an all_reduce of one number, `latency`, and of the longer message, `gradient`; the latter's
        `bytes`; and how many `collectives` the last iteration had, and the sum of their times, `communication` [s].
    """
    # Rank 0's: threads that write checkpoints have collectives of their own, which may fall into the next iteration.
    (first,), *_ = world.gather_strings([json.dumps([*world.collective_timer.last_sizes.items()])])
    sizes: dict[int, int] = dict(parse_json(first))
    numbers = numbers or max(sizes, key=lambda size: size * sizes[size], default=1)
    timed = cache(lambda size: _timed_all_reduce(size, world))
    return {
        "latency": timed(1),
        "gradient": timed(numbers),
        "bytes": 4.0 * numbers,
        "collectives": float(sum(sizes.values())),
        "communication": sum(count * timed(size) for size, count in sorted(sizes.items())),
    }
