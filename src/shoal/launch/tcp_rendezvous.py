"""The rendezvous of ranks on several nodes of `--hosts`: a `TCPStore` of rank 0, at one address and on a free port.

torch's own stores listen on every interface. The kernel chooses the port; the node agents and the launching process
forward it, and each node's ranks find it in a file of their scratch directory.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.files import write_whole
from shoal.plan.ranks import Rank

if TYPE_CHECKING:
    from torch.distributed import Store


_PORT_FILE = "rendezvous_port"
_POLL_S = 0.02


def read_rendezvous_port(scratch: Path) -> int | None:
    """Return the port of rank 0's store, or None as long as it is unknown."""
    file = scratch / _PORT_FILE
    return int(file.read_text(encoding="utf-8")) if file.exists() else None


def write_rendezvous_port(scratch: Path, port: int) -> None:
    """Make the port known to the ranks of this node."""
    write_whole(scratch / _PORT_FILE, str(port))


def open_tcp_rendezvous(scratch: Path, rank: Rank, address: str) -> Store:
    """Open the store on rank 0, which is at `address`, or connect to it."""
    from torch.distributed import TCPStore

    if rank.rank != 0:
        while (port := read_rendezvous_port(scratch)) is None:  # Rank 0 may compile its kernels for minutes.
            time.sleep(_POLL_S)
        return TCPStore(address, port, rank.world_size, is_master=False)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=rank.world_size + 16) as listener:
        port = listener.getsockname()[1]
        store = TCPStore(
            address, port, rank.world_size, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
    write_rendezvous_port(scratch, port)
    return store
