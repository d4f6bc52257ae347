"""Resources of this machine, judged in `shoal.checks`: memory, cores, writable directories, host names.

Containers limit memory and cores by control groups.
"""

import os
import platform
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from shoal.provenance import installed_version
from shoal.timing import in_background

CONTROL_GROUPS = Path("/sys/fs/cgroup")
"""Mount point of control groups."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""File that lists the groups of this process."""
RESOLVE_S = 2.0
"""Time limit of a host name look-up [s]. Without one, an unreachable name server takes half a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The host's memory that this process may use [bytes]."""

    total: int
    """No more than the container allows."""
    available: int
    """What new processes can take without swapping."""
    swap_free: int = 0
    limited: bool = False
    """Whether a control group allows less than the machine has."""


def control_groups(controller: str) -> Iterator[Path]:
    """Yield the directories of this process's groups of `cpu` or `memory`, and of their parents, of both versions."""
    for controllers, path in re.findall(r"^\d+:([^:]*):(.*)$", read_text(OWN_GROUPS), re.MULTILINE):
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 names no controllers; version 1 mounts each set of them under its own name. In a container the path
        # may be the host's, of which only the root is mounted: a directory that does not exist sets no limit.
        mount = CONTROL_GROUPS / controllers
        group = mount / path.strip("/")
        yield group
        yield from (parent for parent in group.parents if parent.is_relative_to(mount))


def read_text(file: Path) -> str:
    """Return a file's stripped text; empty when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def memory() -> Memory:
    """Return the memory of the machine, within the limits of this process's control groups."""
    host = psutil.virtual_memory()
    total, available, swap_free = host.total, host.available, psutil.swap_memory().free
    for group in control_groups("memory"):
        limit, used = read_text(group / "memory.max"), read_text(group / "memory.current")
        if not limit:  # version 1, which writes nearly 2**63 for no limit
            limit, used = read_text(group / "memory.limit_in_bytes"), read_text(group / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit() and int(limit) < host.total:
            # Inactive pages of files, which both versions count as used, can be dropped.
            stat = dict(re.findall(r"^(\w+) (\d+)$", read_text(group / "memory.stat"), re.MULTILINE))
            droppable = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
            total = min(total, int(limit))
            available = min(available, max(0, int(limit) - max(0, int(used) - droppable)))
        limit, used = read_text(group / "memory.swap.max"), read_text(group / "memory.swap.current")
        if limit.isdigit() and used.isdigit():
            swap_free = min(swap_free, max(0, int(limit) - int(used)))
    return Memory(total=total, available=available, swap_free=swap_free, limited=total < host.total)


def cpu_name() -> str:
    """Return the model of the CPU."""
    lines = read_text(Path("/proc/cpuinfo")).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def usable_cores() -> int:
    """Return how many cores this process may use: no more than its affinity mask and its container allow.

    A part of a core is given up: a thread beyond the quota makes the kernel pause all of them.
    """
    schedulable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return schedulable if quota is None else max(1, min(schedulable, int(quota)))


def cpu_quota() -> float | None:
    """Return the limit of this process's control groups on CPU time [cores]. None without a limit."""
    limits: list[float] = []
    for group in control_groups("cpu"):
        quota, _, period = read_text(group / "cpu.max").partition(" ")  # version 2: "<quota>|max <period>"
        if not quota:  # version 1, which writes -1 for no limit
            quota, period = read_text(group / "cpu.cfs_quota_us"), read_text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(quota) * int(period) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def nearest_existing(path: Path) -> Path:
    """Return `path`, or its nearest parent that exists. Raises OSError for one that cannot be read, or is too long."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def why_unwritable(directory: Path) -> tuple[Path, str] | None:
    """Return the path for which a directory cannot be created or written, and a predicate about it. None when it can.

    A file without a name is created for it: permissions do not tell that a mount is read-only, or that /proc takes no
    files.
    """
    nearest = directory
    try:
        nearest = nearest_existing(directory)
        if not nearest.is_dir():
            return nearest, "is no directory"
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        return nearest, f"cannot be written ({error.strerror})"
    return None


def kernel_cache(environ: Mapping[str, str]) -> Path:
    """Return the directory of Warp's compiled kernels, by Warp's own rule: importing Warp costs a second."""
    release = installed_version("warp-lang") or ""
    if "WARP_CACHE_PATH" in environ:
        return Path(os.path.realpath(environ["WARP_CACHE_PATH"])) / release
    # Warp does not expand a `~` in the variable.
    base = environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))  # noqa: PTH111  It never raises.
    return Path(base) / "warp" / release


def why_unresolved(name: str) -> str | None:
    """Return why a host name does not resolve, as a clause. None when it does.

    The resolver has no time limit of its own, so it runs in a thread, which is abandoned when it takes too long.
    """
    answer = in_background(partial(socket.getaddrinfo, name, None), f"resolve {name}")
    if not wait([answer], RESOLVE_S).done:
        return f"no answer within {RESOLVE_S:g} s"
    error = answer.exception()
    if isinstance(error, OSError):
        return (error.strerror or str(error)).rstrip(".")
    return "it is no host name" if error else None  # A label that is empty or too long.
