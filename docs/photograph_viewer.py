"""Takes docs/images/viewer.png: the page of `shoal demo`, where the robot walks as it was steered, and its rewards.

apt-get install chromium
python docs/photograph_viewer.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent / "images" / "viewer.png"
DEMO = (sys.executable, "-m", "shoal", "demo", "--no-browser")
WITHOUT_A_GPU = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
SIZE = {"width": 1100, "height": 680}
TERMS = ("track_linear_velocity", "track_angular_velocity")
"""Reward terms that are plotted beside the reward."""
WALKS_S = 20
"""More than the 10 s of a plot, with a browser that draws by the processor [s]."""


def main() -> None:
    """Start the viewer, visit it, take the picture, and end it."""
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, text=True) as viewer:
        try:
            url = next(line.split()[1] for line in viewer.stdout or () if line.startswith("Viewer:"))
            take(url)
        finally:
            viewer.terminate()


def take(url: str) -> None:
    """Take a picture of a page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=WITHOUT_A_GPU)
        page = browser.new_page(viewport=SIZE)
        page.goto(url)
        page.wait_for_selector("canvas")
        page.locator(".mantine-Notification-closeButton").click()  # That the processor draws.
        page.get_by_role("tab", name="Rewards").click()
        for name in TERMS:
            page.get_by_label(name, exact=True).check()
        for _ in range(8):
            page.keyboard.press("w")
        page.mouse.move(300, 400)
        page.mouse.wheel(0, 300)  # The panel hides a part of the middle.
        page.wait_for_timeout(1000 * WALKS_S)
        page.keyboard.press(" ")
        page.get_by_role("tab", name="Rewards").scroll_into_view_if_needed()
        page.wait_for_timeout(3000)  # The browser sharpens what stands still.
        page.screenshot(path=PICTURE)
        browser.close()
    with Image.open(PICTURE) as taken:
        taken.quantize(256).save(PICTURE, optimize=True)  # A third of the size.


if __name__ == "__main__":
    main()
