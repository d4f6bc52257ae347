"""The page of a task with a command: the sliders are followed, and so is what walks away."""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support import commanded_task
from support.browser import drawn, field, needs_chromium, read, viewing
from support.commands import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

PLAY = (sys.executable, "-m", "shoal", "play", f"{commanded_task.__file__}:Sliding", "--viewer", "web")
PLAY += ("--policy", "zero", "--num-envs", "1", "--gpu-ids", "None")


def ball(page: Page) -> float:
    """How far to the right of the middle the red ball is [pixels]; NaN where it is not seen."""
    red, green, blue = drawn(page).transpose(2, 0, 1)
    columns = np.flatnonzero(((red > green + 80) & (red > blue + 80)).any(axis=0))
    return float(columns.mean()) - red.shape[1] / 2 if len(columns) else math.nan


@needs_chromium
@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.soak
def test_a_policy_follows_the_sliders_and_the_page_the_environment(tmp_path: Path) -> None:
    with viewing(PLAY, tmp_path) as (_, page):
        assert wait_until(lambda: not math.isnan(ball(page)))
        assert wait_until(lambda: 0.0 < float(read(page, "speed [m/s]")) < 1.0)  # As the task drew it.
        page.get_by_label("By hand").check()
        speed = field(page, "speed [m/s]")
        speed.fill("-0.05")
        speed.press("Enter")
        assert wait_until(lambda: read(page, "Reward") == "-0.050")
        page.get_by_role("button", name="Reset").click()
        assert wait_until(lambda: ball(page) < -60)
        page.get_by_role("button", name="Pause").click()  # A busy machine takes its time to draw.
        page.get_by_label("Follow it").check()
        assert wait_until(lambda: abs(ball(page)) < 50)
        page.get_by_label("Follow it").uncheck()
        assert wait_until(lambda: not abs(ball(page)) < 50)


@needs_chromium
@pytest.mark.spawn
@pytest.mark.slow
def test_keys_steer_and_pause_wherever_the_focus_is_and_rewards_are_drawn(tmp_path: Path) -> None:
    with viewing(PLAY, tmp_path) as (_, page):
        assert wait_until(lambda: float(read(page, "speed [m/s]")) > 0.0)
        for _ in range(3):  # Each a tenth of the 2 m/s.
            page.keyboard.press("s")
        assert wait_until(lambda: read(page, "Reward") == "-0.600")
        assert page.get_by_label("By hand").is_checked()
        page.get_by_label("By hand").focus()
        for key in "wwwx":
            page.keyboard.press(key)
        page.keyboard.press("w")
        assert wait_until(lambda: read(page, "Reward") == "0.200")
        page.keyboard.press(" ")
        page.get_by_role("button", name="Play").wait_for()
        assert page.get_by_label("By hand").is_checked()
        page.get_by_role("tab", name="Rewards").click()
        rows = page.locator("span", has_text=re.compile("^(Reward|speed)$"))
        assert [rows.nth(row).locator("xpath=../span[3]").inner_text() for row in range(2)] == ["0.2", "0.2"]
        legend = page.locator(".u-legend .u-label")
        assert legend.all_inner_texts() == ["s", "Reward"]
        page.get_by_label("speed", exact=True).check()
        assert wait_until(lambda: legend.all_inner_texts() == ["s", "Reward", "speed"])
