"""The process group that ranks talk through, and the few collectives that Shoal itself asks of it.

Opened after the environment has captured its graphs, because NCCL's watchdog thread can break a capture.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

TIMEOUT = timedelta(minutes=10)
"""How long a collective may take; torchrunx's own default. A worker that fails dies, so its peers learn at once."""


@dataclass(frozen=True, slots=True)
class World:
    """This rank's place among all ranks, and how to reach them. One rank alone needs no process group."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    device: str = "cpu"

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the one that writes."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there are other ranks."""
        return self.size > 1

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


@contextmanager
def process_group(world: World, *, backend: str | None, store: Callable[[], dist.Store] | None) -> Iterator[World]:
    """Open the process group of `world`, and close it when the body succeeded.

    After a failure nothing is closed: closing can wait for peers that are gone, and a failing worker is about to
    leave its process anyway.

    Args:
        world: This rank's place.
        backend: `nccl` or `gloo`; None for a world of one.
        store: Opens the store through which the ranks find each other.
    """
    if backend is None or store is None:
        yield world
        return
    logger.debug("Opening the %s process group.", backend)
    dist.init_process_group(
        backend=backend,
        store=store(),
        world_size=world.size,
        rank=world.rank,
        timeout=TIMEOUT,
        device_id=torch.device(world.device) if backend == "nccl" else None,
    )
    yield world
    dist.barrier()
    dist.destroy_process_group()
