"""Rendezvous of the ranks of several processes: torch's store, its signed values, and the private files behind it.

Any program that reaches a store can write into it. The ranks of a SLURM step therefore share a secret in a file, or a
directory that only their user can enter.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import UsageError, WorkerLostError, refusing_os_errors
from shoal.files import Folder
from shoal.launch.reaper import OWNER, locked_by, own_scratch, sweep_abandoned
from shoal.machine.network import answers
from shoal.plan.ranks import Rank, launcher_of, read_task
from shoal.timing import (
    ACKNOWLEDGE_S,
    FOREVER_S,
    POLL_S,
    SHARED_DISK_S,
    STATUS_ANSWER_S,
    STORE_ANSWER_S,
    in_background,
    wait_for,
)

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

SECRET = "SHOAL_SECRET"  # noqa: S105  The variable's name.
"""Environment variable with the secret that signs what ranks exchange, if it is set for all of them."""
_CONNECT = timedelta(seconds=ACKNOWLEDGE_S)
_DIGITS = 64
_PORT_FILE = "rendezvous_port"


@dataclass(frozen=True, slots=True)
class SignedStore:
    """A store whose values begin with their HMAC: only processes that know the secret can write them."""

    raw: Store
    """The store itself: for torch's process group, counters, and waiting for keys, signed or not."""
    secret: str | None
    """None, for values without HMAC, where no other program can write into the store or ranks share no secret."""

    def set(self, key: str, value: str) -> None:
        """Sign a value and write it."""
        self.raw.set(key, value if self.secret is None else self._sign(self.secret, key, value) + value)

    def get(self, key: str) -> bytes:
        """Wait for a value and return it; refuse one that is not signed with this secret."""
        return self._verified(key, self.raw.get(key))

    def get_all(self, keys: Sequence[str]) -> list[bytes]:
        """Return several values with one request."""
        return [self._verified(*each) for each in zip(keys, self.raw.multi_get(list(keys)), strict=True)]

    def _verified(self, key: str, value: bytes) -> bytes:
        if self.secret is None:
            return value
        signature, text = value[:_DIGITS], value[_DIGITS:]
        if not hmac.compare_digest(signature, self._sign(self.secret, key, text.decode(errors="replace")).encode()):
            raise UsageError(
                f"The store of the ranks holds a '{key}' that none of them has signed: another program writes into it, "
                f"or their {SECRET} differs. Start all of them again, with another MASTER_PORT."
            )
        return text

    @staticmethod
    def _sign(secret: str, key: str, value: str) -> str:
        return hmac.new(secret.encode(), f"{key}\0{value}".encode(), hashlib.sha256).hexdigest()


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
            _make_directory(self.directory) if is_first else _find_directory(self.directory, timeout)
            store, secret = open_file_store(self.directory / "store", rank), None
        elif self.secret_file is not None:
            if is_first:
                secret = secret or _make_secret(self.secret_file)
            store = self._serve() if is_first else self._find(timeout)
            secret = secret or _read_secret(self.secret_file)
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
        here = self.host.startswith("127.")
        both = socket.has_dualstack_ipv6() and not here
        address, family = (self.host if here else "", self.port), socket.AF_INET6 if both else socket.AF_INET
        failure = f"Port {self.port} on {self.host}, where the tasks of srun would meet, cannot be used"
        with refusing_os_errors(failure, "export another MASTER_PORT before srun"):
            listener = socket.create_server(address, family=family, backlog=1024, dualstack_ipv6=both)
        return _serve_store(self.host, listener)

    def _find(self, timeout: float) -> Store:
        """Wait for rank 0, and connect to its store in a thread: at another program's port torch 2.15 never returns."""
        from torch.distributed import TCPStore

        if not wait_for(lambda: answers(self.host, self.port), timeout):
            raise WorkerLostError(
                f"Rank 0 does not answer on port {self.port} of {self.host}: see whether it was started, and "
                "whether a firewall is in between. Export MASTER_ADDR and MASTER_PORT before srun to meet "
                "elsewhere; --startup-timeout waits longer. Unset SLURM_STEP_ID if srun did not start this process."
            )
        connect = partial(TCPStore, self.host, self.port, is_master=False, timeout=_CONNECT)
        try:
            return in_background(connect, "rendezvous").result(ACKNOWLEDGE_S)
        except (RuntimeError, TimeoutError) as error:
            raise UsageError(
                f"What answers on port {self.port} of {self.host} is no store of rank 0's: export another MASTER_PORT "
                "before srun."
            ) from error

    def connect(self, secret: str | None) -> SignedStore:
        """Open one more connection to the store, for status: its requests fail soon without an answer."""
        from torch.distributed import PrefixStore, TCPStore

        store = TCPStore(self.host, self.port, is_master=False, timeout=timedelta(seconds=STATUS_ANSWER_S))
        return SignedStore(PrefixStore(f"shoal/status/{self.attempt}", store), secret)


def _make_secret(file: Path) -> str:
    """Write a new secret into a file that only this user can read."""
    secret = os.urandom(_DIGITS // 2).hex()
    remedy = f"pass a --log-root that you can write to, or export {SECRET} before srun"
    with refusing_os_errors(f"The secret of this step cannot be written to {file}", remedy):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # A killed task left it.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(secret)
    return secret


def _read_secret(file: Path) -> str:
    """Return the secret that rank 0 writes, on a disk that the nodes share; refuse one that others could write."""

    def read() -> str:
        with suppress(OSError):
            list(file.parent.iterdir())  # Refreshes the cache of a network file system.
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(descriptor, encoding="ascii") as opened:
                _refuse_not_private(file, os.fstat(descriptor))
                return opened.read()
        return ""

    secret = wait_for(read, SHARED_DISK_S)
    if not secret:
        raise UsageError(
            f"Rank 0 answers, but {file}, with the secret of this step, is not to be seen here: pass a --log-root on a "
            f"disk that all nodes share, or export {SECRET} before srun, as `openssl rand -hex 32` makes it."
        )
    return secret


def _make_directory(directory: Path) -> None:
    """Make a directory that only this user can enter, and lock it as long as this process lives."""
    sweep_abandoned(directory.parent)
    failure = f"The directory {directory}, in which the tasks of srun would meet, cannot be made"
    with refusing_os_errors(failure, "export TMPDIR before srun, with a directory of yours on each node"):
        directory.mkdir(mode=0o700)
    own_scratch(directory)


def _find_directory(directory: Path, timeout: float) -> None:
    """Wait until rank 0 has made the directory and locked it; refuse one that others can enter."""

    def is_locked() -> bool:
        with suppress(FileNotFoundError):
            _refuse_not_private(directory, directory.lstat())
            return locked_by(directory / OWNER) is not None
        return False

    if not wait_for(is_locked, timeout):
        raise WorkerLostError(
            f"Rank 0 has not made {directory} within {timeout:.0f} s, where the tasks of srun meet: see whether it was "
            "started, and whether all tasks have the same TMPDIR. --startup-timeout waits longer."
        )


def _refuse_not_private(path: Path, status: os.stat_result) -> None:
    """Refuse what another user owns or can write: it may be an attack."""
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UsageError(
            f"{path}, by which the tasks of srun would meet, is a link, or another user owns it or can enter it: "
            f"remove it; or export TMPDIR, on one machine, or {SECRET}, on several, before srun."
        )


def open_file_store(file: Path, rank: Rank) -> Store:
    """Open a store of the ranks of one machine, which is never destroyed.

    Its destructor writes into the file: where the directory is removed meanwhile, it waits for the file until the
    store's timeout, and then aborts the process.
    """
    from torch.distributed import FileStore

    store = FileStore(str(file), rank.world_size)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))
    return store


def _serve_store(host: str, listener: socket.socket) -> TCPStore:
    """Open a store that other processes reach at `host`, and that waits for none of them."""
    from torch.distributed import TCPStore

    port, descriptor = listener.getsockname()[1], listener.detach()
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)


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
    store = _serve_store(address, listener)
    write_rendezvous_port(scratch, store.port)
    return store
