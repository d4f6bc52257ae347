"""The process group that ranks talk through, and the few collectives that Shoal itself asks of it.

Opened after the environment has captured its graphs, because NCCL's watchdog thread can break a capture.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from shoal.heartbeat import Heartbeat
from shoal.learn.collectives import Spent, marked_collectives

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

logger = logging.getLogger(__name__)

_MARGIN_S = 600.0
"""How much longer than any watchdog's patience a collective may take [s]."""
_NO_LIMIT_S = 7 * 24 * 3600.0
"""How long it may take where no watchdog was asked for [s]."""


def group_timeout(startup_timeout: float, stall_timeout: float) -> timedelta:
    """Return how long a collective may take.

    torch ends the rank that waited too long, which is never the one to blame. So the watchdogs, which know that one,
    must have had their time first; a rank that is slow but gets on may keep its peers waiting for longer still.

    Args:
        startup_timeout: How long a rank may go without progress before its first iteration is done [s]; 0 for ever.
        stall_timeout: The same afterwards.
    """
    limits = (startup_timeout, stall_timeout)
    return timedelta(seconds=2 * max(limits) + _MARGIN_S if all(limits) else _NO_LIMIT_S)


_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
ON_ONE_MACHINE = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": f"={_LOOPBACK}"}
"""Variables that let gloo and NCCL listen on loopback only. Left alone, gloo takes the address that the host's name
resolves to, waiting for a name server if it must, and NCCL the first interface that others can reach."""
_GLOO_EVENTS = "gloo_tcp_loop"
"""What gloo calls its threads that wait for messages."""


@dataclass(frozen=True, slots=True)
class World:
    """This rank's place among all ranks, and how to reach them. One rank alone needs no process group."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    device: str = "cpu"
    local_size: int | None = None
    """Ranks on this machine; None where nobody has said."""
    network: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)
    """On several machines: variables that tell gloo and NCCL which interface leads to the others."""
    beat: Heartbeat = field(default_factory=Heartbeat, compare=False, repr=False)
    """Where this rank says what it does."""
    spent: Spent = field(default_factory=Spent, compare=False, repr=False)
    """Time that it has spent in collectives."""

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
        """Return `strings` of every rank, by rank. They travel as JSON, so that nothing is unpickled."""
        if not self.is_distributed:
            return [strings]
        text = torch.tensor(list(json.dumps(strings).encode()), dtype=torch.uint8, device=self.device)
        lengths = self.gather(torch.tensor([text.numel()], device=self.device))
        longest = max(int(length.item()) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8, device=self.device)
        padded[: text.numel()] = text
        texts = zip(self.gather(padded), lengths, strict=True)
        return [json.loads(bytes(each[: int(n.item())].tolist())) for each, n in texts]


def _let_gloo_finish() -> None:
    """Keep gloo's event threads from taking the core of the thread that they then wait for.

    A message that arrives wakes the event thread, often on the core, and in the place, of the thread that is sending
    under gloo's lock. The event thread does not sleep until it gets the lock: it asks again and again, until the
    scheduler's slice of some milliseconds is over. Under the batch policy it replaces nobody when it wakes. Seen with
    torch 2.15 and Linux 6.18; the figures are in docs/benchmarks.md.
    """
    for comm in Path("/proc/self/task").glob("*/comm"):  # None where the kernel is not Linux.
        with contextlib.suppress(OSError):  # A thread that has just ended; a sandbox that forbids it.
            if comm.read_text(encoding="utf-8", errors="replace").strip() == _GLOO_EVENTS:
                os.sched_setscheduler(int(comm.parent.name), os.SCHED_BATCH, os.sched_param(0))


@contextmanager
def process_group(
    world: World,
    *,
    backend: str | None,
    store: Callable[[], dist.Store] | None,
    patience: timedelta = timedelta(seconds=_MARGIN_S),
) -> Iterator[World]:
    """Open the process group of `world`, and close it when the body succeeded.

    After a failure nothing is closed: closing can wait for peers that are gone, and a failing worker is about to
    leave its process anyway.

    Args:
        world: This rank's place.
        backend: `nccl` or `gloo`; None for a world of one.
        store: Opens the store through which the ranks find each other.
        patience: How long a collective may take.
    """
    if backend is None or store is None:
        yield world
        return
    logger.debug("Opening the %s process group.", backend)
    if world.is_on_one_machine:
        # For as long as this process lives: groups of a user's own open no other door. A user's own value is meant for
        # runs on several machines, and would let these listen to a network that they do not need.
        os.environ.update(ON_ONE_MACHINE)
    os.environ.update(world.network)
    before = world.beat.enter("collective")
    meeting_point = store()
    meeting_point.set_timeout(patience)  # torch leaves a store that it is given at its own five minutes.
    dist.init_process_group(
        backend=backend,
        store=meeting_point,
        world_size=world.size,
        rank=world.rank,
        timeout=patience,
        device_id=torch.device(world.device) if backend == "nccl" else None,
    )
    world.beat.enter(before)
    if backend == "gloo":
        _let_gloo_finish()
    with marked_collectives(world.beat, world.spent, world.device):
        yield world
        dist.barrier()
    dist.destroy_process_group()
