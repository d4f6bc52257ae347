"""The heartbeat of a rank: what it does now, and when it last got further, in one small file that others can read.

The rank's own thread of work writes each phase as it enters it, so that the file is right however the rank ends a
microsecond later. A second thread, the watchdog's, adds that the process still beats. What follows from both is
`shoal.launch.watchdog`. A file is written with `pwrite`, never mapped: a full disk would end a process that maps it.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.procfs import started_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path
    from typing import Self

PHASES = (
    "startup",  # reading the job, importing, building the learner
    "queue",  # waiting until another worker has compiled
    "compile",  # building the environments, and with them Warp's kernels
    "rollout",
    "collective",  # waiting for the other ranks, in whatever part of the work
    "update",
    "metrics",  # handing them to their writers
    "checkpoint",  # writing it, rank 0 alone
    "evaluate",
    "closing",
)
WAITING = frozenset({"queue", "collective"})
"""Phases in which a rank only waits for others, and is never to blame."""

_NUMBERS = {name: number for number, name in enumerate(PHASES)}
_SITE = struct.Struct("<QBxxxIddQ")
"""Written by the work: sequence, phase, iteration, time, limit, sequence again. Unequal ones tell of half a write."""
_PULSE = struct.Struct("<QQ?xxxxxxxdddQ")
"""Written by the watchdog: sequence, marks, whether the device waits, time of the newest mark, time, wall time,
sequence again."""
_OWNER = struct.Struct("<IQ64s")
"""Written once: process id, the process's start in the kernel's ticks, host."""
_PULSE_AT, _OWNER_AT, _SIZE = 64, 128, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a rank may take between two signs of progress [s]; infinity where nobody minds."""

    startup: float = math.inf
    """Until its first iteration is done."""
    steady: float = math.inf
    """From then on."""

    @classmethod
    def of(cls, startup_timeout: float, stall_timeout: float) -> Self:
        """Return the limits that two flags ask for; 0 stands for none."""
        return cls(startup=startup_timeout or math.inf, steady=stall_timeout or math.inf)

    @property
    def least(self) -> float:
        """The shorter of the two [s]."""
        return min(self.startup, self.steady)


def beat_file(directory: Path, rank: int) -> Path:
    """Return where `rank` keeps its heartbeat."""
    return directory / f"rank_{rank:05d}.beat"


class Heartbeat:
    """Says what this process does. Times are monotonic, which all processes of a machine share."""

    def __init__(self, file: Path | None = None, limits: Limits | None = None) -> None:
        """Begin in `startup`.

        Args:
            file: Where others look; None keeps it to this process.
            limits: Told to those who look.
        """
        self.limits = limits or Limits()
        self._descriptor = None if file is None else _opened(file)
        self._sequence = self._pulses = 0
        self.limit = self.limits.startup
        """How long the present part of the work may go without progress [s]."""
        self.iteration = 0
        """The iteration that runs, counted from 1; 0 before the first."""
        self.marks = 0
        """Signs of progress so far."""
        self.on_enter: Callable[[str], None] | None = None
        """Called with each phase that this process enters."""
        self.waits_on_device: Callable[[], bool] | None = None
        """Tells whether this rank's device waits for other ranks while its host goes on to another phase."""
        self.phase = "startup"
        self.progressed = time.monotonic()
        """When the newest of them was [s]."""
        self.enter("startup")
        self.pulse()

    def enter(self, phase: str) -> str:
        """Begin a phase, and return the one before. It is in the file at once, and costs one system call."""
        before, self.phase = self.phase, phase
        self.marks += 1
        self.progressed = now = time.monotonic()
        if self._descriptor is not None:
            self._sequence = sequence = self._sequence + 1
            told = _SITE.pack(sequence, _NUMBERS[phase], self.iteration, now, self.limit, sequence)
            with contextlib.suppress(OSError):  # A full disk must not end what it only fails to tell of.
                os.pwrite(self._descriptor, told, 0)
        if self.on_enter is not None:
            self.on_enter(phase)
        return before

    def mark(self) -> None:
        """Say that this rank got further within its phase. It is in the file with the next pulse."""
        self.marks += 1
        self.progressed = time.monotonic()

    def begin_iteration(self, iteration: int) -> None:
        """Begin iteration `iteration`, counted from 1. From the second one of this process on, all is warm."""
        if self.iteration:
            self.limit = self.limits.steady
        self.iteration = iteration

    @property
    def idle(self) -> float:
        """Time since the newest sign of progress [s]."""
        return time.monotonic() - self.progressed

    def waits(self) -> bool:
        """Whether this rank only waits for others. Asks the device only when the host has been idle for long."""
        if self.phase in WAITING:
            return True
        return self.waits_on_device is not None and self.idle > self.limit / 2 and self.waits_on_device()

    def beat(self, rank: int, *, waits: bool = False) -> Beat:
        """Return how this process is at this moment, as others would read it.

        Args:
            rank: Its place.
            waits: Whether it only waits for others.
        """
        return Beat(
            rank=rank,
            phase="collective" if waits and self.phase not in WAITING else self.phase,
            iteration=self.iteration,
            marks=self.marks,
            idle=self.idle,
            silent=0.0,
            limit=self.limit,
            pid=os.getpid(),
            started=started_at(os.getpid()),
            host=_host(),
        )

    def pulse(self, *, waits: bool = False) -> None:
        """Say that this process still runs. The watchdog does it, in a thread of its own.

        Args:
            waits: Whether this rank only waits for others.
        """
        if self._descriptor is None:
            return
        self._pulses = count = self._pulses + 1
        told = _PULSE.pack(count, self.marks, waits, self.progressed, time.monotonic(), time.time(), count)
        with contextlib.suppress(OSError):
            os.pwrite(self._descriptor, told, _PULSE_AT)

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def place(self) -> str:
        """Return where this rank is, in words."""
        return place_of(self.phase, self.iteration)


def slowest_phase(phases: Collection[str]) -> str:
    """Return the earliest phase of several ranks, without those that wait for others, if one does not."""
    return min([each for each in phases if each not in WAITING] or phases, key=PHASES.index)


def place_of(phase: str, iteration: int) -> str:
    """Return ``"rollout (iteration 2)"``, or the phase alone before the first iteration."""
    return f"{phase} (iteration {iteration})" if iteration else phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat as others read it, at one moment."""

    rank: int
    phase: str
    iteration: int
    marks: int
    idle: float
    """Time since its newest sign of progress [s]."""
    silent: float
    """Time since it last showed that its process runs [s]."""
    limit: float
    """How long it may be idle [s]."""
    pid: int
    started: int
    """When the process started, in the kernel's ticks: with the number it names one process."""
    host: str

    @property
    def place(self) -> str:
        """Where the rank is, in words."""
        return place_of(self.phase, self.iteration)

    @property
    def waits(self) -> bool:
        """Whether the rank only waits for others, as far as can be told: one that is silent may have stopped there."""
        return self.phase in WAITING


def read_beat(directory: Path, rank: int) -> Beat | None:
    """Return the heartbeat of `rank`, or None when there is none that makes sense."""
    file = beat_file(directory, rank)
    for _ in range(3):  # A read may meet a write.
        try:
            data = file.read_bytes()
        except OSError:
            return None
        if len(data) < _SIZE:
            return None
        first, number, iteration, entered, limit, last = _SITE.unpack_from(data, 0)
        begin, marks, waits, marked, beaten, wall, end = _PULSE.unpack_from(data, _PULSE_AT)
        if 0 < first == last and 0 < begin == end and number < len(PHASES):
            break
    else:
        return None
    pid, started, name = _OWNER.unpack_from(data, _OWNER_AT)
    host = name.rstrip(b"\0").decode(errors="replace")
    # Machines do not share a monotonic clock. Their wall clocks agree to a second or so, which is enough here.
    now = time.monotonic() if host == _host() else beaten + max(0.0, time.time() - wall)
    return Beat(
        rank=rank,
        phase="collective" if waits and entered <= marked else PHASES[number],
        iteration=iteration,
        marks=marks,
        idle=max(0.0, now - max(entered, marked)),
        silent=max(0.0, now - max(entered, beaten)),
        limit=limit,
        pid=pid,
        started=started,
        host=host,
    )


def _host() -> str:
    return platform.node()[:63]


def _opened(file: Path) -> int | None:
    """Make the file, with its owner in it; None where that cannot be done, and the rank works on unseen."""
    owner = _OWNER.pack(os.getpid(), started_at(os.getpid()), _host().encode()[:63])
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.pwrite(descriptor, bytes(_SIZE), 0)
        os.pwrite(descriptor, owner, _OWNER_AT)
    return descriptor
