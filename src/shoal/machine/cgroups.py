"""The control groups of this process, which a container's limits on cores and memory are made of. Reading only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path("/sys/fs/cgroup")
"""Where control groups are mounted."""
OWN_GROUPS = Path("/proc/self/cgroup")
"""The file that says in which groups this process is."""


def control_groups(controller: str, root: Path = ROOT, own_groups: Path = OWN_GROUPS) -> Iterator[Path]:
    """Yield the directories of the control groups, of both versions, that may limit this process.

    A limit holds for all groups below it, so the groups from ours up to the root are yielded.

    Args:
        controller: What they limit: `cpu` or `memory`.
        root: Where control groups are mounted.
        own_groups: The file that says in which groups this process is.
    """
    for line in read_text(own_groups).splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 names no controllers; version 1 mounts each set of them under its own name. In a container
        # the path may be the host's, of which only the root is mounted: what does not exist sets no limit.
        mount = root / controllers if controllers else root
        group = mount / path.strip("/")
        yield group
        yield from (parent for parent in group.parents if parent.is_relative_to(mount))


def read_text(file: Path) -> str:
    """Return a file's text without white space around it, or nothing when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
