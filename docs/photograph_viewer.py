"""Takes docs/images/viewer.png: the page that `play --viewer web` shows of quadrupeds that hold their pose on terrain.

apt-get install chromium
python docs/photograph_viewer.py
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).parent / "images" / "viewer.png"
TASK = ("Quadruped-Velocity-Rough", "--policy", "zero", "--num-envs", "2", "--seed", "3")
VIEWER = (sys.executable, "-m", "shoal", "play", *TASK, "--viewer", "web")
WITHOUT_A_GPU = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
SIZE = {"width": 1000, "height": 680}
STANDS_AFTER_S = 4
"""When the robots have landed, with a browser that draws by the processor [s]."""


def main() -> None:
    """Start the viewer, visit it, take the picture, and end it."""
    with subprocess.Popen(VIEWER, stdout=subprocess.PIPE, text=True) as viewer:
        try:
            url = next(line.split()[1] for line in viewer.stdout or () if line.startswith("Viewer:"))
            take(url)
        finally:
            viewer.send_signal(signal.SIGINT)


def take(url: str) -> None:
    """Take a picture of a page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=WITHOUT_A_GPU)
        page = browser.new_page(viewport=SIZE)
        page.goto(url)
        page.wait_for_selector("canvas")
        page.locator(".mantine-Notification-closeButton").click()  # That the processor draws.
        page.get_by_label("Follow it").check()
        page.get_by_role("tab", name="Visualization").click()
        for box in ("Contact forces", "Height scan"):
            page.get_by_label(box).check()
        page.get_by_role("tab", name="Rewards").click()
        page.wait_for_timeout(1000 * STANDS_AFTER_S)
        page.keyboard.press("Space")
        page.mouse.move(300, 400)
        for _ in range(12):
            page.mouse.wheel(0, -100)
        page.wait_for_timeout(3000)  # The browser sharpens what stands still.
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
