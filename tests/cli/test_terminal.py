"""The live view on a real terminal: a pseudo-terminal that the command takes for one."""

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

import pytest
from support.commands import SMALL, SURROUNDINGS, TRAIN

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spawn

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
TIMEOUT_S = 240.0


class Terminal:
    """A command on a terminal of 40 lines of 100 columns, which is its controlling one, so that Ctrl-C works."""

    def __init__(self, words: tuple[str, ...], where: Path) -> None:
        self._side, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        environ = {**os.environ, **SURROUNDINGS, "TERM": "xterm-256color"}
        del environ["COLUMNS"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *words, "--log-root", str(where / "logs")],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            cwd=where,
            env=environ,
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


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All that a training of two workers writes to its terminal."""
    words = (*TRAIN, "Cartpole-Swingup", *SMALL, "--max-iterations", "3", "--nproc-per-node", "2")
    terminal = Terminal(words, tmp_path_factory.mktemp("terminal"))
    assert terminal.end() == 0, terminal.text
    return terminal.text


def test_progress_and_reward_are_drawn(spawned: str) -> None:
    for shown in ("Mean reward", "Steps per second", "Learning rate", "━━━"):
        assert shown in spawned
    assert re.search(r"3/3", spawned)


def test_the_view_is_drawn_over_itself(spawned: str) -> None:
    assert "\x1b[1A\x1b[2K" in spawned  # up a line, and clear it
    assert spawned.count("Training Cartpole-Swingup:") == 1


def test_the_cursor_comes_back(spawned: str) -> None:
    assert HIDE_CURSOR in spawned
    assert spawned.rindex(SHOW_CURSOR) > spawned.rindex(HIDE_CURSOR)


def test_what_comes_first_is_what_is_done_and_where(spawned: str) -> None:
    order = ["Training Cartpole-Swingup:", "Run directory:", "All 2 ranks hold the same learner"]
    places = [spawned.index(words) for words in order]
    assert places == sorted(places)


def test_ctrl_c_on_the_keyboard_ends_with_a_checkpoint_and_gives_the_cursor_back(tmp_path: Path) -> None:
    terminal = Terminal((*TRAIN, "Cartpole-Swingup", *SMALL, "--max-iterations", "100000"), tmp_path)
    terminal.read_until(r"Total steps\s+\d")
    terminal.press_ctrl_c()
    assert terminal.end() == 130, terminal.text
    assert "SIGINT: stopping after this iteration" in terminal.text
    assert re.search(r"Error: .*SIGINT ended the run after iteration \d+, with a checkpoint", terminal.text)
    assert "Traceback" not in terminal.text
    assert terminal.text.rindex(SHOW_CURSOR) > terminal.text.rindex(HIDE_CURSOR)
