"""The control groups of this process, by which containers limit cores and memory."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
"""Mount point of control groups."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""File that lists the groups of this process."""


def control_groups(controller: str) -> Iterator[Path]:
    """Yield the directories of this process's groups of `cpu` or `memory`, and of their parents, of both versions."""
    for line in read_text(OWN_GROUPS).splitlines():
        _number, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 names no controllers; version 1 mounts each set of them under its own name. In a container the path
        # may be the host's, of which only the root is mounted: a directory that does not exist sets no limit.
        mount = ROOT / controllers
        group = mount / path.strip("/")
        yield group
        yield from (parent for parent in group.parents if parent.is_relative_to(mount))


def read_text(file: Path) -> str:
    """Return a file's stripped text; empty when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
