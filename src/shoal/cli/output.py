"""Standard output and error that never end or block a command: closed, full, limited to ASCII, or not read."""

from __future__ import annotations

import errno
import io
import json
import os
import select
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console, RenderableType
from rich.text import Text

from shoal.cli.start import ENDING
from shoal.errors import ShoalError
from shoal.text import TYPABLE, printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PATIENCE_S = 0.5
"""Time that text waits for a reader that does not read, once the output is released [s]."""
LAST_PATIENCE_S = 3.0
"""The same for the error that ends a command [s]."""
_LEAST_COLUMNS = 40
_NO_READER = (errno.EPIPE, errno.EIO)
"""Errors of writing to a pipe without a reader, and to a closed terminal."""
_LEFT_OUT = b"(Output is missing here: it was not read in time, or could not be written.)\n"


class _Output(io.RawIOBase):
    """Standard output or error. Once released, it drops what is not read in time or cannot be written."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._target = _opened_without_blocking(descriptor)
        self._is_incomplete = False
        self.is_stalled = False
        """Whether its reader did not read in time."""
        self.patience_s: float | None = None
        """Time that text waits for the reader [s]; None before the release: as long as it takes."""

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: ReadableBuffer, /) -> int:
        left = _LEFT_OUT * self._is_incomplete + bytes(data)
        self._is_incomplete = False
        try:
            while left:
                patience = 0.0 if self.is_stalled and self.patience_s == PATIENCE_S else self.patience_s
                self.is_stalled = not select.select([], [self._target], [], patience)[1]
                if self.is_stalled:
                    break
                left = self._written(left)
        except OSError as error:
            if self.patience_s is None:
                raise
            if error.errno in _NO_READER:
                self._hang_up()
        self._is_incomplete = bool(left)
        return len(bytes(data))

    def _written(self, data: bytes) -> bytes:
        """Write some of the data, and return what is left."""
        try:
            return data[os.write(self._target, data[: select.PIPE_BUF]) :]
        except BlockingIOError:
            return data

    def _hang_up(self) -> None:
        """Write to nowhere from now on, and raise SIGHUP unless it is ignored, as under `nohup`."""
        self._target = os.open(os.devnull, os.O_WRONLY)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            os.kill(os.getpid(), signal.SIGHUP)


def _opened_without_blocking(descriptor: int) -> int:
    """Open a pipe or a terminal again for writes that do not block; other processes share the first opening."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        try:
            return os.open(f"/dev/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:  # It has no reader, or belongs to another user.
            pass
    return descriptor


def prepare_streams() -> None:
    """Point closed standard streams at the null device, escape what an encoding lacks, and widen narrow terminals."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004  Standard error.
        os.set_inheritable(descriptor, True)  # noqa: FBT003
    os.close(descriptor)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        encoding = getattr(getattr(sys, name), "encoding", "utf-8")
        wrapped = io.TextIOWrapper(_Output(descriptor), encoding=encoding, errors=TYPABLE, write_through=True)  # pyright: ignore[reportArgumentType]
        setattr(sys, name, wrapped)
    columns = shutil.get_terminal_size().columns
    if columns < _LEAST_COLUMNS or "COLUMNS" in os.environ:  # rich prints nothing where that is 0.
        os.environ["COLUMNS"] = str(max(columns, _LEAST_COLUMNS))


def release_output(patience_s: float = PATIENCE_S) -> None:
    """Let no reader hold up this process from now on: what is not read in time is left out.

    A closed terminal or pipe raises SIGHUP, and output is discarded. If SIGHUP is ignored, as under `nohup`, work goes
    on. Text that cannot be written to a file is left out.
    """
    for stream in _outputs():
        stream.patience_s = patience_s


def _outputs() -> list[_Output]:
    buffers = [getattr(stream, "buffer", None) for stream in (sys.stdout, sys.stderr)]
    return [buffer for buffer in buffers if isinstance(buffer, _Output)]


def end(code: int, reason: ShoalError | str = "") -> NoReturn:
    """Print the reason, and end this process: the one way in which a command ends, from any thread.

    After a failure nothing may delay the end: no library thread that waits for a lost peer, no signal, no full pipe.
    """
    if threading.current_thread() is threading.main_thread():
        for number in ENDING if code else (signal.SIGHUP,):
            signal.signal(number, signal.SIG_IGN)
    if code:
        release_output(LAST_PATIENCE_S)
    if isinstance(reason, ShoalError):
        print_error(reason)
    elif reason:
        sys.stderr.write(f"{reason}\n")
    if code == 0 and not any(stream.is_stalled for stream in _outputs()):
        sys.exit(0)
    os._exit(code)


def abort(error: ShoalError) -> NoReturn:
    """End this process with an error, from any thread."""
    end(error.exit_code, error)


def print_line(line: RenderableType) -> None:
    """Print one line, or what rich draws."""
    shown = printable(line) if isinstance(line, str) else line
    Console(highlight=False, soft_wrap=True).print(shown, markup=False)


def print_lines(lines: Iterable[RenderableType]) -> None:
    """Print lines."""
    for line in lines:
        print_line(line)


def print_note(text: str) -> None:
    """Print one plain line on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(printable(text), markup=False)


def print_json(value: object) -> None:
    """Print plain values as JSON."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_error(error: ShoalError) -> None:
    """Print the details of an error, and its message as the last line."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if error.details:
        console.print(printable(error.details.rstrip()), markup=False)
    console.print(Text("Error: ", style="bold red") + Text(printable(str(error))))
