"""Atomic writing of files, never through a planted link."""

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes | memoryview | str) -> None:
    """Replace a file, or a link in its place, atomically.

    Raises:
        OSError: It cannot be written. The old file remains.
    """
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        unfinished.unlink(missing_ok=True)  # An earlier process with this id has left it, or it is an attack.
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        unfinished.rename(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
