"""Writing, renaming and removing below a directory: never through a link, and never another's file.

The directory itself may be reached by links: its user has named it. What is below it may have been unpacked from
anywhere, so each path is walked from the directory's descriptor, name by name, and no name may be a link. Whatever
writes below a run, results of an evaluation, a sweep or a cache does it here; a test looks for others.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from shoal.errors import UsageError
from shoal.text import TYPABLE

_MODES = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "a": os.O_WRONLY | os.O_APPEND | os.O_CREAT,
    "a+": os.O_RDWR | os.O_APPEND | os.O_CREAT,
    "w+": os.O_RDWR | os.O_CREAT,
    "x": os.O_WRONLY | os.O_EXCL | os.O_CREAT,
}
"""Flags of `Folder.open`. `w+` truncates once the file is known to be one that may be."""
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # A pipe in the place of a file does not block.


class UnsafePathError(UsageError, OSError):
    """At a path below a directory is what nothing is written through, such as a link."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} {what}, and nothing is written there: remove it, or take another directory.")
        self.errno, self.strerror = errno.ELOOP, f"{path.name} {what}"

    def __str__(self) -> str:
        return self.args[0]  # OSError's would be errno and strerror.


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory in which Shoal writes. Paths are absolute or relative as its own is, and lie below it."""

    path: Path

    def open(self, path: Path, mode: str) -> IO[bytes]:
        """Open a file of this user, or of the directory's owner, without a buffer; `mode` is one of `_MODES`.

        Raises:
            UnsafePathError: It is no file of theirs, or a link stands on the way.
            OSError: It cannot be opened.
        """
        with self._parent(path) as (parent, name):
            try:
                descriptor = os.open(name, _MODES[mode] | _SAFE, 0o666, dir_fd=parent)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):
                    raise UnsafePathError(path, "is a link" if error.errno == errno.ELOOP else "is no file") from None
                raise
        try:
            found = os.fstat(descriptor)
            self._refuse_others(path, found)
            if mode == "w+" and found.st_size:
                os.ftruncate(descriptor, 0)
            return os.fdopen(descriptor, {"w+": "r+", "x": "w"}.get(mode, mode) + "b", buffering=0)
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, path: Path, data: bytes | memoryview | str) -> None:
        """Replace a file, or a link in its place, atomically. If that fails, the old file remains."""
        unfinished = path.with_suffix(f".{os.getpid()}")
        try:
            self.remove(unfinished)  # An earlier process with this id has left it, or it is an attack.
            with self.open(unfinished, "x") as file:
                write_all(file, data)
            self.rename(unfinished, path)
        except OSError:
            with suppress(OSError):
                self.remove(unfinished)
            raise

    def append(self, path: Path, line: str) -> None:
        """Append a line to a file, in one piece."""
        with self.open(path, "a") as file:
            file.write(f"{line}\n".encode())

    def make(self, path: Path) -> None:
        """Make a directory, and those above it, where they do not exist."""
        with self._parent(path / "_", make=True):
            pass

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or a directory; a file, or a link in its place, is replaced."""
        with self._parent(old) as (source, name), self._parent(new) as (target, new_name):
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)

    def remove(self, path: Path) -> None:
        """Remove a file or a link, if there is one."""
        with suppress(FileNotFoundError), self._parent(path) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all that is in it, if there is one. Links are removed, not followed."""
        with suppress(FileNotFoundError), self._parent(path) as (parent, name):
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                os.unlink(name, dir_fd=parent)
            elif not stat.S_ISDIR(mode):  # rmtree would wait for a pipe.
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            else:
                shutil.rmtree(name, dir_fd=parent)

    def flush(self, path: Path) -> None:
        """Flush the names in a directory to the disk."""
        with self._parent(path / "_") as (directory, _):
            os.fsync(directory)

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Hold the lock of a directory."""
        with self._parent(path / "_") as (directory, _):
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _parent(self, path: Path, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the directory that holds `path`, and the name of `path` in it."""
        *directories, last = path.relative_to(self.path).parts
        if ".." in (*directories, last):
            raise UnsafePathError(path, f"leads out of {self.path}")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = os.open(self.path, flags)
        try:
            for number, name in enumerate(directories, 1):
                if make and not os.access(name, os.F_OK, dir_fd=descriptor, follow_symlinks=False):
                    with suppress(FileExistsError):  # Another process has made it just now.
                        os.mkdir(name, dir_fd=descriptor)
                try:
                    inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
                except NotADirectoryError:  # So Linux says of a link, too.
                    raise UnsafePathError(self.path.joinpath(*directories[:number]), "is no directory") from None
                os.close(descriptor)
                descriptor = inner
            yield descriptor, last
        finally:
            os.close(descriptor)

    def _refuse_others(self, path: Path, found: os.stat_result) -> None:
        """Refuse what is no file, has another name elsewhere, or is neither this user's nor the directory owner's."""
        if not stat.S_ISREG(found.st_mode):
            raise UnsafePathError(path, "is no file")
        if found.st_nlink > 1:
            raise UnsafePathError(path, "is a file with a second name")
        if found.st_uid not in (os.geteuid(), self.path.stat().st_uid):
            raise UnsafePathError(path, "is another user's")


def folder_of(file: Path) -> Folder:
    """Return the directory of a file that the user has named, which is made if it does not exist."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return Folder(file.parent)


def try_lock(file: IO[bytes], *, shared: bool = False) -> bool:
    """Lock a file until it is closed or this process ends; return False if another process has locked it."""
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX))
        return True
    return False


def write_all(file: IO[bytes], data: bytes | memoryview | str) -> None:
    """Write everything to a file without a buffer, which may take it in pieces."""
    rest = memoryview(data.encode(errors=TYPABLE) if isinstance(data, str) else data).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def make_first_free(parent: Path, names: Iterable[str]) -> Path:
    """Make the first of these directories that does not exist, in one that the user has named."""
    parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        with suppress(FileExistsError):
            (parent / name).mkdir()
            return parent / name
    raise AssertionError  # pragma: no cover  The names do not end.
