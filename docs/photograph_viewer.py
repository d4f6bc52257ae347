"""Takes docs/images/viewer.png: the page that `play --viewer web` shows of the newest policy in `logs`.

apt-get install chromium
train Cartpole-Swingup
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
VIEWER = (sys.executable, "-m", "shoal", "play", "Cartpole-Swingup", "--viewer", "web", "--seed", "3")
WITHOUT_A_GPU = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
SIZE = {"width": 1000, "height": 680}
SWUNG_UP_AFTER_S = 6
"""When some of the poles are up and others are not, with a browser that draws by the processor [s]."""


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
        page.get_by_role("button", name="Reset").click()
        page.wait_for_timeout(1000 * SWUNG_UP_AFTER_S)
        page.get_by_role("button", name="Pause").click()
        page.wait_for_timeout(3000)  # The browser sharpens what stands still.
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
