"""The processes of a node's ranks: which of them run, how the others ended, and whether memory ran out.

Spawned ranks are no children of the launching process, which therefore cannot wait for them. Each keeps a file locked
while it runs; where the kernel offers process handles, they report the end at once.
"""

import os
import select
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from shoal.launch.reaper import locked_by, signal_all
from shoal.machine.cgroups import control_groups, read_text
from shoal.procfs import how_it_ended, stat

_MACHINE = Path("/proc/vmstat")
_OF_GROUP = ("memory.events", "memory.oom_control")  # Of version 2 and 1.
_LIMITS = ("memory.max", "memory.limit_in_bytes")


def life_file(scratch: Path, rank: int) -> Path:
    """Return the file with the process id of `rank`, which keeps it locked while it runs."""
    return scratch / f"rank_{rank:05d}.life"


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
                with suppress(AttributeError, OSError):  # No such call on this system, or the process has just ended.
                    self._handles[rank] = os.pidfd_open(pid)
        ready = self.wait(0)
        for rank in tuple(self.alive):
            handle = self._handles.get(rank)
            if handle in ready or (handle is None and locked_by(self._files[rank]) is None):
                self.ended[rank] = _last_state(self.alive.pop(rank))
                if handle is not None:
                    os.close(self._handles.pop(rank))

    def wait(self, seconds: float) -> set[int]:
        """Return after this time, or as soon as a rank ends, the handles of ranks that have ended."""
        poll = select.poll()
        for handle in self._handles.values():
            poll.register(handle, select.POLLIN)
        return {handle for handle, _ in poll.poll(seconds * 1000)}

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


def _last_state(pid: int) -> str:
    """Return how a process ended that its parent has not waited for yet, else an empty string."""
    fields = stat(pid)
    return how_it_ended(os.waitstatus_to_exitcode(int(fields[-1]))) if fields[:1] == ["Z"] else ""


def count_oom_kills() -> dict[Path, int]:
    """Return the number of kills so far in each of the kernel's files that count them, by a line `oom_kill N`."""
    files = [*(group / name for group in control_groups("memory") for name in _OF_GROUP), _MACHINE]
    return {file: count for file in files if (count := _kills(file)) is not None}


def oom_verdict(before: Mapping[Path, int]) -> str:
    """Return whether the kernel has killed for want of memory since, in parentheses and with a leading space."""
    starved = next((file for file, count in before.items() if (_kills(file) or 0) > count), None)
    if starved is None and _MACHINE in before:
        return " (not by the kernel for want of memory: it counts those)"
    if starved is None:
        return " (the kernel does that when memory runs out)"
    if starved == _MACHINE:
        return " (the kernel did that to some process of this machine: memory ran out)"
    sizes = [int(size) for name in _LIMITS if (size := read_text(starved.parent / name)).isdigit()]
    limit = f" of {sizes[0] / 2**20:,.0f} MiB" if sizes else ""
    return f" (the kernel did that: the memory limit of its control group{limit} was reached)"


def _kills(file: Path) -> int | None:
    lines = read_text(file).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
