"""The live view on a real terminal: a pseudo-terminal that the command takes for one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN
from support.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spawn

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


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
