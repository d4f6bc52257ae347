"""`shoal demo` in a real browser: the robot moves, is pushed, and makes room for another one of the menu."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.browser import drawn, field, needs_chromium, read, viewing
from support.commands import wait_until

from shoal.tasks.registry import POLICIES

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

MENU = list(json.loads((POLICIES / "manifest.json").read_text(encoding="utf-8")))


def changed(page: Page, before: np.ndarray) -> int:
    """How many pixels look different now."""
    return int((np.abs(drawn(page) - before).max(axis=2) > 40).sum())


@needs_chromium
@pytest.mark.spawn
@pytest.mark.slow
def test_the_demo_shows_a_robot_that_moves_and_another_one_of_the_menu(tmp_path: Path) -> None:
    demo = (sys.executable, "-m", "shoal", "demo", "--no-browser")
    with viewing(demo, tmp_path) as (_, page):
        assert read(page, "Checkpoint") == f"{MENU[0]}.pt"
        before = drawn(page)
        assert wait_until(lambda: changed(page, before) > 200)
        page.get_by_role("button", name="Push").click()
        field(page, "Show").click()
        page.get_by_role("option", name=MENU[-1]).click()
        assert wait_until(lambda: read(page, "Checkpoint") == f"{MENU[-1]}.pt")
        step = read(page, "Step")
        assert wait_until(lambda: read(page, "Step") != step)
