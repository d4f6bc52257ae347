"""Latency of collectives: the time of an all_reduce, and the number of them in a training iteration."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from shoal.learn.runner import Runner

_WARM_UP = 3
_REPEATS = 20
_PER_NORMALISER = 3
"""What rsl_rl sums for each normaliser and iteration: the count, the mean, the variance."""


def timed_all_reduce(values: torch.Tensor, size: int, group: ProcessGroup | None = None) -> tuple[float, bool]:
    """Return the median time of an all_reduce [s], and whether every sum was right.

    Args:
        values: What each rank gives; overwritten.
        size: Ranks that take part.
        group: Those ranks; all of them by default.
    """
    times: list[float] = []
    right = True
    for _ in range(_WARM_UP + _REPEATS):
        values.fill_(1.0)
        if values.is_cuda:
            torch.cuda.synchronize()
        started = time.perf_counter()
        dist.all_reduce(values, group=group)
        if values.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
        right = right and bool((values == size).all())
    return median(times[_WARM_UP:]), right


def measure_collective_latency(runner: Runner, numbers: int = 0) -> dict[str, float]:
    """Time all_reduce among all ranks, and count those of an iteration.

    Args:
        runner: This rank's runner, among several.
        numbers: Size of the longer message; by default that of this learner's gradient.

    Returns:
        Median times [s] of an all_reduce of one number, `latency`, and of a gradient, `gradient`; the latter's `bytes`;
        and how many an iteration has of each, `small` and `gradients`.
    """
    from rsl_rl.modules import EmpiricalNormalization  # Here: ranks of the doctor, which train nothing, are light.

    alg, agent = runner.alg, runner.config.agent
    networks = [alg.actor, alg.critic, *([alg.rnd] if alg.rnd else [])]
    if not numbers:  # With the divergence, which travels with the gradients.
        numbers = 1 + sum(each.numel() for part in networks for each in part.parameters() if each.requires_grad)
    normalisers = sum(isinstance(each, EmpiricalNormalization) for part in networks for each in part.modules())
    pooled_advantages = not agent.algorithm.normalize_advantage_per_mini_batch
    latency, gradient = (
        timed_all_reduce(torch.ones(count, device=runner.world.device), runner.world.size)[0] for count in (1, numbers)
    )
    return {
        "latency": latency,
        "gradient": gradient,
        "bytes": 4.0 * numbers,
        "small": 1.0 + pooled_advantages + _PER_NORMALISER * normalisers,
        "gradients": float(agent.algorithm.num_learning_epochs * agent.algorithm.num_mini_batches),
    }
