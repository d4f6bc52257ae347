"""The page of a task with a camera has the images that the policy observes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from support.browser import needs_chromium, viewing
from support.commands import wait_until

if TYPE_CHECKING:
    from pathlib import Path

PLAY = (sys.executable, "-m", "shoal", "play", "Cartpole-Swingup-Depth", "--viewer", "web", "--policy", "random")
PLAY += ("--num-envs", "1", "--gpu-ids", "None")
BRIGHT = """image => {
    if (!image.naturalWidth) return null
    const canvas = document.createElement("canvas")
    canvas.width = image.naturalWidth
    canvas.height = image.naturalHeight
    const context = canvas.getContext("2d")
    context.drawImage(image, 0, 0)
    const {data, width} = context.getImageData(0, 0, canvas.width, canvas.height)
    const bright = []
    for (let at = 0; at < data.length; at += 4) if (data[at] > 100) bright.push((at / 4) % width)
    return [width, canvas.height, bright]
}"""
"""Size of an image, and the columns of its bright pixels; null while it is exchanged."""


@needs_chromium
@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.soak
def test_the_three_images_that_a_policy_observes_are_shown_and_the_cart_moves_in_them(tmp_path: Path) -> None:
    with viewing(PLAY, tmp_path) as (_, page):
        page.get_by_role("tab", name="Visualization").click()
        page.get_by_text("Observed: policy").wait_for()
        shown = page.locator("img[src^=blob]").last
        seen: list[Any] = []

        def has_moved() -> bool:
            if found := shown.evaluate(BRIGHT):
                seen.append(found)
            return bool(seen) and seen[-1][2] != seen[0][2]

        assert wait_until(has_moved)
        for width, height, bright in seen:
            assert width == 6 * height  # Three of twice their height, beside each other.
            assert {column * 3 // width for column in bright} == {0, 1, 2}
