"""A child that is one rank of a trial: it joins the others as a training's ranks do, and times all_reduce with them.

It tells its parent each step that it begins, so that of ranks that hang the one that lags behind is known.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from shoal.doctor.children import begin
from shoal.doctor.steps import DONE, JOINING, LEAVING, READY, grouping, reducing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.distributed import ProcessGroup


def take_part(asked: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None]) -> None:
    """Join the other ranks, and time all_reduce of every asked size among the first so many of them."""
    import torch
    import torch.distributed as dist

    from shoal.learn.collective_latency import timed_all_reduce
    from shoal.learn.groups import World, process_group

    rank, device, backend = asked["rank"], asked["device"], asked["backend"]
    torch.set_num_threads(1)
    if device != "cpu":
        torch.cuda.set_device(device)
    answer({"step": READY})
    if not sys.stdin.readline():
        return  # The parent is gone.
    ranks = asked["world_size"]
    # As in a training on one machine, which meets on loopback.
    world = World(rank=rank, local_rank=rank, size=ranks, device=device, local_size=ranks)
    store = partial(dist.FileStore, asked["store"], world.size)
    answer({"step": JOINING})
    with process_group(world, backend=backend, store=store):
        for size in asked["sizes"]:
            answer({"step": grouping(size)})
            group = dist.new_group(range(size), backend=backend)
            if rank >= size:
                continue  # Then it got no group.
            for elements in asked["elements"]:
                answer({"step": reducing(elements, size)})
                values = torch.ones(elements, device=device)
                seconds, right = timed_all_reduce(values, size, cast("ProcessGroup", group))
                if rank == 0:
                    answer({"size": size, "elements": elements, "seconds": seconds, "right": right})
        answer({"step": LEAVING})
    answer({"step": DONE})


if __name__ == "__main__":
    take_part(*begin())
