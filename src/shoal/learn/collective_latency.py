"""Latency of collectives: the time of an all_reduce, and the number of them in a training iteration."""

import time
from statistics import median

import torch
import torch.distributed as dist
from rsl_rl.modules import EmpiricalNormalization

from shoal.errors import TrainingFailedError
from shoal.learn.groups import World
from shoal.learn.runner import Runner

_WARM_UP = 3
_REPEATS = 20
_PER_NORMALISER = 3
"""What rsl_rl sums for each normaliser and iteration: the count, the mean, the variance."""


def _timed_all_reduce(numbers: int, world: World) -> float:
    """Return the median time of an all_reduce among all ranks [s].

    Args:
        numbers: Size of the message.
        world: This rank's place.

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


def measure_collective_latency(runner: Runner, numbers: int = 0) -> dict[str, float]:
    """Time all_reduce among all ranks, and count those of an iteration.

    Args:
        runner: This rank's runner, among several.
        numbers: Size of the longer message; by default that of this learner's gradient.

    Returns:
        Median times [s] of an all_reduce of one number, `latency`, and of a gradient, `gradient`; the latter's `bytes`;
        and how many an iteration has of each, `small` and `gradients`.
    """
    alg, agent = runner.alg, runner.config.agent
    networks = [alg.actor, alg.critic, *([alg.rnd] if alg.rnd else [])]
    if not numbers:  # With the divergence, which travels with the gradients.
        numbers = 1 + sum(each.numel() for part in networks for each in part.parameters() if each.requires_grad)
    normalisers = sum(isinstance(each, EmpiricalNormalization) for part in networks for each in part.modules())
    pooled_advantages = not agent.algorithm.normalize_advantage_per_mini_batch
    latency, gradient = (_timed_all_reduce(count, runner.world) for count in (1, numbers))
    return {
        "latency": latency,
        "gradient": gradient,
        "bytes": 4.0 * numbers,
        "small": 1.0 + pooled_advantages + _PER_NORMALISER * normalisers,
        "gradients": float(agent.algorithm.num_learning_epochs * agent.algorithm.num_mini_batches),
    }
