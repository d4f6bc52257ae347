"""Reading files that another process is appending to, a whole line at a time."""

import os
from itertools import takewhile
from pathlib import Path
from typing import Any

from shoal.reading import opened, parse_object


class Tail:
    """Returns the lines that were appended to a file since the last look. The file need not exist yet."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        """Begin at the start of the file, or behind what is already in it, also after its end was dropped."""
        self._path = path
        before = b""
        if from_end and path.is_file():
            with opened(path) as file:
                before = file.read()
        self._before = before[: before.rfind(b"\n") + 1].splitlines(keepends=True)
        self._inode = path.stat().st_ino if self._before else None
        self._offset = sum(map(len, self._before))

    def size(self) -> int:
        """Return how many bytes the file has now."""
        return self._path.stat().st_size if self._path.exists() else 0

    def lines(self, limit: int | None = None, *, unfinished: bool = False) -> list[str]:
        """Return new lines before the offset `limit`, with `unfinished` also a last one that lacks its newline."""
        if not self._path.exists():
            return []
        with opened(self._path) as file:
            if self._inode not in (None, os.fstat(file.fileno()).st_ino):  # A resume has replaced it by its beginning.
                kept = takewhile(lambda old: old == file.readline(), self._before)
                self._offset, self._inode = sum(map(len, kept)), None
            file.seek(self._offset)
            fresh = file.read() if limit is None else file.read(max(0, limit - self._offset))
        if not unfinished:
            fresh = fresh[: fresh.rfind(b"\n") + 1]
        self._offset += len(fresh)
        return fresh.decode("utf-8", errors="replace").splitlines()

    def rows(self) -> list[dict[str, Any]]:
        """Return new lines of JSON, read."""
        return [parse_object(line, {}) for line in self.lines()]
