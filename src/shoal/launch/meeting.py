"""How ranks that other programs have started meet: the store they share, and the network that leads to each other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from shoal.errors import WorkerLostError
from shoal.plan.network import refuse_unknown_interface, route_to

if TYPE_CHECKING:
    from torch.distributed import Store

    from shoal.plan.ranks import Rank

_ANSWER = timedelta(seconds=2)
"""How long a question may take on a connection that is for watching."""
_FAR = "shoal/far_address"
"""An address of a machine that is not the one with the store."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks of one attempt meet."""

    host: str
    port: int
    attempt: str
    """Unlike that of any other set of ranks which has met here."""

    @classmethod
    def of_torchrun(cls, rank: Rank) -> Meeting:
        """Return where torchrun has told its workers to meet. Its store outlives them when it starts them again.

        Where the workers keep a store of their own it is new each time, and a machine that has come later has counted
        fewer restarts than the others.
        """
        outlives = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if outlives else "new"
        return cls(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), f"{count}/{rank.world_size}")

    def open(self) -> Store:
        """Connect this process to the store that torchrun keeps for its workers."""
        from torch.distributed import PrefixStore, rendezvous

        store, _rank, _world_size = next(iter(rendezvous("env://")))
        return PrefixStore(f"shoal/{self.attempt}", store)

    def connect(self) -> Store:
        """Open one more connection, on which whoever watches waits for no answer for long."""
        from torch.distributed import PrefixStore, TCPStore

        return PrefixStore(
            f"shoal/watch/{self.attempt}", TCPStore(self.host, self.port, is_master=False, timeout=_ANSWER)
        )


def find_network(meeting: Meeting, store: Store, rank: Rank, interface: str | None) -> dict[str, str]:
    """Return the variables that let gloo and NCCL find the other machines; none where there is one machine.

    Ranks on other machines than the store's take the way that leads there. Those beside it, to whom its address may be
    that of the loopback interface, take the way to one of the others.

    Args:
        meeting: Where the ranks have met.
        store: Through which they talk.
        rank: This process's place.
        interface: What `--interface` asks for.

    Raises:
        UsageError: There is no such interface.
        WorkerLostError: No way leads to the other machines.
    """
    if rank.local_world_size == rank.world_size:
        return {}
    if interface is not None:
        refuse_unknown_interface(interface)
        return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return {}  # The user's own choice.
    route = route_to(meeting.host)
    if route is None:
        raise _no_way(meeting.host)
    if not route.is_local:
        store.set(_FAR, route.source)
        return route.environment()
    far = store.get(_FAR).decode()
    route = route_to(far)
    if route is None:
        raise _no_way(far)
    return route.environment()


def _no_way(address: str) -> WorkerLostError:
    message = (
        f"No network interface of this machine leads to {address}, where other workers are: pass --interface with the "
        "one that does, or mend the network."
    )
    return WorkerLostError(message)
