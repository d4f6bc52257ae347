"""Standard output and error that never end or block a command: closed, full, limited to ASCII, or not read."""

import contextlib
import errno
import io
import json
import os
import select
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, TextIO, cast

from shoal.shell import TYPABLE, typable

FLUSH_TIMEOUT_S = 0.5
"""Longest time that a flush waits, unless an earlier one has timed out [s]."""
LAST_TIMEOUT_S = 3.0
"""Longest time that each stream gets at the end of the command [s]."""
_MOST_TEXTS = 1000
"""Capacity of the queue; beyond that the oldest text is dropped."""
_LEAST_COLUMNS = 40
"""For narrower terminals, tyro takes minutes and gigabytes to lay out its help."""
_NO_READER = (errno.EPIPE, errno.EIO)
"""Errors of writing to a pipe without a reader, and to a closed terminal."""
_LEFT_OUT = "(Output is missing here: it was not read in time, or could not be written.)\n"


def mend_streams() -> None:
    """Point closed standard streams at the null device, escape what an encoding lacks, and widen narrow terminals."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004  Standard error.
        os.set_inheritable(descriptor, True)  # noqa: FBT003
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=TYPABLE)
        setattr(sys, name, stream)
    columns = shutil.get_terminal_size().columns
    if columns < _LEAST_COLUMNS or "COLUMNS" in os.environ:  # rich prints nothing where that is 0.
        os.environ["COLUMNS"] = str(max(columns, _LEAST_COLUMNS))


def release_output() -> None:
    """Write in background threads from now on, so that a reader that has stopped does not block this process.

    A closed terminal or pipe raises SIGHUP, and output is discarded. If SIGHUP is ignored, as under `nohup`, work goes
    on. Text that cannot be written to a file is left out.
    """
    before = sys.stdout, sys.stderr
    if any(isinstance(stream, _Stream) for stream in before):
        return

    def restore() -> None:
        sys.stdout, sys.stderr = before

    os.register_at_fork(after_in_child=restore)  # No thread survives a fork.
    sys.stdout, sys.stderr = (cast("TextIO", _Stream(stream)) for stream in before)


def finish_output() -> bool:
    """Wait until all output is written, with a timeout; return whether it is."""
    written = [stream.wait(LAST_TIMEOUT_S) for stream in (sys.stdout, sys.stderr) if isinstance(stream, _Stream)]
    return all(written)


class _Stream:
    """A text stream that a thread writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = stream.fileno()
        self._texts: deque[str] = deque(maxlen=_MOST_TEXTS)
        self._changed = threading.Condition()
        self._is_busy = True
        self._is_stalled = False
        self._is_incomplete = False
        threading.Thread(target=self._write_all, name=f"output {self._descriptor}", daemon=True).start()

    def write(self, text: str) -> int:
        if len(self._texts) == _MOST_TEXTS:
            self.flush()
        with self._changed:
            self._is_incomplete |= len(self._texts) == _MOST_TEXTS
            self._texts.append(text)
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        if not self._is_stalled:
            self.wait(FLUSH_TIMEOUT_S)

    def wait(self, seconds: float) -> bool:
        """Wait until everything is written, at most `seconds`; return whether it is."""
        with self._changed:
            written = self._changed.wait_for(lambda: not (self._is_busy or self._texts), seconds)
            self._is_stalled = not written
        return written

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  All else is the stream's.
        return getattr(self._stream, name)

    def _write_all(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()
        while True:
            with self._changed:
                self._is_busy = False
                self._is_stalled &= bool(self._texts)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._texts)
                text = "".join([_LEFT_OUT] * self._is_incomplete + [*self._texts])
                self._texts.clear()
                self._is_busy, self._is_incomplete = True, False
            self._write(text.encode(self._stream.encoding, TYPABLE))

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # Another process has made the shared pipe non-blocking.
                select.select([], [self._descriptor], [])
            except OSError as error:
                self._is_incomplete = True
                if error.errno in _NO_READER:
                    self._hang_up()
                return

    def _hang_up(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor)  # What is still in the stream's buffer goes there too.
        os.close(nowhere)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            os.kill(os.getpid(), signal.SIGHUP)


def printable(text: str) -> str:
    """Return `text` with control characters escaped, except for line ends and tabs, and with paths as `typable`."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in typable(text)
    )


def print_json(value: object) -> None:
    """Print plain values as JSON."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print a table of plain lines, whose columns are as wide as their widest cells."""
    printed = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*printed, strict=True)]
    for row in printed:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(f"{line.rstrip()}\n")
