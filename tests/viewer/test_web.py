"""The page in a real browser: a policy that was trained here plays, stops, steps, and gets better."""

from __future__ import annotations

import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest
from support.browser import drawn, needs_chromium, read, viewing
from support.commands import Running, marked, start, wait_until
from support.ports import listeners
from support.stories import carry_out

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from playwright.sync_api import Page

TASK = "Cartpole-Swingup"
PLAY = (sys.executable, "-m", "shoal", "play", TASK, "--viewer", "web", "--gpu-ids", "None")

pytestmark = [pytest.mark.spawn, pytest.mark.slow]


def served(running: Running) -> str:
    """The address that a viewer prints."""
    return running.read_until("Viewer:").split()[1]


def port_of(url: str) -> int:
    """The port in an address."""
    return int(url.rpartition(":")[2])


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a short training in it."""
    path = tmp_path_factory.mktemp("viewer")
    carry_out(path / "logs", TASK, "--max-iterations", "1")
    return path


@pytest.fixture(scope="module")
def viewer(where: Path) -> Iterator[tuple[Running, Page]]:
    """A viewer of that training, and a visitor."""
    with viewing(PLAY, where) as running_and_page:
        yield running_and_page


def carts(page: Page) -> np.ndarray:
    """Where the picture has the colour of the carts. Shape (height, width)."""
    red, green, blue = drawn(page).transpose(2, 0, 1)
    return (blue > red + 40) & (blue > green + 15)


@needs_chromium
def test_carts_are_drawn_and_move(viewer: tuple[Running, Page]) -> None:
    _, page = viewer
    assert wait_until(lambda: carts(page).sum() > 200, timeout=60.0)
    before = carts(page)
    assert wait_until(lambda: (carts(page) ^ before).sum() > 200, timeout=30.0)
    assert read(page, "Checkpoint") == "000001"


def stands_still(page: Page) -> bool:
    """Whether a second changes nothing but edges, where the browser changes its resolution."""
    step, before = read(page, "Step"), carts(page)
    page.wait_for_timeout(1000)
    return read(page, "Step") == step and bool((carts(page) ^ before).sum() <= 0.02 * before.sum())


@needs_chromium
def test_pause_stops_them_and_step_moves_them_once(viewer: tuple[Running, Page]) -> None:
    _, page = viewer
    assert not stands_still(page)
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Play").wait_for()
    assert wait_until(lambda: stands_still(page), timeout=30.0)
    step = int(read(page, "Step"))
    page.get_by_role("button", name="Step").click()
    assert wait_until(lambda: int(read(page, "Step")) == step + 1, timeout=10.0)
    page.get_by_role("button", name="Reset").click()
    assert wait_until(lambda: int(read(page, "Step")) == 0, timeout=10.0)
    page.get_by_role("button", name="Play").click()
    assert wait_until(lambda: int(read(page, "Step")) > 1, timeout=10.0)


@pytest.mark.soak
@needs_chromium
def test_a_newer_checkpoint_is_shown_as_it_appears(viewer: tuple[Running, Page], where: Path) -> None:
    _, page = viewer
    assert read(page, "Checkpoint") == "000001"
    carry_out(where / "logs", TASK, "--resume", "--max-iterations", "2")
    assert wait_until(lambda: read(page, "Checkpoint") == "000002", timeout=20.0)
    # Without the tick box only the button loads one.
    page.get_by_label("Load newer ones").uncheck()
    page.wait_for_timeout(500)
    carry_out(where / "logs", TASK, "--resume", "--max-iterations", "3")
    page.wait_for_timeout(2500)
    assert read(page, "Checkpoint") == "000002"
    page.get_by_role("button", name="Load the newest").click()
    assert wait_until(lambda: read(page, "Checkpoint") == "000003", timeout=10.0)


@needs_chromium
def test_nobody_else_is_reached_and_nobody_else_reaches_it(viewer: tuple[Running, Page]) -> None:
    running, page = viewer
    urls = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in urls if not name.startswith((page.url, "data:", "blob:"))] == []
    assert {each.is_local for each in listeners(marked(running.mark))} == {True}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak)]
)
def test_a_signal_ends_it_and_nothing_is_left(where: Path, number: signal.Signals, code: int) -> None:
    running = start(PLAY, where)
    port = port_of(served(running))
    running.signal_itself(number)
    ended = running.end()
    assert (ended.code, ended.left_processes, ended.left_files) == (code, [], []), ended.stderr
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.soak
def test_a_taken_port_is_passed_over(where: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        running = start([*PLAY, "--viewer-port", str(port), "--agent", "zero"], where)
        url = served(running)
        line = running.read_until("ssh")
        running.signal_itself(signal.SIGINT)
        assert running.end().code == 0
    assert port_of(url) > port
    assert f"ssh -L {port_of(url)}:127.0.0.1:{port_of(url)} {socket.gethostname()}" in line
