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
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
            pid = _locked_by(self._files[rank])
            if pid is not None:
                self.alive[rank] = pid
                self._open_handle(rank, pid)
        for rank in [rank for rank in self.alive if self._has_ended(rank)]:
            self.ended[rank] = _how_it_ended(self.alive.pop(rank))
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
        """Send a signal to every rank that lives."""
        signal_all(self.alive.values(), number)

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
            return _locked_by(self._files[rank]) is None
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(0))


def _locked_by(file: Path) -> int | None:
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


def _how_it_ended(pid: int) -> str:
    """Say how a process ended that its parent has not taken notice of yet, or nothing when it is too late to know."""
    fields = _stat(pid)
    if not fields or fields[0] != "Z":
        return ""
    code = os.waitstatus_to_exitcode(int(fields[-1]))
    return f"killed by {_signal_name(-code)}" if code < 0 else f"it left with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def descendants(pid: int) -> list[int]:
    """Return the process ids of all living children of `pid`, and of theirs."""
    living: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = [int(each) for each in children.read_text().split()]
        except OSError:  # That thread has just ended.
            continue
        living += [child for child in pids if _stat(child)[:1] not in ([], ["Z"])]
        living += [each for child in pids for each in descendants(child)]
    return living


def _stat(pid: int) -> list[str]:
    """Return what the kernel tells of a process, from its state on; empty when there is none of that number."""
    try:
        # The state follows the name, which is in parentheses and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
