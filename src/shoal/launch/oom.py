"""Out-of-memory kills, from the kernel's counters: of each control group with a limit, and of the whole machine.

The kernel kills with SIGKILL, as any other process may, so the signal alone proves nothing.
"""

from pathlib import Path

from shoal.machine.cgroups import control_groups

_MACHINE = Path("/proc/vmstat")
_COUNTERS = ("memory.events", "memory.oom_control")
"""Files of a control group, of version 2 and 1, with a line `oom_kill N`."""


class OomWatch:
    """Counts out-of-memory kills from now on."""

    def __init__(self, groups: list[Path] | None = None, machine: Path = _MACHINE) -> None:
        """Read the counters.

        Args:
            groups: Directories of control groups; by default those of this process.
            machine: The file with the machine's own counter.
        """
        groups = list(control_groups("memory")) if groups is None else groups
        self._groups = {file: count for file in _files(groups) if (count := _kills(file)) is not None}
        self._machine = machine
        self._before = _kills(machine)

    def verdict(self) -> str:
        """Return whether the kernel has killed for want of memory since, in parentheses and with a leading space."""
        starved = next((file for file, count in self._groups.items() if (_kills(file) or 0) > count), None)
        if starved is not None:
            limit = _limit(starved.parent)
            return f" (the kernel did that: the memory limit of its control group{limit} was reached)"
        now = _kills(self._machine)
        if self._before is None or now is None:
            return " (the kernel does that when memory runs out)"
        if now > self._before:
            return " (the kernel did that to some process of this machine: memory ran out)"
        return " (not by the kernel for want of memory: it counts those)"


def _files(groups: list[Path]) -> list[Path]:
    return [group / name for group in groups for name in _COUNTERS if (group / name).is_file()]


def _kills(file: Path) -> int | None:
    """Return how many processes the kernel has killed for want of memory; None where that is unknown."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else None


def _limit(group: Path) -> str:
    """Return a group's limit as text, with a leading space."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            size = int((group / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # no such file, or "max"
            continue
        return f" of {size / 2**20:,.0f} MiB"
    return ""
