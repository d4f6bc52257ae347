"""Standard output and error that neither end nor hold up a command: closed, full, limited to ASCII, or not read."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import shutil
import signal
import sys
import threading
from collections import deque
from typing import Any, TextIO, cast

PATIENCE_S = 0.5
"""How long a print waits until it is written, unless an earlier one has waited in vain [s]."""
LAST_PATIENCE_S = 3.0
"""How long each stream gets at the end of the command [s]."""
_MOST_TEXTS = 1000
"""So many texts wait to be written; beyond that the newest are kept."""
_LEAST_COLUMNS = 40
"""For narrower terminals, tyro takes minutes and gigabytes to lay out its help."""
_NOBODY_READS = (errno.EPIPE, errno.EIO)
"""What writing to a pipe without a reader answers, and to a terminal that is gone."""
_LEFT_OUT = "(Output is missing here: it was not read in time, or could not be written.)\n"


def mend_streams() -> None:
    """Point closed standard streams at the null device, escape what an encoding lacks, and widen narrow terminals."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004  Standard error.
        os.set_inheritable(descriptor, True)  # noqa: FBT003
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, stream)
    columns = shutil.get_terminal_size().columns
    if columns < _LEAST_COLUMNS or "COLUMNS" in os.environ:  # rich prints nothing where that is 0.
        os.environ["COLUMNS"] = str(max(columns, _LEAST_COLUMNS))


def release_output() -> None:
    """From now on write in threads of their own: a reader that has stopped must not stop this process.

    A closed terminal or pipe counts as a SIGHUP, and output then goes nowhere. Where SIGHUP is ignored, as under
    `nohup`, work goes on. Text that cannot be written to a file is left out.
    """
    before = sys.stdout, sys.stderr
    if any(isinstance(stream, _Stream) for stream in before):
        return

    def restore() -> None:
        sys.stdout, sys.stderr = before

    os.register_at_fork(after_in_child=restore)  # No thread survives a fork.
    sys.stdout, sys.stderr = (cast("TextIO", _Stream(stream)) for stream in before)


def finish_output() -> bool:
    """Give what was printed a last time to be written; return whether it was."""
    written = [stream.wait(LAST_PATIENCE_S) for stream in (sys.stdout, sys.stderr) if isinstance(stream, _Stream)]
    return all(written)


class _Stream:
    """A stream of text that is written by a thread."""

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
            self.wait(PATIENCE_S)

    def wait(self, seconds: float) -> bool:
        """Wait until everything is written, but no longer than so long [s]; return whether it is."""
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
            self._write(text.encode(self._stream.encoding, "backslashreplace"))

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # Whoever shares this pipe or terminal has made it non-blocking.
                select.select([], [self._descriptor], [])
            except OSError as error:
                self._is_incomplete = True
                if error.errno in _NOBODY_READS:
                    self._hang_up()
                return

    def _hang_up(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._descriptor)  # What is still in the stream's buffer goes there too.
        os.close(nowhere)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            os.kill(os.getpid(), signal.SIGHUP)


def printable(text: str) -> str:
    """Return `text` with everything escaped that a terminal would act on, but for line ends and tabs."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )
