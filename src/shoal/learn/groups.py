"""The process group of the ranks, and the few collectives that Shoal itself uses.

Opened after the environment has captured its graphs, because NCCL's watchdog thread can break a capture.
"""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from shoal.heartbeat import Heartbeat
from shoal.learn.collectives import CollectiveTimer, instrumented_collectives

logger = logging.getLogger(__name__)

_MARGIN_S = 600.0
"""How much longer than any watchdog's limit a collective may take [s]."""
_NO_LIMIT_S = 7 * 24 * 3600.0
"""How long it may take without a watchdog [s]."""


def group_timeout(startup_timeout: float, stall_timeout: float) -> timedelta:
    """Return how long a collective may take, from the hang detector's two limits [s], of which 0 means none.

    torch ends the rank that waits, never the stuck one. The hang detector names the stuck one, so it must act first.
    """
    limits = (startup_timeout, stall_timeout)
    return timedelta(seconds=2 * max(limits) + _MARGIN_S if all(limits) else _NO_LIMIT_S)


_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
ON_ONE_MACHINE = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": f"={_LOOPBACK}"}
"""Variables that let gloo and NCCL listen on loopback only. By default gloo takes the address that the host name
resolves to, which may wait for a name server, and NCCL the first interface that other machines can reach."""
_EPSILON = 1e-8
"""What rsl_rl, skrl and rl_games add to the standard deviation of advantages."""


@dataclass(frozen=True, slots=True)
class World:
    """This rank and the group of all ranks. One rank alone needs no process group."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    device: str = "cpu"
    local_size: int | None = None
    """Ranks on this machine; None where that is unknown."""
    network: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    """On several nodes: variables that name the network interface for gloo and NCCL."""
    beat: Heartbeat = field(default_factory=Heartbeat, compare=False, repr=False)
    """Heartbeat of this rank."""
    collective_timer: CollectiveTimer = field(default_factory=CollectiveTimer, compare=False, repr=False)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the one that writes."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there are other ranks."""
        return self.size > 1

    @property
    def is_on_one_machine(self) -> bool:
        """Whether all ranks are known to be on this machine."""
        return self.local_size == self.size

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace `tensor` by its sum over all ranks, in place."""
        if self.is_distributed:
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
        return tensor

    def max_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace `tensor` by its elementwise maximum over all ranks, in place."""
        if self.is_distributed:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return `tensor` of every rank, by rank."""
        if not self.is_distributed:
            return [tensor]
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(gathered, tensor)
        return gathered

    def gather_strings(self, strings: list[str]) -> list[list[str]]:
        """Return `strings` of every rank, by rank. They are sent as JSON, so that nothing is unpickled."""
        if not self.is_distributed:
            return [strings]
        text = torch.tensor(list(json.dumps(strings).encode()), dtype=torch.uint8, device=self.device)
        lengths = self.gather(torch.tensor([text.numel()], device=self.device))
        longest = max(int(length.item()) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8, device=self.device)
        padded[: text.numel()] = text
        texts = zip(self.gather(padded), lengths, strict=True)
        return [json.loads(bytes(each[: int(n.item())].tolist())) for each, n in texts]


def normalised_over_ranks(values: torch.Tensor, *, correction: int = 1) -> torch.Tensor:
    """Return values normalised by mean and standard deviation over all ranks, as libraries do with those of one.

    `correction` is subtracted from the number of values: 1 as in torch, 0 as in JAX.
    """
    exact = values.double()
    moments = torch.stack([exact.sum(), exact.square().sum(), torch.full_like(exact.sum(), exact.numel())])
    dist.all_reduce(moments)
    total, squares, count = moments
    mean = total / count
    std = ((squares - count * mean.square()) / (count - correction)).clamp(min=0.0).sqrt()
    return ((exact - mean) / (std + _EPSILON)).to(values.dtype)


def _keep_gloo_from_preempting() -> None:
    """Give gloo's event threads the batch policy, so that they do not preempt the thread whose lock they spin on.

    An arriving message wakes the event thread, often on the core of the thread that sends under gloo's lock. The event
    thread spins on that lock until its time slice of some milliseconds is over. Under the batch policy a thread that
    wakes does not preempt. Seen with torch 2.15 and Linux 6.18; figures in docs/benchmarks.md.
    """
    for comm in Path("/proc/self/task").glob("*/comm"):  # None where the kernel is not Linux.
        with contextlib.suppress(OSError):  # A thread that has just ended; a sandbox that forbids it.
            if comm.read_text(encoding="utf-8", errors="replace").strip() == "gloo_tcp_loop":
                os.sched_setscheduler(int(comm.parent.name), os.SCHED_BATCH, os.sched_param(0))


@contextmanager
def process_group(
    world: World,
    *,
    backend: str | None,
    store: Callable[[], dist.Store] | None,
    timeout: timedelta = timedelta(seconds=_MARGIN_S),
) -> Iterator[World]:
    """Open the process group of `world`, and close it when the body succeeded. A single rank has no `backend`.

    After a failure nothing is closed: closing can wait for peers that are gone, and a failing worker exits anyway.
    """
    if backend is None or store is None:
        yield world
        return
    logger.debug("Opening the %s process group.", backend)
    if world.is_on_one_machine:
        # For the rest of the process, so that further groups listen on loopback too. It replaces a user's value, which
        # is meant for runs on several nodes.
        os.environ.update(ON_ONE_MACHINE)
    os.environ.update(world.network)
    phase = world.beat.enter("collective")
    opened = store()
    opened.set_timeout(timeout)  # torch leaves a store that it is given at its default of five minutes.
    dist.init_process_group(
        backend=backend,
        store=opened,
        world_size=world.size,
        rank=world.rank,
        timeout=timeout,
        device_id=torch.device(world.device) if backend == "nccl" else None,
    )
    world.beat.enter(phase)
    if backend == "gloo":
        _keep_gloo_from_preempting()
    with instrumented_collectives(world.beat, world.collective_timer, world.device):
        yield world
        dist.barrier()
    dist.destroy_process_group()
