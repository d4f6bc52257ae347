"""MuJoCo's own window, on a display without a screen, whose picture lies in a file."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import commanded_task
from support.commands import run, start, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PLAY = (sys.executable, "-m", "shoal", "play", f"{commanded_task.__file__}:Sliding", "--viewer", "native")
PLAY += ("--policy", "zero", "--gpu-ids", "None")
WIDTH, HEIGHT = 640, 480

pytestmark = [
    pytest.mark.spawn,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("Xvfb") is None, reason="Xvfb is not installed: apt-get install xvfb"),
]


@pytest.fixture
def display(tmp_path: Path) -> Iterator[str]:
    """A display whose picture lies in `tmp_path / "Xvfb_screen0"`."""
    screen = ["-screen", "0", f"{WIDTH}x{HEIGHT}x24", "-fbdir", str(tmp_path)]
    words = ["Xvfb", "-displayfd", "1", "-nolisten", "tcp", *screen]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        yield f":{server.stdout.readline().strip()}"
        server.terminate()


def ball(tmp_path: Path) -> float:
    """How far to the right the red ball is [pixels]; 0 where it is not seen."""
    # The picture lies behind all else in the file, four bytes a pixel: blue, green, red and nothing.
    content = np.fromfile(tmp_path / "Xvfb_screen0", np.uint8)[-WIDTH * HEIGHT * 4 :].reshape(HEIGHT, WIDTH, 4)
    blue, green, red, _ = content.transpose(2, 0, 1).astype(int)
    columns = np.flatnonzero(((red > green + 60) & (red > blue + 60)).any(axis=0))
    return float(columns.mean()) if len(columns) else 0.0


def test_the_window_shows_what_moves_and_a_signal_closes_it(tmp_path: Path, display: str) -> None:
    running = start(PLAY, tmp_path, {"DISPLAY": display})
    running.read_until("The window is open")
    assert wait_until(lambda: ball(tmp_path) > 0)
    before = ball(tmp_path)
    assert wait_until(lambda: abs(ball(tmp_path) - before) > 5)
    running.signal_itself(signal.SIGINT)
    ended = running.end()
    assert (ended.code, ended.left_processes, ended.left_files) == (0, [], []), ended.stderr


def test_a_display_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    ended = run(PLAY, tmp_path, {"DISPLAY": ":4711"})
    assert ended.code == 2
    assert ended.last_line.startswith("Error: No window can be opened: the display that DISPLAY names does not answer.")
