"""One machine's worth of Linux namespaces: a network, a host name, processes, a clock since boot, private directories.

Nothing has a name outside: no entry in /etc/netns, no mount and no interface that others see. All hangs on one first
process, which ends when its standard input does. So when whoever made the machine ends, even by SIGKILL, the kernel
ends everything in it and takes the namespaces back.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from support.commands import wait_until

from shoal.procfs import state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_KINDS = ("--mount", "--uts", "--ipc", "--net", "--pid", "--time")
_START_TIMEOUT_S = 30.0


class NoNamespacesError(Exception):
    """This system does not let us make them, or misses a tool."""


class Namespaces:
    """A set of namespaces, and the first process in it, which takes the place of `init`.

    The file system is the real one, read and written at the same paths, with exceptions: `/dev/shm` and `/run` are
    new, and directories named in `private` are replaced by others. Paths in `kept` that lie below those stay visible.
    """

    def __init__(
        self,
        name: str,
        base: Path,
        *,
        private: Mapping[Path, str],
        files: Mapping[Path, str],
        kept: Iterable[Path],
        up_for_s: int,
    ) -> None:
        """Begin to make them; `wait` says when they are there.

        Args:
            name: The host name.
            base: A directory of the machine's own, outside.
            private: Directories, and the names of those below `base` that stand in for them.
            files: The same for files; left out where there is no such file to stand in for.
            kept: Paths that must stay visible.
            up_for_s: How far its clock since boot is ahead of the real one [s].
        """
        script = _script(name, base, private=private, files=files, kept=kept)
        clocks = (f"--monotonic={up_for_s}", f"--boottime={up_for_s}")
        self._process = subprocess.Popen(
            ["unshare", *_KINDS, *clocks, "--fork", "--kill-child", "--mount-proc", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # A Ctrl-C at the terminal is for the test alone.
        )
        self._first = 0
        self._id = Path()
        self._entered: list[subprocess.Popen[str]] = []

    def wait(self) -> None:
        """Wait until they are there."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._process.stdout.readline().strip() != "ready":
            complaint = self._process.stderr.read().strip()
            self.end()
            raise NoNamespacesError(complaint)
        (self._first,) = children(self._process.pid)
        self._id = Path(f"/proc/{self._first}/ns/pid").readlink()

    def end(self) -> None:
        """Kill every process in them. With the last one they are gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._first or self._process.pid, signal.SIGKILL)
        for process in self._entered:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)  # One that stopped along with its child does not see it end.
                process.wait(timeout=_START_TIMEOUT_S)
        self._process.wait(timeout=_START_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    @property
    def root(self) -> Path:
        """The machine's file system as it sees it, for as long as it runs."""
        return Path(f"/proc/{self._first}/root")

    @property
    def first(self) -> int:
        """The first process, by its number outside."""
        return self._first

    def processes(self) -> list[int]:
        """Return the living processes in them but for the first, by their numbers outside."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self._first:
                with contextlib.suppress(OSError):  # It has just ended.
                    if (entry / "ns/pid").readlink() == self._id and state(int(entry.name)) not in {"Z", "X", ""}:
                        found.append(int(entry.name))
        return found

    def entering(self, words: Sequence[str], where: str = "/") -> list[str]:
        """Return the words that start a command in them, in a session of its own and the directory `where`."""
        there = ("setsid", "sh", "-c", 'cd "$0" && exec "$@"', where, *words)
        return ["nsenter", f"--target={self._first}", *_KINDS, "--", *there]

    def start(self, words: Sequence[str], where: str, environ: Mapping[str, str]) -> tuple[subprocess.Popen[str], int]:
        """Start a command in them.

        Returns:
            The process that waits for it outside and ends as it does, and its own number outside.
        """
        process = subprocess.Popen(
            self.entering(words, where),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._entered.append(process)
        leaders: list[int] = []

        def has_begun() -> bool:
            leaders[:] = [pid for pid in children(process.pid) if _is_session_leader(pid)]
            return bool(leaders) or process.poll() is not None

        assert wait_until(has_begun, timeout=_START_TIMEOUT_S, pause_s=0.002)
        return process, leaders[0] if leaders else 0


def children(pid: int) -> list[int]:
    """Return the children of a process that has one thread."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return []


def _is_session_leader(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == pid
    return False


def _script(
    name: str, base: Path, *, private: Mapping[Path, str], files: Mapping[Path, str], kept: Iterable[Path]
) -> str:
    """What the first process does: arrange the file system, say so, and wait while children that end are reaped."""
    stage = Path("/run/stage")  # `base` may lie below what is replaced.
    lines = [
        "set -e",
        f"hostname {shlex.quote(name)}",
        "mount -t tmpfs tmpfs /run",
        f"mkdir {stage} /run/sshd",
        f"mount --rbind {shlex.quote(str(base))} {stage}",
        "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
    ]
    for path, (place, stand_in) in product(_outermost(kept), private.items()):
        if path.is_relative_to(place):
            beneath = path.relative_to(place)
            (base / stand_in / beneath).mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --rbind {shlex.quote(str(path))} {shlex.quote(str(stage / stand_in / beneath))}")
    lines += [f"mount --rbind {stage / each} {shlex.quote(str(place))}" for place, each in private.items()]
    lines += [f"! test -e {place} || mount --bind {stage / each} {place}" for place, each in files.items()]
    lines += [f"umount --lazy {stage}", "rmdir " + str(stage), "trap '' CHLD", "echo ready", "exec cat"]
    return "\n".join(lines)


def _outermost(paths: Iterable[Path]) -> list[Path]:
    found = sorted({path.resolve() for path in paths if path.exists()})
    return [path for path in found if not any(path != other and path.is_relative_to(other) for other in found)]
