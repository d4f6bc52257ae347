"""The control groups of this process, by which containers limit cores and memory."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
"""Mount point of control groups."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""File that lists the groups of this process."""


def control_groups(controller: str, root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> Iterator[Path]:
    """Yield the directories of the control groups of this process and their parents, of both versions.

    Args:
        controller: `cpu` or `memory`.
        root: Mount point of control groups.
        own_groups: File that lists the groups of this process.
    """
    for line in read_text(own_groups).splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 names no controllers; version 1 mounts each set of them under its own name. In a container the path
        # may be the host's, of which only the root is mounted: a directory that does not exist sets no limit.
        mount = root / controllers if controllers else root
        group = mount / path.strip("/")
        yield group
        yield from (parent for parent in group.parents if parent.is_relative_to(mount))


def read_text(file: Path) -> str:
    """Return a file's stripped text; empty when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
