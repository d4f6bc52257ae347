"""Processes by id: state, start and end, from /proc and prctl."""

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_START = 19
"""Index of the start, the file's 22nd field, among the fields after the name."""


def stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on; none without such a process or file."""
    try:
        # The state follows the name, which is in parentheses and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def state(pid: int) -> str:
    """Return the letter of a process's state, such as ``"Z"`` for one that has ended; empty without a process."""
    return "".join(stat(pid)[:1])


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped, by a signal or a debugger."""
    return state(pid) in {"T", "t"}


def started_at(pid: int) -> int:
    """Return when a process started [kernel ticks]; 0 if unknown."""
    fields = stat(pid)
    return int(fields[_START]) if len(fields) > _START else 0


def how_it_ended(code: int) -> str:
    """Describe an exit code; a negative one is that of a signal."""
    names = {each.value: each.name for each in signal.Signals}  # Without real-time signals.
    return f"killed by {names.get(-code, f'signal {-code}')}" if code < 0 else f"it left with exit code {code}"


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have this process receive a signal when the thread of `parent` that started it ends; end now if it has."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it.
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # The parent ended before prctl.
        os._exit(1)
