"""The processes of a launch, as the launching process sees them: which ranks live, how they ended, what is left over.

Spawned ranks are no children of the launching process, which therefore cannot wait for them. Each keeps a file locked
while it lives; where the kernel offers them, process handles tell of an end at once.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from shoal.launch.reaper import locked_by, signal_all
from shoal.procfs import how_it_ended, stat

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shoal.plan.ranks import Rank


def life_file(scratch: Path, rank: int) -> Path:
    """Return the file that `rank` keeps locked while it lives; its process id is in it."""
    return scratch / f"rank_{rank:05d}.life"


def show_sign_of_life(scratch: Path, rank: Rank) -> None:
    """Lock this rank's file until this process ends, however it ends. The kernel gives the lock back."""
    descriptor = os.open(life_file(scratch, rank.rank), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.truncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())


class RankWatch:
    """What the launching process knows of the processes of its ranks."""

    def __init__(self, scratch: Path, ranks: Iterable[int]) -> None:
        """Watch `ranks`, none of which need have started."""
        self._files = {rank: life_file(scratch, rank) for rank in ranks}
        self._handles: dict[int, int] = {}
        self.alive: dict[int, int] = {}
        """Process id of each rank that lives, by rank."""
        self.ended: dict[int, str] = {}
        """How each rank ended that was alive before, in the order of their ends; empty where nobody can tell."""

    @property
    def unseen(self) -> list[int]:
        """Ranks that have shown no sign of life yet."""
        return [rank for rank in self._files if rank not in self.alive and rank not in self.ended]

    def look(self) -> None:
        """Notice who has come to life and who has ended."""
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
        """Return after so long, or as soon as a rank ends."""
        if not self._handles:
            time.sleep(seconds)
            return
        poll = select.poll()
        for handle in self._handles.values():
            poll.register(handle, select.POLLIN)
        poll.poll(seconds * 1000)

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to every rank that lives, through its handle: its number may have been given to another."""
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
    """Say how a process ended that its parent has not taken notice of yet, or nothing when it is too late to know."""
    fields = stat(pid)
    if not fields or fields[0] != "Z":
        return ""
    return how_it_ended(os.waitstatus_to_exitcode(int(fields[-1])))
