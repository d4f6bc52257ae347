"""The guard of a launch: a small process that ends what a killed launching process leaves, and the scratch directory.

A process that is killed with SIGKILL ends nothing. Its guard reads a pipe whose other end it alone holds, so the end of
that file says that it is gone, however it went. The guard then lets the ranks save for `SAVE_S`, kills whatever carries
the mark of the launch, and removes the scratch directory. It is this very file, run as a program, and so needs the
standard library alone: it is there in some 30 ms, before anything that it guards.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARK = "SHOAL_SCRATCH"
"""The environment variable that all processes of a launch inherit. Its value is the scratch directory."""
SAVE_S = 3.0
"""How long ranks whose launcher was killed get to finish an iteration and a checkpoint [s]."""

_KILL_S = 10.0
"""How long the guard kills what starts again and again [s]."""
_PATIENCE_S = 5.0
"""How long the launching process waits for its guard to end [s]; it takes milliseconds."""
_POLL_S = 0.02
_PREFIX = "shoal-"
_OWNER = "owner"
"""A file of the scratch directory, locked as long as the launching process or its guard lives."""


@contextmanager
def reaped_scratch() -> Iterator[Path]:
    """Make the scratch directory of a launch, under guard; remove it at the end, and see the guard out."""
    sweep_abandoned(Path(tempfile.gettempdir()))
    scratch = Path(tempfile.mkdtemp(prefix=_PREFIX))
    owner = own_scratch(scratch)
    end_to_read, end_to_hold = os.pipe()
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(scratch)],
        stdin=end_to_read,
        stdout=subprocess.DEVNULL,  # It must not hold a pipe open that somebody reads to its end.
        stderr=subprocess.DEVNULL,
        cwd="/",
        pass_fds=(owner,),
        start_new_session=True,  # What the terminal sends is not for it.
    )
    os.close(end_to_read)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(end_to_hold)
        try:
            guard.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:  # A copy of this process holds the pipe, which somebody has forked.
            guard.kill()
            guard.wait()
        os.close(owner)


def sweep_abandoned(directory: Path) -> None:
    """Remove scratch directories of launches that were killed together with their guards."""
    for scratch in directory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # Somebody else's, or swept by another launch just now.
            if scratch.is_symlink() or scratch.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(scratch / _OWNER, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(scratch, ignore_errors=True)
            finally:
                os.close(descriptor)


def marked(scratch: Path) -> list[int]:
    """Return the living processes of the launch that uses `scratch`, wherever in the tree of processes they hang."""
    mark = f"{MARK}={scratch}".encode()
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has just ended, or is another user's. A zombie's is empty.
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def locked_by(file: Path) -> int | None:
    """Return the process id in `file` while its lock is held, else None."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).decode()
        return int(text) if text else None
    finally:
        os.close(descriptor)
    return None


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists, and may be sent one."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def own_scratch(scratch: Path) -> int:
    """Lock the owner's file, with its process id, in a new directory. Named once locked: a sweep sees no other."""
    nameless = scratch / f".{_OWNER}"
    descriptor = os.open(nameless, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, str(os.getpid()).encode())
    nameless.rename(scratch / _OWNER)
    return descriptor


def _guard(scratch: Path) -> None:
    """Wait until the launching process is gone, and end what it has left: nothing, when it has ended by itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # Schedulers send them to every process of a job.
    while os.read(0, 1):
        pass
    if not scratch.exists():
        return
    saved_by = time.monotonic() + SAVE_S
    asked: set[int] = set()
    while (ranks := _living_ranks(scratch)) and time.monotonic() < saved_by:
        signal_all(ranks - asked, signal.SIGTERM)
        asked |= ranks
        time.sleep(_POLL_S)
    killed_by = time.monotonic() + _KILL_S
    while (left := marked(scratch)) and time.monotonic() < killed_by:
        signal_all(left, signal.SIGKILL)
        time.sleep(_POLL_S)
    shutil.rmtree(scratch, ignore_errors=True)


def _living_ranks(scratch: Path) -> set[int]:
    return {pid for file in scratch.glob("rank_*.life") if (pid := locked_by(file)) is not None}


if __name__ == "__main__":
    _guard(Path(sys.argv[1]))
