"""What this machine has to give right now: memory, room on disks, directories that can be written, names that resolve.

Looking only, and without torch. What follows from it is decided in `shoal.checks.preflight` and `shoal.doctor`.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
import threading
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.machine.cgroups import OWN_GROUPS, ROOT, control_groups, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

KIB = 2**10
RESOLVE_S = 2.0
"""How long the search for a host name may take [s]. A name server that is away keeps one waiting for half a minute."""
_NO_LIMIT = 2**60  # Version 1 of control groups writes nearly 2**63 for no limit.


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The host's memory, as far as this process may have it."""

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
    """What this user may still write [bytes]. A quota of the user's is not seen."""
    free_files: int | None = None
    """How many files can still be made. None where the file system sets no such limit."""


def memory(
    meminfo: Path = Path("/proc/meminfo"), cgroup_root: Path = ROOT, own_groups: Path = OWN_GROUPS
) -> Memory | None:
    """Return what memory there is. None where the system does not tell, which Linux does."""
    told = {
        name: int(number) * KIB for name, number in re.findall(r"^(\w+): +(\d+) kB", read_text(meminfo), re.MULTILINE)
    }
    if "MemTotal" not in told or "MemAvailable" not in told:
        return None
    total, available, limited = told["MemTotal"], told["MemAvailable"], False
    for group in control_groups("memory", cgroup_root, own_groups):
        limit, used = _memory_of(group)
        if limit is not None and limit < total:
            total, limited = limit, True
            available = min(available, max(0, limit - used))
    return Memory(total=total, available=available, swap_free=told.get("SwapFree", 0), limited=limited)


def _memory_of(group: Path) -> tuple[int | None, int]:
    """Return the limit of a control group, and what is used of it without what can be dropped [bytes]."""
    limit, used = read_text(group / "memory.max"), read_text(group / "memory.current")
    if not limit:
        limit, used = read_text(group / "memory.limit_in_bytes"), read_text(group / "memory.usage_in_bytes")
    # Pages of files that nobody has used for a while; both versions count them as used.
    stat = dict(re.findall(r"^(\w+) (\d+)$", read_text(group / "memory.stat"), re.MULTILINE))
    droppable = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    if not (limit.isdigit() and used.isdigit()) or int(limit) > _NO_LIMIT:
        return None, 0
    return int(limit), max(0, int(used) - droppable)


def disk(directory: Path) -> Disk | None:
    """Return the room where `directory` is or will be. None when that cannot be told."""
    try:
        told = os.statvfs(nearest_existing(directory))
    except OSError:
        return None
    # What the kernel keeps for root does not count, for root neither: `df` does not count it.
    return Disk(
        total=told.f_blocks * told.f_frsize,
        free=told.f_bavail * told.f_frsize,
        free_files=told.f_favail if told.f_files else None,
    )


def nearest_existing(path: Path) -> Path:
    """Return `path`, or the nearest of its parents that exists.

    Raises:
        OSError: A parent may not be entered, or the name is one that no file system takes.
    """
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def why_unwritable(directory: Path) -> tuple[Path, str] | None:
    """Say what keeps a directory from being made or written, as far as looking at it tells. None when nothing does.

    A read-only mount is noticed too, for root as well.

    Returns:
        The path that is in the way, and how a sentence about it ends.
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
    """Say what keeps a directory from taking a file, which is tried. None when nothing does.

    Returns:
        The path that is in the way, and how a sentence about it ends.
    """
    nearest = nearest_existing(directory)
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        return nearest, f"takes no file ({error.strerror})"
    return None


def kernel_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where Warp keeps compiled kernels. Its own rule, written out: to ask Warp costs a second."""
    try:
        release = version("warp-lang")
    except PackageNotFoundError:
        release = ""
    if "WARP_CACHE_PATH" in environ:
        return Path(os.path.realpath(environ["WARP_CACHE_PATH"])) / release
    # Warp does not expand a `~` in the variable.
    base = environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))  # noqa: PTH111  It never raises.
    return Path(base) / "warp" / release


def resolves(name: str, seconds: float = RESOLVE_S) -> str | None:
    """Say why a host name does not resolve, as a clause. None when it does.

    The resolver has no time limit of its own, so a thread asks it, and is left behind when it takes too long.
    """
    answer: list[str | None] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            answer.append((error.strerror or str(error)).rstrip("."))
        except UnicodeError:  # a label that is empty or too long
            answer.append("it is no host name")
        else:
            answer.append(None)

    thread = threading.Thread(target=ask, name=f"resolve {name}", daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0] if answer else f"no answer within {seconds:g} s"
