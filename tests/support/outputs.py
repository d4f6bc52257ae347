"""Outputs that a command cannot write to."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def full_pipe() -> Iterator[int]:
    """The end to write of a pipe that holds all that it can, and that nobody reads."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        try:
            while True:
                os.write(writing, b"\n")
        except BlockingIOError:
            os.set_blocking(writing, True)
        yield writing
    finally:
        os.close(reading)
        os.close(writing)
