"""One of two ranks that sum a number again and again over gloo, and say what comes of it.

Its words are the rank, the address of rank 0, how long a collective may take [s], and how often to sum.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

_PORT = 29500


def way_to_the_peer() -> str:
    """Return this rank's address of the connection to its peer."""
    established = (each for each in psutil.Process().connections("inet") if each.status == psutil.CONN_ESTABLISHED)
    (own,) = {each.laddr[0] for each in established if _PORT not in {each.laddr[1], each.raddr[1]}}
    return own


def main(rank: int, address: str, timeout_s: float, times: int) -> None:
    """Sum."""
    patience = timedelta(seconds=timeout_s)
    store = dist.TCPStore(address, _PORT, 2, is_master=rank == 0, timeout=timedelta(seconds=60))
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=patience)
        number = torch.ones(1)
        dist.all_reduce(number)
        print("sum", number.item(), "over", way_to_the_peer(), flush=True)  # noqa: T201
        dist.barrier()  # No rank closes the connection before the other has looked at it.
        for _ in range(times):
            dist.all_reduce(number)
    except RuntimeError as error:
        print("failed:", error, flush=True)  # noqa: T201
        os._exit(1)  # Closing would wait for the peer.
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
