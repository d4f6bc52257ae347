"""Output that may lose its reader: a closed terminal, or `train ... | head`."""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Generator

_NOBODY_READS = (errno.EPIPE, errno.EIO)
"""What writing to a pipe without a reader answers, and to a terminal that is gone."""


@contextmanager
def hanging_up() -> Generator[None]:
    """Take it as a SIGHUP to this process when nobody reads its output any more, and write nowhere from then on.

    A failed print would otherwise look like a failure of whatever printed. Where SIGHUP is ignored, as under `nohup`,
    the work goes on; where nobody listens for it, the error is raised as ever.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Stream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Stream:
    """A stream of text that survives its reader."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._hang_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._hang_up(error)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  All else is the stream's.
        return getattr(self._stream, name)

    def _hang_up(self, error: OSError) -> None:
        answer = signal.getsignal(signal.SIGHUP)
        if error.errno not in _NOBODY_READS or answer is signal.SIG_DFL:
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())  # What is still in the stream's buffer goes there too.
        os.close(nowhere)
        if answer is not signal.SIG_IGN:
            os.kill(os.getpid(), signal.SIGHUP)


def printable(text: str) -> str:
    """Return `text` with everything escaped that a terminal would act on, but for line ends and tabs."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )
