"""Where the ranks of several machines find each other: a store that rank 0 opens, at one address and on a free port.

torch's own way listens on every interface. The port is the kernel's choice; the wardens and the launching process carry
it to the other machines, each of which finds it in a file of its scratch directory.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from shoal.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed import Store

    from shoal.plan.ranks import Rank

_FILE = "meeting"
_POLL_S = 0.02


def meeting_port(scratch: Path) -> int | None:
    """Return the port at which the ranks meet, once it is known."""
    file = scratch / _FILE
    return int(file.read_text(encoding="utf-8")) if file.exists() else None


def write_meeting_port(scratch: Path, port: int) -> None:
    """Let the ranks of this machine know the port."""
    write_whole(scratch / _FILE, str(port))


def open_meeting(scratch: Path, rank: Rank, address: str) -> Store:
    """Open the store, on rank 0, or connect to it.

    Args:
        scratch: The launch's directory on this machine.
        rank: This process's place.
        address: Rank 0's machine's.
    """
    from torch.distributed import TCPStore

    if rank.rank == 0:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family, backlog=rank.world_size + 16) as listener:
            port = listener.getsockname()[1]
            store = TCPStore(
                address,
                port,
                rank.world_size,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        write_meeting_port(scratch, port)
        return store
    while (port := meeting_port(scratch)) is None:  # Rank 0 may compile its kernels for minutes. Others keep watch.
        time.sleep(_POLL_S)
    return TCPStore(address, port, rank.world_size, is_master=False)
