"""The reaper of a launch: a process that ends what a killed launching process leaves, and its scratch directory.

A process that is killed with SIGKILL ends nothing. Its reaper reads a pipe whose other end it alone holds, and sees the
end of that file however it ended. It then lets the ranks save, kills all processes with the mark of the launch, and
removes the scratch directory. It is this file, run as a program with the standard library alone: it starts in 30 ms.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "SHOAL_SCRATCH"
"""The environment variable that all processes of a launch inherit. Its value is the scratch directory."""
_POLL_S = 0.02
_PREFIX = "shoal-"
OWNER = ".shoal-owner"
"""A file of the scratch directory, locked while the launching process or its reaper runs."""


@contextmanager
def reaped_scratch() -> Iterator[Path]:
    """Make the scratch directory of a launch with a reaper; remove it at the end, and wait for the reaper."""
    from shoal.timing import EXIT_STATUS_S, REAPER_KILL_S, REAPER_SAVE_S

    sweep_abandoned(Path(tempfile.gettempdir()))
    scratch = Path(tempfile.mkdtemp(prefix=_PREFIX))
    owner = own_scratch(scratch)
    end_to_read, end_to_hold = os.pipe()
    reaper = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(scratch), str(REAPER_SAVE_S), str(REAPER_KILL_S)],
        stdin=end_to_read,
        stdout=subprocess.DEVNULL,  # It must not hold a pipe open that another process reads to its end.
        stderr=subprocess.DEVNULL,
        cwd="/",
        pass_fds=(owner,),
        start_new_session=True,  # It gets no signal of the terminal.
    )
    os.close(end_to_read)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(end_to_hold)
        with contextlib.suppress(subprocess.TimeoutExpired):  # A fork of this process holds the pipe.
            reaper.wait(EXIT_STATUS_S)
        reaper.kill()
        reaper.wait()
        os.close(owner)


def sweep_abandoned(directory: Path) -> None:
    """Remove scratch directories of launches that were killed together with their reapers."""
    for scratch in directory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # Another user's, or swept by another launch just now.
            if scratch.is_symlink() or scratch.stat().st_uid != os.getuid():
                continue
            with (scratch / OWNER).open("r+b") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(scratch, ignore_errors=True)


def marked(scratch: Path) -> list[int]:
    """Return the processes of the launch that uses `scratch`, wherever in the tree of processes they are."""
    mark = f"{MARK}={scratch}".encode()
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has just ended, or is another user's. A zombie's is empty.
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def life_file(scratch: Path, rank: int) -> Path:
    """Return the file with the process id of `rank`, which keeps it locked while it runs."""
    return scratch / f"rank_{rank:05d}.life"


def lock_with_pid(file: Path) -> int:
    """Lock a file that holds this process's id. The kernel releases the lock when the process ends, however it ends."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.truncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def locked_by(file: Path) -> int | None:
    """Return the process id in `file` while its lock is held, else None."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(opened.read() or 0) or None
    return None


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists and that permits it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def own_scratch(scratch: Path) -> int:
    """Lock a file with this process id in a new directory; it is renamed once locked, so a sweep sees it locked."""
    nameless = scratch / f"{OWNER}-{os.getpid()}"
    descriptor = lock_with_pid(nameless)
    nameless.rename(scratch / OWNER)
    return descriptor


def _reap(scratch: Path, save_s: float, kill_s: float) -> None:
    """Wait for the end of the launching process, and end what it has left: nothing after an orderly end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # Schedulers send them to every process of a job.
    while os.read(0, 1):
        pass
    if not scratch.exists():
        return
    saved_by = time.monotonic() + save_s
    signalled: set[int] = set()
    while (ranks := set(filter(None, map(locked_by, scratch.glob("rank_*.life"))))) and time.monotonic() < saved_by:
        signal_all(ranks - signalled, signal.SIGTERM)
        signalled |= ranks
        time.sleep(_POLL_S)
    killed_by = time.monotonic() + kill_s
    while (left := marked(scratch)) and time.monotonic() < killed_by:
        signal_all(left, signal.SIGKILL)
        time.sleep(_POLL_S)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    _reap(Path(sys.argv[1]), *map(float, sys.argv[2:]))
