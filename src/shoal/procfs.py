"""What the kernel tells of a process by its number: its state, when it started, how it ended, and whose child it is."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_START = 19
"""Place of the start, the 22nd field of the file, among those that follow the name."""


def stat(pid: int) -> list[str]:
    """Return what /proc/<pid>/stat tells from the state on; nothing when there is no such process, or nobody tells."""
    try:
        # The state follows the name, which is in parentheses and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def state(pid: int) -> str:
    """Return the letter of a process's state, such as ``"Z"`` for one that has ended; empty when there is none."""
    return "".join(stat(pid)[:1])


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped, by a signal or a debugger."""
    return state(pid) in {"T", "t"}


def started_at(pid: int) -> int:
    """Return when a process started, in the kernel's ticks; 0 when there is none, or nobody tells."""
    fields = stat(pid)
    return int(fields[_START]) if len(fields) > _START else 0


def how_it_ended(code: int) -> str:
    """Say what an exit code tells, which is the negative number of a signal if one killed the process."""
    return f"killed by {_signal_name(-code)}" if code < 0 else f"it left with exit code {code}"


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have this process signalled when the thread of process `parent` that started it ends. End now if it has."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it.
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # It went before the system could be told to take us along.
        os._exit(1)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
