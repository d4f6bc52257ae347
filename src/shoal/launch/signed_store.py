"""Signed values in torch's store, which any program that reaches it can write, and the private files behind it.

The ranks of a SLURM step share a secret in a file, or a directory that only their user can enter.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import UsageError, WorkerLostError, refusing_os_errors
from shoal.launch.reaper import locked_by, own_scratch, sweep_abandoned
from shoal.timing import SHARED_DISK_S, wait_for

if TYPE_CHECKING:
    from torch.distributed import Store

SECRET = "SHOAL_SECRET"  # noqa: S105  The variable's name.
"""Environment variable with the secret that signs what ranks exchange, if it is set for all of them."""
_DIGITS = 64
_OWNER = "owner"


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


def make_secret(file: Path) -> str:
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


def read_secret(file: Path) -> str:
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
            f"disk that all machines share, or export {SECRET} before srun, as `openssl rand -hex 32` makes it."
        )
    return secret


def make_directory(directory: Path) -> None:
    """Make a directory that only this user can enter, and lock it as long as this process lives."""
    sweep_abandoned(directory.parent)
    failure = f"The directory {directory}, in which the tasks of srun would meet, cannot be made"
    with refusing_os_errors(failure, "export TMPDIR before srun, with a directory of yours on each machine"):
        directory.mkdir(mode=0o700)
    own_scratch(directory)


def find_directory(directory: Path, timeout: float) -> None:
    """Wait until rank 0 has made the directory and locked it; refuse one that others can enter."""

    def is_locked() -> bool:
        with suppress(FileNotFoundError):
            _refuse_not_private(directory, directory.lstat())
            return locked_by(directory / _OWNER) is not None
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
