"""Resources of this machine: memory, cores, disk space, writable directories, host names that resolve.

Only facts, read without torch. They are judged in `shoal.checks`.
"""

import os
import platform
import re
import socket
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from shoal.machine.cgroups import OWN_GROUPS, ROOT, control_groups, read_text

RESOLVE_S = 2.0
"""Time limit of a host name look-up [s]. Without one, an unreachable name server takes half a minute."""
_NO_LIMIT = 2**60  # Version 1 of control groups writes nearly 2**63 for no limit.


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The host's memory that this process may use."""

    total: int
    """[bytes], no more than the container allows."""
    available: int
    """What new processes can take without swapping [bytes]."""
    swap_free: int = 0
    """[bytes]"""
    limited: bool = False
    """Whether a control group allows less than the machine has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The file system of a directory."""

    total: int
    """[bytes]"""
    free: int
    """Space for this user [bytes], without regard to quotas."""
    free_files: int | None = None
    """Free inodes. None where the file system sets no such limit."""


def memory(cgroup_root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> Memory:
    """Return the memory of the machine, within the limits of this process's control groups."""
    host = psutil.virtual_memory()
    total, available, limited = host.total, host.available, False
    for group in control_groups("memory", cgroup_root, own_groups):
        limit, used = _memory_of(group)
        if limit is not None and limit < total:
            total, limited = limit, True
            available = min(available, max(0, limit - used))
    return Memory(total=total, available=available, swap_free=psutil.swap_memory().free, limited=limited)


def _memory_of(group: Path) -> tuple[int | None, int]:
    """Return the limit of a control group, and its used memory without droppable pages [bytes]."""
    limit, used = read_text(group / "memory.max"), read_text(group / "memory.current")
    if not limit:
        limit, used = read_text(group / "memory.limit_in_bytes"), read_text(group / "memory.usage_in_bytes")
    # Inactive pages of files, which both versions count as used.
    stat = dict(re.findall(r"^(\w+) (\d+)$", read_text(group / "memory.stat"), re.MULTILINE))
    droppable = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    if not (limit.isdigit() and used.isdigit()) or int(limit) > _NO_LIMIT:
        return None, 0
    return int(limit), max(0, int(used) - droppable)


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


def cpu_quota(cgroup_root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> float | None:
    """Return the limit of this process's control groups on CPU time [cores]. None without a limit."""
    groups = control_groups("cpu", cgroup_root, own_groups)
    return min((limit for group in groups if (limit := _cpu_limit_of(group)) is not None), default=None)


def _cpu_limit_of(group: Path) -> float | None:
    quota, _, period = read_text(group / "cpu.max").partition(" ")  # version 2: "<quota>|max <period>"
    if not quota:
        quota, period = read_text(group / "cpu.cfs_quota_us"), read_text(group / "cpu.cfs_period_us")
    try:
        limit = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None
    return limit if limit > 0 else None  # version 1 writes -1 for no limit


def disk(directory: Path) -> Disk | None:
    """Return the file system where `directory` is or will be. None when it cannot be read."""
    try:
        stat = os.statvfs(nearest_existing(directory))
    except OSError:
        return None
    # Blocks that the kernel reserves for root do not count, as in `df`.
    return Disk(
        total=stat.f_blocks * stat.f_frsize,
        free=stat.f_bavail * stat.f_frsize,
        free_files=stat.f_favail if stat.f_files else None,
    )


def nearest_existing(path: Path) -> Path:
    """Return `path`, or the nearest of its parents that exists.

    Raises:
        OSError: A parent may not be entered, or the name is one that no file system takes.
    """
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def why_unwritable(directory: Path) -> tuple[Path, str] | None:
    """Return why a directory cannot be created or written, as far as permissions tell. None when it can.

    A read-only mount is noticed too, for root as well.

    Returns:
        The path at fault, and a predicate about it.
    """
    try:
        nearest = nearest_existing(directory)
        if not nearest.is_dir():
            return nearest, "is no directory"
        if not os.access(nearest, os.W_OK | os.X_OK):
            return nearest, "cannot be written"
    except OSError as error:
        return directory.absolute(), f"cannot be reached ({error.strerror})"
    return None


def why_no_file(directory: Path) -> tuple[Path, str] | None:
    """Return why no file can be created in a directory, found out by creating one. None when it can.

    Returns:
        The path at fault, and a predicate about it.
    """
    nearest = nearest_existing(directory)
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        return nearest, f"takes no file ({error.strerror})"
    return None


def kernel_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of Warp's compiled kernels, by Warp's own rule: importing Warp costs a second."""
    try:
        release = version("warp-lang")
    except PackageNotFoundError:
        release = ""
    if "WARP_CACHE_PATH" in environ:
        return Path(os.path.realpath(environ["WARP_CACHE_PATH"])) / release
    # Warp does not expand a `~` in the variable.
    base = environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))  # noqa: PTH111  It never raises.
    return Path(base) / "warp" / release


def why_unresolved(name: str, timeout_s: float = RESOLVE_S) -> str | None:
    """Return why a host name does not resolve, as a clause. None when it does.

    The resolver has no time limit of its own, so it runs in a thread, which is abandoned when it takes too long.
    """
    answer: list[str | None] = []

    def resolve() -> None:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            answer.append((error.strerror or str(error)).rstrip("."))
        except UnicodeError:  # a label that is empty or too long
            answer.append("it is no host name")
        else:
            answer.append(None)

    thread = threading.Thread(target=resolve, name=f"resolve {name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answer[0] if answer else f"no answer within {timeout_s:g} s"
