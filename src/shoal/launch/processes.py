"""The processes of a node's ranks: which of them run, and how the others ended.

Spawned ranks are no children of the launching process, which therefore cannot wait for them. Each keeps a file locked
while it runs; where the kernel offers process handles, they report the end at once.
"""

import fcntl
import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from shoal.launch.reaper import locked_by, signal_all
from shoal.plan.ranks import Rank
from shoal.procfs import how_it_ended, stat


def life_file(scratch: Path, rank: int) -> Path:
    """Return the file with the process id of `rank`, which keeps it locked while it runs."""
    return scratch / f"rank_{rank:05d}.life"


def show_sign_of_life(scratch: Path, rank: Rank) -> None:
    """Lock this rank's file. The kernel releases the lock when this process ends, however it ends."""
    descriptor = os.open(life_file(scratch, rank.rank), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.truncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())


class RankWatch:
    """The processes of some ranks."""

    def __init__(self, scratch: Path, ranks: Iterable[int]) -> None:
        """Watch `ranks`, which need not have started."""
        self._files = {rank: life_file(scratch, rank) for rank in ranks}
        self._handles: dict[int, int] = {}
        self.alive: dict[int, int] = {}
        """Process id of each rank that runs, by rank."""
        self.ended: dict[int, str] = {}
        """How each rank ended that ran before, in the order of their ends; empty where that is unknown."""

    @property
    def unseen(self) -> list[int]:
        """Ranks that have shown no sign of life yet."""
        return [rank for rank in self._files if rank not in self.alive and rank not in self.ended]

    def look(self) -> None:
        """Update `alive` and `ended`."""
        for rank in self.unseen:
            pid = locked_by(self._files[rank])
            if pid is not None:
                self.alive[rank] = pid
                self._open_handle(rank, pid)
        for rank in [rank for rank in self.alive if self._has_ended(rank)]:
            self.ended[rank] = _last_state(self.alive.pop(rank))
            if rank in self._handles:
                os.close(self._handles.pop(rank))

    def wait(self, seconds: float) -> None:
        """Return after this time, or as soon as a rank ends."""
        if not self._handles:
            time.sleep(seconds)
            return
        poll = select.poll()
        for handle in self._handles.values():
            poll.register(handle, select.POLLIN)
        poll.poll(seconds * 1000)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that runs, by its handle: the kernel may reuse its process id."""
        for handle in self._handles.values():
            with suppress(OSError):
                signal.pidfd_send_signal(handle, number)
        signal_all((pid for rank, pid in self.alive.items() if rank not in self._handles), number)

    def close(self) -> None:
        """Release the handles."""
        while self._handles:
            os.close(self._handles.popitem()[1])

    def _open_handle(self, rank: int, pid: int) -> None:
        try:
            self._handles[rank] = os.pidfd_open(pid)
        except (AttributeError, OSError):  # no such call on this system, or the process has just ended
            return

    def _has_ended(self, rank: int) -> bool:
        handle = self._handles.get(rank)
        if handle is None:
            return locked_by(self._files[rank]) is None
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(0))


def _last_state(pid: int) -> str:
    """Return how a process ended that its parent has not waited for yet, else an empty string."""
    fields = stat(pid)
    if not fields or fields[0] != "Z":
        return ""
    return how_it_ended(os.waitstatus_to_exitcode(int(fields[-1])))
