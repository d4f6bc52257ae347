"""Debian's Chromium without a window, driven by playwright: what a visitor of a page sees and does."""

from __future__ import annotations

import io
import re
import shutil
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import sync_playwright
from support.commands import start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from playwright.sync_api import Locator, Page
    from support.commands import Running

CHROMIUM = shutil.which("chromium")
PATIENCE_MS = 120_000
"""How long a page is waited for: this is drawn by the processor, among other tests."""
WITHOUT_A_GPU = ("--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
"""As root, and with WebGL drawn by the processor."""

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")


@contextmanager
def visit(url: str) -> Iterator[Page]:
    """Open a page, and wait until it draws."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(WITHOUT_A_GPU))
        try:
            page = browser.new_page(viewport={"width": 900, "height": 600})
            page.set_default_timeout(PATIENCE_MS)
            page.goto(url)
            page.wait_for_selector("canvas")
            yield page
        finally:
            browser.close()


@contextmanager
def viewing(words: Sequence[str], where: Path) -> Iterator[tuple[Running, Page]]:
    """Start a viewer and visit it; leave nothing running, whatever becomes of the test.

    playwright serves one visitor at a time in a process.
    """
    running = start(words, where)
    try:
        with visit(running.read_until("Viewer:").split()[1]) as page:
            yield running, page
    finally:
        running.signal_all(signal.SIGKILL)
        running.end()


def field(page: Page, label: str) -> Locator:
    """Return the field with that label, or the one beside the slider."""
    # viser ties the label to no field: it stands in the same row.
    name = page.locator("label", has_text=re.compile(f"^{re.escape(label)}$"))
    return name.locator("xpath=ancestor::div[2]//input[@type='text' or not(@type)]")


def read(page: Page, label: str) -> str:
    """Return what stands in the field with that label."""
    return field(page, label).input_value()


def drawn(page: Page) -> np.ndarray:
    """Return what the scene looks like now. Shape (height, width, 3), 0 to 255."""
    # A part of the page, and not the canvas by itself: that one would be drawn again, without what lies over it.
    box = page.locator("canvas").first.bounding_box()
    assert box is not None
    return np.asarray(Image.open(io.BytesIO(page.screenshot(clip=box))).convert("RGB")).astype(int)  # pyright: ignore[reportArgumentType]
