"""The heartbeat of a rank: its phase, iteration and latest progress, in a small file that other processes read.

The training thread writes each phase as it enters it, the watchdog's thread (`shoal.launch.rank`) that the process
still runs. The file is written with `pwrite`, not mapped: a full disk would end a process that maps it.
"""

import contextlib
import math
import os
import platform
import struct
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from shoal.files import Folder
from shoal.procfs import started_at

PHASES = (
    "startup",  # reading the job, importing, building the learner
    "queue",  # waiting until another worker has compiled
    "compile",  # building the environments, and with them Warp's kernels
    "rollout",
    "collective",  # waiting for the other ranks, in any part of the work
    "update",
    "metrics",  # handing them to their writers
    "checkpoint",  # writing it, rank 0 alone
    "evaluate",
    "closing",
)
WAITING = frozenset({"queue", "collective"})
"""Phases in which a rank only waits for others, and is never the cause of a hang."""

_RECORD = struct.Struct("<QBIQdddIQQ")
"""Sequence number, phase, iteration, marks, times of the latest progress and of this write, limit, process id and
start, and the sequence number again: a reader that finds two different ones has met a write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A rank's heartbeat at one moment."""

    rank: int
    phase: str
    iteration: int
    marks: int
    """Progress marks so far."""
    idle: float
    """Time since the latest progress mark [s]."""
    silent: float
    """Time since the process last showed that it runs [s]."""
    limit: float
    """How long it may be idle [s]."""
    pid: int
    started: int
    """Start of the process [kernel ticks]; with the id it identifies one process."""
    host: str

    @property
    def place(self) -> str:
        """``"rollout (iteration 2)"``, or the phase alone before the first iteration."""
        return f"{self.phase} (iteration {self.iteration})" if self.iteration else self.phase

    @property
    def waits(self) -> bool:
        """Whether the rank waited for others when it was last seen."""
        return self.phase in WAITING


def slowest_phase(phases: Collection[str]) -> str:
    """Return the earliest phase of several ranks, without those that wait for others, if one does not."""
    return min([each for each in phases if each not in WAITING] or phases, key=PHASES.index)


def beat_file(directory: Path, rank: int) -> Path:
    """Return the heartbeat file of a rank."""
    return directory / f"rank_{rank:05d}.beat"


class Heartbeat:
    """Writer of this process's heartbeat. Times are monotonic, which all processes of a machine share."""

    def __init__(self, file: Path | None = None, startup_timeout: float = 0.0, stall_timeout: float = 0.0) -> None:
        """Begin in `startup`. Without `file`, other processes cannot read it. A timeout of 0 is none."""
        self._pid, self._started = os.getpid(), started_at(os.getpid())
        self._file: IO[bytes] | None = None
        if file is not None:
            with contextlib.suppress(OSError):  # The rank works on without a heartbeat.
                self._file = Folder(file.parent).open(file, "w+")
        self._lock = threading.Lock()
        self._sequence = 0
        self.limit = startup_timeout or math.inf
        """Longest time without progress in the present part of the work [s]."""
        self._steady_limit = stall_timeout or math.inf
        self.least_limit = min(self.limit, self._steady_limit)
        self.iteration = 0
        """Present iteration, counted from 1; 0 before the first."""
        self.marks = 0
        """Progress marks so far."""
        self.on_enter: Callable[[str], None] | None = None
        """Called with each phase that this process enters."""
        self.waits_on_device: Callable[[], bool] | None = None
        """Returns whether this rank's device waits for other ranks while its host runs ahead."""
        self.phase = "startup"
        self.progressed = time.monotonic()
        """Time of the latest progress mark [s]."""
        self.enter("startup")

    def enter(self, phase: str) -> str:
        """Enter a phase, and return the one before. The file has it at once, at the cost of one system call."""
        before, self.phase = self.phase, phase
        self.mark()
        self.pulse()
        if self.on_enter is not None:
            self.on_enter(phase)
        return before

    def mark(self) -> None:
        """Mark progress within a phase. The file has it with the next pulse."""
        self.marks += 1
        self.progressed = time.monotonic()

    def begin_iteration(self, iteration: int) -> None:
        """Begin an iteration, counted from 1. The steady limit holds from this process's second one on."""
        if self.iteration:
            self.limit = self._steady_limit
        self.iteration = iteration

    @property
    def idle(self) -> float:
        """Time since the latest progress mark [s]."""
        return time.monotonic() - self.progressed

    def waits(self) -> bool:
        """Whether this rank waits for others. Queries the device only after the host has been idle for long."""
        if self.phase in WAITING:
            return True
        return self.waits_on_device is not None and self.idle > self.limit / 2 and self.waits_on_device()

    def beat(self, rank: int, *, waits: bool = False) -> Beat:
        """Return this process's state, as rank `rank`. `waits` says that its device waits for other ranks."""
        return _beat_of(rank, self._state(waits=waits))

    def pulse(self, *, waits: bool = False) -> None:
        """Write that this process runs. `waits` says that its device waits for other ranks."""
        if self._file is None:
            return
        with self._lock, contextlib.suppress(OSError):  # A full disk must not end the rank.
            self._sequence = number = self._sequence + 1
            os.pwrite(self._file.fileno(), _RECORD.pack(number, *self._state(waits=waits), number), 0)

    def _state(self, *, waits: bool) -> Sequence[Any]:
        phase = PHASES.index("collective" if waits and self.phase not in WAITING else self.phase)
        now = time.monotonic()
        return phase, self.iteration, self.marks, self.progressed, now, self.limit, self._pid, self._started

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_beat(directory: Path, rank: int) -> Beat | None:
    """Return the heartbeat that a rank of this machine has written; None without a valid one."""
    for _ in range(3):  # A read may meet a write.
        try:
            data = beat_file(directory, rank).read_bytes()
            first, *state, last = _RECORD.unpack_from(data)
        except (OSError, struct.error):
            return None
        if 0 < first == last and state[0] < len(PHASES):
            return _beat_of(rank, state)
    return None


def _beat_of(rank: int, state: Sequence[Any]) -> Beat:
    """Return the heartbeat of a rank of this machine, from what `_RECORD` holds between its sequence numbers."""
    phase, iteration, marks, progressed, written, limit, pid, started = state
    now = time.monotonic()
    return Beat(
        rank=rank,
        phase=PHASES[phase],
        iteration=iteration,
        marks=marks,
        idle=max(0.0, now - progressed),
        silent=max(0.0, now - written),
        limit=limit,
        pid=pid,
        started=started,
        host=platform.node(),
    )
