"""How ranks that other programs have started meet: the store they share, and the network that leads to each other."""

from __future__ import annotations

import os
import queue
import socket
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shoal.errors import UsageError, WorkerLostError
from shoal.launch.signed_store import (
    SECRET,
    SignedStore,
    join_directory,
    leave_directory,
    make_secret,
    read_secret,
)
from shoal.machine.network import answers, route_to, through
from shoal.plan.launchers import launcher_of
from shoal.plan.srun import read_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed import Store

    from shoal.plan.ranks import Rank

_ANSWER = timedelta(seconds=2)
"""How long a question may take on a connection that is for watching."""
_HEARING = timedelta(seconds=10)
"""How long rank 0, whose store ends with it, stays for the others to hear why, and may take to answer with it."""
_LONG = timedelta(minutes=30)
"""How long a question may take on the connection over which a training goes, where nobody says otherwise: torch's own
choice."""
_FOREVER_S = 7 * 24 * 3600
_POLL_S = 0.1
_QUEUE = 1024
_HEARD = "shoal/heard"
_FAR = "shoal/far_address"
"""An address of a machine that is not the one with the store."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one attempt meet."""

    host: str
    port: int
    attempt: str
    """Unlike that of any other set of ranks which has met here."""
    keeper: Literal["torchrun", "rank 0"] = "torchrun"
    """Who has the store."""
    log_root: str = ""
    """Where rank 0 leaves the secret of its store."""
    directory: Path | None = None
    """Where a file is the store, on one machine: it has no port."""

    @classmethod
    def of(cls, rank: Rank, log_root: str, environ: Mapping[str, str] = os.environ) -> Rendezvous:
        """Return where the ranks of whatever has started this process meet."""
        return cls.of_srun(log_root, environ) if launcher_of(environ) == "srun" else cls.of_torchrun(rank)

    @classmethod
    def of_srun(cls, log_root: str, environ: Mapping[str, str]) -> Rendezvous:
        """Return where the tasks of a step meet. SLURM keeps no store for them, so rank 0 does."""
        task = read_task(environ)
        attempt = f"srun/{task.attempt}"
        alone = task.rank.local_world_size == task.rank.world_size
        directory = Path(tempfile.gettempdir(), f"shoal-{attempt.replace('/', '-')}") if alone else None
        return cls(task.host, task.port, attempt, "rank 0", log_root, directory)

    @classmethod
    def of_torchrun(cls, rank: Rank) -> Rendezvous:
        """Return where torchrun has told its workers to meet. Its store outlives them when it starts them again.

        Where the workers keep a store of their own it is new each time, and a machine that has come later has counted
        fewer restarts than the others.
        """
        outlives = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if outlives else "new"
        return cls(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), f"{count}/{rank.world_size}")

    def open(self, rank: Rank, patience: float) -> SignedStore:
        """Connect this process to the store in which the ranks meet.

        Args:
            rank: This process's place.
            patience: How long the store may take to come [s]; 0 for ever.

        Raises:
            UsageError: Something else has the port, or the ranks share no secret.
            WorkerLostError: Rank 0 does not come.
        """
        from torch.distributed import FileStore, PrefixStore, rendezvous

        is_first, secret = rank.rank == 0, os.environ.get(SECRET) or None
        if self.directory is not None:
            join_directory(self.directory, make=is_first, patience=patience or _FOREVER_S)
            store, secret = FileStore(str(self.directory / "store"), rank.world_size), None
            store.set_timeout(_LONG)
        elif self.keeper == "rank 0":
            if is_first:
                secret = secret or make_secret(self._secret_file)
            store = self._keep() if is_first else self._find(patience)
            secret = secret or read_secret(self._secret_file)
        else:
            wait = timedelta(seconds=patience or _FOREVER_S)
            store, _rank, _world_size = next(iter(rendezvous("env://", timeout=wait)))
            store.set_timeout(_LONG)
        return SignedStore(PrefixStore(f"shoal/{self.attempt}", store), secret)

    def close(self, rank: Rank) -> None:
        """Remove what the ranks have met by, once this one needs it no more."""
        if self.directory is not None:
            leave_directory(self.directory, made=rank.rank == 0)

    def forget_secret(self, rank: Rank) -> None:
        """Remove the file with the secret, once all have read it."""
        if rank.rank == 0 and self.keeper == "rank 0":
            with suppress(OSError):  # As where the environment has it.
                self._secret_file.unlink()

    @property
    def _secret_file(self) -> Path:
        return Path(self.log_root, f".secret-{self.attempt.replace('/', '-')}")

    def _keep(self) -> Store:
        from torch.distributed import TCPStore

        try:
            listener = self._listener()
        except OSError as error:
            message = (
                f"Port {self.port} on {self.host}, where the tasks of srun would meet, cannot be used "
                f"({error.strerror or error}): export another MASTER_PORT before srun."
            )
            raise UsageError(message) from error
        return TCPStore(
            self.host,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=_LONG,
            master_listen_fd=listener.detach(),
        )

    def _listener(self) -> socket.socket:
        """Listen for all others: on every interface as torch does, or on loopback where they are all here."""
        if self.host.startswith("127."):
            return socket.create_server((self.host, self.port), backlog=_QUEUE)
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", self.port), family=family, backlog=_QUEUE, dualstack_ipv6=both)

    def _find(self, patience: float) -> Store:
        """Wait for rank 0, and open its store, in a thread: where something else has the port torch 2.15 never ends."""
        from torch.distributed import TCPStore

        wait_s = patience or _FOREVER_S
        begun = time.monotonic()
        while not answers(self.host, self.port):
            if time.monotonic() - begun > wait_s:
                message = (
                    f"Rank 0 does not answer on port {self.port} of {self.host}: see whether it was started, and "
                    "whether a firewall is in between. Export MASTER_ADDR and MASTER_PORT before srun to meet "
                    "elsewhere; --startup-timeout waits longer. Unset SLURM_STEP_ID if srun did not start this process."
                )
                raise WorkerLostError(message)
            time.sleep(_POLL_S)
        found: queue.SimpleQueue[Store | Exception] = queue.SimpleQueue()

        def find() -> None:
            try:
                found.put(TCPStore(self.host, self.port, is_master=False, timeout=_HEARING))
            except RuntimeError as error:
                found.put(error)

        threading.Thread(target=find, name="meeting", daemon=True).start()
        try:
            store = found.get(timeout=_HEARING.total_seconds())
        except queue.Empty as error:
            store = error
        if isinstance(store, Exception):
            message = (
                f"What answers on port {self.port} of {self.host} is no store of rank 0's: export another MASTER_PORT "
                "before srun."
            )
            raise UsageError(message) from store
        store.set_timeout(_LONG)
        return store

    def connect(self, secret: str | None) -> SignedStore:
        """Open one more connection, on which whoever watches waits for no answer for long."""
        from torch.distributed import PrefixStore, TCPStore

        store = TCPStore(self.host, self.port, is_master=False, timeout=_ANSWER)
        return SignedStore(PrefixStore(f"shoal/watch/{self.attempt}", store), secret)


def acknowledge(store: SignedStore, rank: Rank, what: str) -> None:
    """Tell that this rank has heard what may end all; rank 0, which may keep the store, waits for the others."""
    with suppress(RuntimeError):  # Whoever is gone needs to hear no more.
        store.set(f"{_HEARD}/{what}/{rank.rank}", "")
        if rank.rank == 0:
            store.wait([f"{_HEARD}/{what}/{each}" for each in range(rank.world_size)], _HEARING)


def find_network(meeting: Rendezvous, store: SignedStore, rank: Rank, interface: str | None) -> dict[str, str]:
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
        return through(interface)
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
