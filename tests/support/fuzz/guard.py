"""What a command does to the world, told while it runs: an audit hook in its process.

A command may write below some folders, and start and reach nothing. Each other attempt is told, and goes on: what
follows is judged, too.
"""

from __future__ import annotations

import os
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CODE = "code"
"""The first word of what is told of code that runs."""
_MOST_TOLD = 5
"""One violation is enough; a few show what follows from it."""

_PATHS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.utime": ((0, 3),),
}
"""Events that change files: which arguments are a path and the descriptor of its directory."""
_FOLLOWED = {"os.chmod", "os.chown", "os.truncate", "os.utime"}
"""Those that change what a link leads to; the others change the link."""
_STARTING = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.spawn",
    "subprocess.Popen",
}
_REACHING = {"socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}

_CHILDREN = {
    ("shoal.checks.probe", "shoal.sim.nan.replay:replay_file"): "`shoal replay`: a model may crash MuJoCo",
    ("git", "config"): "a run asks git for settings that would start programs, to turn them off",
    ("git", "rev-parse"): "a run records the commit of the working directory",
    ("uname", "-p"): "Python asks it for the processor",
    ("git", "status"): "a run records what is changed in the working directory",
}
"""Processes that a command starts by design, by words that follow one another in their command lines."""


class Guard:
    """The folders that a command may write below, and where violations are told."""

    def __init__(self, writable: Iterable[str], code: str, told: int) -> None:
        """Take real paths.

        Args:
            writable: Folders below which everything may be written.
            code: Folder of files from others, of which no code may run.
            told: Descriptor of a file in memory, one violation a line.
        """
        self._writable = [os.path.realpath(folder) for folder in writable]
        self._code, self._told, self._left = os.path.realpath(code), told, _MOST_TOLD
        self._here = threading.local()

    def install(self) -> None:
        """Watch this process until its end."""
        real_open = os.open

        def open_below(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            self._here.directory = dir_fd  # The event lacks it.
            try:
                return real_open(path, flags, mode, dir_fd=dir_fd)
            finally:
                self._here.directory = None

        os.open = open_below
        sys.addaudithook(self._hear)

    def witness(self) -> None:
        """Tell every file that is opened and every folder that is listed below the folder of files from others, too."""
        kinds = {
            "open": "reads",
            "os.listdir": "lists",
            "os.scandir": "lists",
            "os.rename": "writes",
            "os.mkdir": "writes",
        }

        def hear(event: str, arguments: Sequence[Any]) -> None:
            if event not in kinds:
                return
            at, directory_at = _PATHS[event][-1] if event in _PATHS else (0, None)
            path = arguments[at]
            if not isinstance(path, str | bytes | os.PathLike):
                return
            opened_in = getattr(self._here, "directory", None) if event == "open" else None
            where = _absolute(path, opened_in if directory_at is None else arguments[directory_at])
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING
            if where.startswith(self._code):
                os.write(
                    self._told, f"{'writes' if writes else kinds[event]} {where}\n".encode(errors="backslashreplace")
                )

        sys.addaudithook(hear)

    def _hear(self, event: str, arguments: Sequence[Any]) -> None:
        if self._left <= 0 or getattr(self._here, "hearing", False):
            return
        self._here.hearing = True
        try:
            for violation in self._violations(event, arguments):
                self._left -= 1
                os.write(self._told, f"{violation}\n".encode(errors="backslashreplace"))
        finally:
            self._here.hearing = False

    def _violations(self, event: str, arguments: Sequence[Any]) -> Iterator[str]:
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING and not isinstance(path, int):
                follows = not flags & os.O_NOFOLLOW and flags & (os.O_CREAT | os.O_EXCL) != os.O_CREAT | os.O_EXCL
                yield from self._changed("open", path, getattr(self._here, "directory", None), follows=follows)
        elif event in _PATHS:
            for path_at, directory_at in _PATHS[event]:
                directory = None if directory_at is None else arguments[directory_at]
                yield from self._changed(event, arguments[path_at], directory, follows=event in _FOLLOWED)
        elif event in _STARTING:
            words = [os.fsdecode(word) for word in arguments[1] or ()] if event == "subprocess.Popen" else []
            if not any(pair in _CHILDREN for pair in pairwise(words)):
                yield f"{event} {words or arguments!r:.200}"
        elif event in _REACHING:
            yield f"{event} {arguments[1:]!r:.200}"
        elif event == "exec" and getattr(arguments[0], "co_filename", "").startswith(self._code):
            yield f"{CODE} runs: {arguments[0].co_filename}"
        elif event == "ctypes.dlopen" and str(arguments[0]).startswith(self._code):
            yield f"{CODE} runs: {arguments[0]}"

    def _changed(self, event: str, path: Any, directory: int | None, *, follows: bool) -> Iterator[str]:
        """Tell that a file is changed which is below none of the folders."""
        if isinstance(path, int):
            return  # It was open before.
        where = _absolute(path, directory)
        parent, name = os.path.split(where)
        real = os.path.realpath(where) if follows else str(Path(os.path.realpath(parent), name))
        if real != os.devnull and not any(Path(real).is_relative_to(folder) for folder in self._writable):
            yield f"{event} {real}"


def _absolute(path: Any, directory: int | None) -> str:
    """Return the absolute path of a name in a directory that is open, or else in the working directory."""
    where = os.fsdecode(path)
    if directory is not None and directory >= 0:
        where = str(Path(f"/proc/self/fd/{directory}").readlink() / where)
    return os.path.abspath(where)  # noqa: PTH100  Links are kept.
