"""Rendezvous of ranks on several nodes, or of another launcher: their store, their handshake, and their network.

Before anything is made, each joined rank publishes in the store what its node runs and was asked, or why it refuses. A
node with another version, another command or no GPU ends all ranks at once with the same message; a late rank is named.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.config.plain import to_plain
from shoal.config.train import NOT_REPEATED
from shoal.errors import ShoalError, UsageError, WorkerLostError, refusing_os_errors
from shoal.files import Folder
from shoal.launch.reaper import sweep_abandoned
from shoal.launch.signed_store import SECRET, SignedStore, find_directory, make_directory, make_secret, read_secret
from shoal.machine.network import answers, route_to, through
from shoal.plan.changes import flatten
from shoal.plan.environment_parity import Fingerprint, code_of, fingerprint, refuse_differences
from shoal.plan.launch import LaunchPlan
from shoal.plan.launchers import launcher_of
from shoal.plan.nodes import choose_backend
from shoal.plan.ranks import Rank, joined_rank
from shoal.plan.slurm import read_task
from shoal.timing import (
    ACKNOWLEDGE_S,
    FOREVER_S,
    POLL_S,
    REFUSAL_S,
    STATUS_ANSWER_S,
    STATUS_LINGER_S,
    STORE_ANSWER_S,
    wait_for,
)

if TYPE_CHECKING:
    from torch.distributed import Store


_CONNECT = timedelta(seconds=ACKNOWLEDGE_S)
_HANDSHAKE = "shoal/handshake"
_REMOTE = "shoal/remote_address"  # Of a node that does not hold the store.
_VERDICT = "shoal/verdict"
"""Key of rank 0's result of the handshake: each rank reads it alone, not what all others have published."""
_MAY_DIFFER = {"gpu_ids", "nproc_per_node", "log_root", "torchrunx_log_dir", *NOT_REPEATED}
"""Fields that each node may be asked in its own way."""
_OF_RANK_0 = ("resume", "teacher")
"""Flags whose configuration rank 0 alone reads."""
_PORT_FILE = "rendezvous_port"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one attempt find their store."""

    host: str
    port: int
    attempt: str
    """Differs from that of any other set of ranks with the same store."""
    secret_file: Path | None = None
    """Where rank 0, which holds the store, writes its secret; None if torchrun holds the store."""
    directory: Path | None = None  # Of a file that is the store of one node; None for a TCP store.

    @classmethod
    def of(cls, rank: Rank, log_root: str, environ: Mapping[str, str] = os.environ) -> Rendezvous:
        """Return the rendezvous that torchrun or srun provides. SLURM holds no store, so rank 0 does."""
        if launcher_of(environ) == "srun":
            task = read_task(environ)
            attempt = f"srun/{task.attempt}"
            name = attempt.replace("/", "-")
            one_node = rank.local_world_size == rank.world_size
            directory = Path(tempfile.gettempdir(), f"shoal-{name}") if one_node else None
            return cls(task.host, task.port, attempt, Path(log_root, f".secret-{name}"), directory)
        # A store of torchrun's agents outlives the workers, and counts restarts. One of the workers is new in each
        # attempt, and a node that came later has counted fewer restarts.
        outlives = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        count = environ.get("TORCHELASTIC_RESTART_COUNT", "0") if outlives else "new"
        return cls(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), f"{count}/{rank.world_size}")

    def open(self, rank: Rank, timeout: float) -> SignedStore:
        """Connect this process to the store, which may take `timeout` seconds to appear; 0 for no limit."""
        from torch.distributed import PrefixStore, rendezvous

        is_first, secret = rank.rank == 0, os.environ.get(SECRET) or None
        timeout = timeout or FOREVER_S
        if self.directory is not None:
            make_directory(self.directory) if is_first else find_directory(self.directory, timeout)
            store, secret = open_file_store(self.directory / "store", rank), None
        elif self.secret_file is not None:
            if is_first:
                secret = secret or make_secret(self.secret_file)
            store = self._serve() if is_first else self._find(timeout)
            secret = secret or read_secret(self.secret_file)
        else:
            store, _rank, _world_size = next(iter(rendezvous("env://", timeout=timedelta(seconds=timeout))))
        store.set_timeout(timedelta(seconds=STORE_ANSWER_S))
        return SignedStore(PrefixStore(f"shoal/{self.attempt}", store), secret)

    def close(self, rank: Rank) -> None:
        """Remove the directory: on rank 0 now, and on others once rank 0, which has locked it, has ended."""
        if self.directory is not None:
            if rank.rank == 0:
                shutil.rmtree(self.directory, ignore_errors=True)
            sweep_abandoned(self.directory.parent)

    def forget_secret(self, rank: Rank) -> None:
        """Remove the file with the secret, once all ranks have read it."""
        if rank.rank == 0 and self.secret_file is not None:
            with suppress(OSError):  # There is none where the environment has it.
                self.secret_file.unlink()

    def _serve(self) -> Store:
        """Open the store: on all interfaces, as torch does, or on loopback if all ranks are here."""
        from torch.distributed import TCPStore

        here = self.host.startswith("127.")
        both = socket.has_dualstack_ipv6() and not here
        address, family = (self.host if here else "", self.port), socket.AF_INET6 if both else socket.AF_INET
        failure = f"Port {self.port} on {self.host}, where the tasks of srun would meet, cannot be used"
        with refusing_os_errors(failure, "export another MASTER_PORT before srun"):
            listener = socket.create_server(address, family=family, backlog=1024, dualstack_ipv6=both)
        descriptor = listener.detach()
        return TCPStore(self.host, self.port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)

    def _find(self, timeout: float) -> Store:
        """Wait for rank 0, and connect to its store in a thread: at another program's port torch 2.15 never returns."""
        from torch.distributed import TCPStore

        if not wait_for(lambda: answers(self.host, self.port), timeout):
            raise WorkerLostError(
                f"Rank 0 does not answer on port {self.port} of {self.host}: see whether it was started, and "
                "whether a firewall is in between. Export MASTER_ADDR and MASTER_PORT before srun to meet "
                "elsewhere; --startup-timeout waits longer. Unset SLURM_STEP_ID if srun did not start this process."
            )
        found: list[Store | RuntimeError] = []

        def connect() -> None:
            try:
                found.append(TCPStore(self.host, self.port, is_master=False, timeout=_CONNECT))
            except RuntimeError as error:
                found.append(error)

        thread = threading.Thread(target=connect, name="rendezvous", daemon=True)
        thread.start()
        thread.join(ACKNOWLEDGE_S)
        store = found[0] if found else None
        if store is None or isinstance(store, RuntimeError):
            raise UsageError(
                f"What answers on port {self.port} of {self.host} is no store of rank 0's: export another MASTER_PORT "
                "before srun."
            ) from store
        return store

    def connect(self, secret: str | None) -> SignedStore:
        """Open one more connection to the store, for status: its requests fail soon without an answer."""
        from torch.distributed import PrefixStore, TCPStore

        store = TCPStore(self.host, self.port, is_master=False, timeout=timedelta(seconds=STATUS_ANSWER_S))
        return SignedStore(PrefixStore(f"shoal/status/{self.attempt}", store), secret)


def open_file_store(file: Path, rank: Rank) -> Store:
    """Open a store of the ranks of one machine, which is never destroyed.

    Its destructor writes into the file: where the directory is removed meanwhile, it waits for the file until the
    store's timeout, and then aborts the process.
    """
    from torch.distributed import FileStore

    store = FileStore(str(file), rank.world_size)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))
    return store


def acknowledge(store: SignedStore, rank: Rank, what: str, timeout: float = ACKNOWLEDGE_S) -> None:
    """Write that this rank has read `what`, which may end all. Rank 0, which may hold the store, waits for all."""
    ranks = range(rank.world_size) if rank.rank == 0 else [rank.rank]
    with suppress(RuntimeError):  # A rank that has ended needs to read no more.
        store.set(f"shoal/read/{what}/{rank.rank}", "")
        store.raw.wait(
            [f"shoal/read/{what}/{each}" for each in ranks], timedelta(seconds=timeout)
        )  # `set` awaits no answer.


def shake_hands(store: SignedStore, rank: Rank, plan: LaunchPlan) -> str | None:
    """Publish what this rank would do, compare with all ranks, and return the backend: `gloo` if one has no NCCL."""
    config = plan.config
    packages, files = code_of(plan.tasks)
    own = {
        "host": platform.node(),
        "backend": plan.backend,
        # A continued run has its configuration where rank 0 is, and so has a teacher its network.
        "config": None
        if any(getattr(config, name, None) is not None for name in _OF_RANK_0)
        else flatten(to_plain(config), left_out=_MAY_DIFFER),
        "code": asdict(fingerprint(platform.node(), packages, files)) if rank.local_rank == 0 else None,
    }
    store.set(f"{_HANDSHAKE}/{rank.rank}", json.dumps(own))
    if rank.rank == 0:
        store.set(_VERDICT, json.dumps(_compare(store, rank, config.startup_timeout)))
    _wait_for_ranks([_VERDICT], store, rank, config.startup_timeout)
    verdict = json.loads(store.get(_VERDICT))
    is_late = verdict.get("exit_code") == WorkerLostError.exit_code  # Ranks that have not arrived do not answer.
    acknowledge(store, rank, "handshake", STATUS_LINGER_S if is_late else ACKNOWLEDGE_S)
    _raise_from(verdict)
    return verdict["backend"]


def _compare(store: SignedStore, rank: Rank, timeout: float) -> dict[str, Any]:
    """Wait for all ranks and compare them; return the backend, or the error of all ranks."""
    keys = [f"{_HANDSHAKE}/{number}" for number in range(rank.world_size)]
    try:
        _wait_for_ranks(keys, store, rank, timeout)
        published = [json.loads(store.get(key)) for key in keys]
        for each in published:
            _raise_from(each)
        _refuse_other_commands(published)
        first, *others = [Fingerprint(**each["code"]) for each in published if each["code"]]
        refuse_differences(first, others)
    except (UsageError, WorkerLostError) as error:
        return _to_plain(error)
    return {"backend": choose_backend((each["backend"] == "nccl" for each in published), rank.world_size)}


def _wait_for_ranks(keys: list[str], store: SignedStore, rank: Rank, timeout: float) -> None:
    """Wait for keys that ranks write when they have arrived; name those that have not."""
    if not wait_for(lambda: store.raw.check(keys), timeout or math.inf):
        late = [str(number) for number in range(rank.world_size) if not store.raw.check([f"{_HANDSHAKE}/{number}"])]
        raise WorkerLostError(
            f"Rank {', '.join(late) or 0} of {rank.world_size} has not arrived within {timeout:.0f} s: see whether its "
            "machine is there and was started, and start all of them again. --startup-timeout waits longer."
        )


def _to_plain(error: UsageError | WorkerLostError) -> dict[str, Any]:
    return {"error": str(error), "details": error.details, "exit_code": error.exit_code}


def _raise_from(published: Mapping[str, Any]) -> None:
    """Raise what a rank has published, if it is an error."""
    if "error" in published:
        kind = WorkerLostError if published["exit_code"] == WorkerLostError.exit_code else UsageError
        raise kind(published["error"], details=published["details"])


def publish_refusal(log_root: str, error: UsageError) -> None:
    """Publish why this rank refuses, if it has peers on other nodes: they would wait for it."""
    rank = joined_rank()
    if rank is not None and rank.local_world_size < rank.world_size:
        refusal = UsageError(f"Rank {rank.rank} on {platform.node()} refuses: {error}", details=error.details)
        with suppress(ShoalError, RuntimeError):  # No other rank has come yet.
            rendezvous = Rendezvous.of(rank, log_root)
            store = rendezvous.open(rank, REFUSAL_S)
            store.set(f"{_HANDSHAKE}/{rank.rank}" if rank.rank else _VERDICT, json.dumps(_to_plain(refusal)))
            acknowledge(store, rank, "handshake")
            rendezvous.forget_secret(rank)


def _refuse_other_commands(published: Sequence[Mapping[str, Any]]) -> None:
    """Refuse ranks whose configuration is not rank 0's, with the name and both values of each difference."""
    first = published[0]["config"]
    for number, each in enumerate(published if first else ()):
        other = each["config"] or first
        names = [name for name in first | other if first.get(name) != other.get(name)]
        if names:
            details = "\n".join(f"{name}: {other.get(name)!r} there, {first.get(name)!r} on rank 0" for name in names)
            message = (
                f"Rank {number} on {each['host']} was asked something else than rank 0 on {published[0]['host']}, as "
                "listed above: type the same command on all machines."
            )
            raise UsageError(message, details=details)


def find_network(rendezvous: Rendezvous, store: SignedStore, rank: Rank, interface: str | None) -> dict[str, str]:
    """Return the variables by which gloo and NCCL reach the other nodes; none for one node.

    Ranks on other nodes than the store's take the interface that leads to the store. Those beside it, which may know it
    by a loopback address, take the one that leads to another node. `interface` is the user's choice.
    """
    if rank.local_world_size == rank.world_size:
        return {}
    if interface is not None:
        return through(interface)
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return {}  # The user's own choice.
    address = rendezvous.host
    route = route_to(address)
    if route is not None and not route.is_local:
        store.set(_REMOTE, route.source)
        return route.environment()
    if route is not None:
        address = store.get(_REMOTE).decode()
        route = route_to(address)
    if route is None:
        raise WorkerLostError(
            f"No network interface of this machine leads to {address}, where other workers are: pass --interface with "
            "the one that does, or mend the network."
        )
    return route.environment()


# Several nodes of --hosts: a TCP store of rank 0 on a free port, at one address, as torch's own listen on all. Node
# agents and the launching process forward the port, which each node's ranks find in a file of their scratch directory.


def read_rendezvous_port(scratch: Path) -> int | None:
    """Return the port of rank 0's store; None as long as it is unknown."""
    file = scratch / _PORT_FILE
    return int(file.read_text(encoding="utf-8")) if file.exists() else None


def write_rendezvous_port(scratch: Path, port: int) -> None:
    """Pass the port to the ranks of this node."""
    Folder(scratch).write(scratch / _PORT_FILE, str(port))


def open_tcp_rendezvous(scratch: Path, rank: Rank, address: str) -> Store:
    """Open the store on rank 0, which is at `address`, or connect to it."""
    from torch.distributed import TCPStore

    if rank.rank != 0:
        while (port := read_rendezvous_port(scratch)) is None:  # Rank 0 may compile its kernels for minutes.
            time.sleep(POLL_S)
        return TCPStore(address, port, rank.world_size, is_master=False)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=rank.world_size + 16)
    port, descriptor = listener.getsockname()[1], listener.detach()
    store = TCPStore(
        address, port, rank.world_size, is_master=True, wait_for_workers=False, master_listen_fd=descriptor
    )
    write_rendezvous_port(scratch, port)
    return store
