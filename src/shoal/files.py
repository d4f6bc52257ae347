"""Writing a file whole or not at all, and never through a link that somebody has planted."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, data: bytes | memoryview | str) -> None:
    """Replace a file, or a link in its place, at once: half of it is never seen.

    Raises:
        OSError: The disk refused it. What was there before still is.
    """
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        unfinished.unlink(missing_ok=True)  # Another process with this number has left it, or it is a trap.
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
        unfinished.rename(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
