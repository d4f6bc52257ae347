"""A pseudo-terminal that a command takes for a real one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

from support.commands import SURROUNDINGS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TIMEOUT_S = 240.0


class Terminal:
    """A command on a terminal of 40 lines of 100 columns, which is its controlling one, so that Ctrl-C works."""

    def __init__(self, words: tuple[str, ...], where: Path, environ: Mapping[str, str] | None = None) -> None:
        self._side, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        whole = {**os.environ, **SURROUNDINGS, "TERM": "xterm-256color", **(environ or {})}
        del whole["COLUMNS"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *words, "--log-root", str(where / "logs")],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=where,
            env=whole,
            start_new_session=True,
        )
        os.close(inner)
        self.text = ""

    def read_until(self, pattern: str) -> None:
        """Read what is printed until it matches."""
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.text):
            assert self._read(deadline), f"It ended, or was silent for too long, after: {self.text[-2000:]}"

    def press_ctrl_c(self) -> None:
        """Do what the key does: the terminal sends SIGINT to all that run on it."""
        os.write(self._side, b"\x03")

    def press_ctrl_s(self) -> None:
        """Pause the terminal: what is written to it waits."""
        os.write(self._side, b"\x13")

    def close(self) -> None:
        """Close the terminal while the command runs in it."""
        os.close(self._side)

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._read(deadline):
            pass
        os.close(self._side)
        return self.process.wait(timeout=30)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._side], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._side, 65536) if ready else b""
        except OSError:  # Linux says so when nobody holds the inner side any more.
            data = b""
        self.text += data.decode("utf-8", errors="replace")
        return bool(data)


# A session that has just begun gets its terminal by opening it; then the command takes the place of this program.
_TAKE_TERMINAL = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"
