"""The page in a real browser: a policy that was trained here plays, stops, steps, and gets better."""

from __future__ import annotations

import json
import signal
import socket
import struct
import sys
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import viser
from support.browser import drawn, needs_chromium, read, viewing
from support.commands import Running, marked, start, wait_until
from support.documented import ROOT
from support.ports import listeners
from support.stories import carry_out
from support.terminal import Terminal
from support.tunnel import tunnel_to
from websockets.frames import Frame, Opcode

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
    port = urlsplit(url).port
    assert port is not None
    return port


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
    assert wait_until(lambda: carts(page).sum() > 200)
    before = carts(page)
    assert wait_until(lambda: (carts(page) ^ before).sum() > 200)
    assert read(page, "Checkpoint").split()[0] == "000001"


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
    assert wait_until(lambda: stands_still(page))
    step = int(read(page, "Step"))
    page.get_by_role("button", name="Step", exact=True).click()
    assert wait_until(lambda: int(read(page, "Step")) == step + 1)
    page.get_by_role("button", name="Reset").click()
    assert wait_until(lambda: int(read(page, "Step")) == 0)
    page.get_by_role("button", name="Play").click()
    assert wait_until(lambda: int(read(page, "Step")) > 1)


@needs_chromium
def test_episodes_begin_again_by_their_seed_and_the_page_says_how_the_training_ended(
    viewer: tuple[Running, Page], where: Path
) -> None:
    _, page = viewer
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Play").wait_for()
    seed = int(read(page, "Seed"))
    begun: list[str] = []
    for button, expected in (("Reset", seed + 1), ("Again the same", seed + 1), ("Reset", seed + 2)):
        page.get_by_role("button", name=button).click()
        assert wait_until(lambda expected=expected: int(read(page, "Seed")) == expected)
        page.get_by_role("button", name="Step", exact=True).click()
        assert wait_until(lambda: int(read(page, "Step")) == 1)
        begun.append(read(page, "Reward"))
    assert begun[0] == begun[1] != begun[2]
    page.get_by_role("button", name="Play").click()
    (record,) = where.glob("logs/*/*/run.json")
    text = record.read_text()
    try:
        launches = json.loads(text)
        launches["launches"][-1]["ended"] |= {"exit_code": 71, "last_line": "Error: out of <b>memory</b>."}
        record.write_text(json.dumps(launches))
        page.get_by_text("The training ended with exit code 71: Error: out of <b>memory</b>.").wait_for()
    finally:
        record.write_text(text)


@pytest.mark.soak
@needs_chromium
def test_a_newer_checkpoint_is_shown_as_it_appears(viewer: tuple[Running, Page], where: Path) -> None:
    _, page = viewer
    assert read(page, "Checkpoint").split()[0] == "000001"
    carry_out(where / "logs", TASK, "--resume", "--max-iterations", "2")
    assert wait_until(lambda: read(page, "Checkpoint").split()[0] == "000002")
    # Without the tick box only the button loads one.
    page.get_by_label("Load newer ones").uncheck()
    page.wait_for_timeout(500)
    carry_out(where / "logs", TASK, "--resume", "--max-iterations", "3")
    page.wait_for_timeout(2500)
    assert read(page, "Checkpoint").split()[0] == "000002"
    page.get_by_role("button", name="Load the newest").click()
    assert wait_until(lambda: read(page, "Checkpoint").split()[0] == "000003")


@needs_chromium
def test_nobody_else_is_reached_and_nobody_else_reaches_it(viewer: tuple[Running, Page]) -> None:
    running, page = viewer
    urls = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    own = page.evaluate("location.origin") + "/"
    assert [name for name in urls if not name.startswith((own, "data:", "blob:"))] == []
    assert {each.is_local for each in listeners(marked(running.mark))} == {True}


def moves(page: Page) -> bool:
    """Whether the page shows further steps."""
    step = read(page, "Step")
    return wait_until(lambda: read(page, "Step") != step)


@needs_chromium
@pytest.mark.soak
def test_the_page_can_be_reloaded_and_reconnects_behind_a_tunnel(viewer: tuple[Running, Page]) -> None:
    _, shown = viewer
    assert shown.context.browser is not None
    url = urlsplit(shown.url)
    with tunnel_to(port_of(shown.url)) as tunnel, shown.context.browser.new_context() as context:
        page = context.new_page()
        page.goto(f"http://localhost:{tunnel.port}/")
        assert "The viewer needs the token of the address that it printed" in page.content()
        page.goto(f"http://localhost:{tunnel.port}/?{url.query}")
        assert moves(page)
        page.reload()
        assert moves(page)
        page.goto(f"http://localhost:{tunnel.port}/")
        assert moves(page)
        before = [*tunnel.open]
        tunnel.cut()
        assert wait_until(lambda: bool(tunnel.open) and not tunnel.open & {*before})
        assert moves(page)
        assert page.evaluate("document.cookie") == ""


@contextmanager
def other_site() -> Iterator[HTTPServer]:
    """Serve pages that hold nothing."""
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@needs_chromium
def test_a_page_of_another_site_in_the_same_browser_cannot_connect(viewer: tuple[Running, Page]) -> None:
    _, shown = viewer
    assert shown.context.browser is not None
    connects = """url => new Promise(resolve => {
        const socket = new WebSocket(url);
        socket.onopen = () => resolve(true);
        socket.onerror = () => resolve(false);
    })"""
    url = urlsplit(shown.url)
    socket_url = f"ws://{url.netloc}/"
    with other_site() as other, shown.context.browser.new_context() as context:
        page = context.new_page()
        page.goto(shown.url)
        assert page.evaluate(connects, socket_url)
        for site in (f"http://localhost:{other.server_port}/", f"http://evil.localhost:{other.server_port}/"):
            page.goto(site)
            assert not page.evaluate(connects, socket_url)
            assert not page.evaluate(connects, f"{socket_url}?{url.query}")
        page.goto(f"http://evil.localhost:{url.port}/?{url.query}")  # A name of another that leads here.
        assert "The viewer does not answer to this host name" in page.content()


def connect(url: str) -> socket.socket:
    """Open a WebSocket to a page's server, as viser's page does."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname, parts.port))
    lines = [
        f"GET /?{parts.query} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: viser-v{viser.__version__}",
    ]
    connection.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
    assert connection.recv(12) == b"HTTP/1.1 101"
    return connection


def garbage() -> list[bytes]:
    """What no page sends: frames and messages that are none."""
    binary = [b"", bytes(range(256)) * 64, b"\x91" * 5000, b"\x81\xa4type\xa4Gone", b"\x81\xa4type\xb0GuiUpdateMessage"]
    frames = [Frame(Opcode.BINARY, data).serialize(mask=True) for data in binary]
    # Text, an unmasked frame, one that announces more than ever comes, bytes that are no frame, and nothing.
    return [
        *frames,
        Frame(Opcode.TEXT, b"{}").serialize(mask=True),
        b"\x82\x01x",
        b"\x82\xff" + b"\x7f" * 12,
        b"\xff" * 999,
        b"",
    ]


@pytest.mark.soak
@needs_chromium
def test_garbage_disconnections_and_clients_that_never_read_do_not_stop_it(viewer: tuple[Running, Page]) -> None:
    _, page = viewer
    with ExitStack() as held:
        for _ in range(200):
            held.enter_context(connect(page.url))  # It is sent each frame, and reads none.
        assert moves(page)
        for data in garbage():
            held.enter_context(connect(page.url)).sendall(data)
            raw = held.enter_context(socket.create_connection(("127.0.0.1", port_of(page.url))))
            raw.sendall(data or b"GET /")  # No request at all.
        assert moves(page)
        for _ in range(50):
            with connect(page.url) as gone:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # A reset.
        assert moves(page)
        held.enter_context(connect(page.url))
    assert moves(page)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 0), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak)]
)
def test_a_signal_ends_it_and_nothing_is_left(where: Path, number: signal.Signals, code: int) -> None:
    running = start(PLAY, where)
    url = served(running)
    port = port_of(url)
    running.signal_itself(number)
    ended = running.end()
    assert (ended.code, ended.left_processes, ended.left_files) == (code, [], []), ended.stderr
    token = urlsplit(url).query.removeprefix("token=")
    assert ((ended.stdout + ended.stderr).count(token), len(token)) == (1, 43)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.soak
def test_a_taken_port_is_passed_over(where: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        running = start([*PLAY, "--viewer-port", str(port), "--policy", "zero"], where)
        url = served(running)
        line = running.read_until("ssh")
        running.signal_itself(signal.SIGINT)
        assert running.end().code == 0
    assert port_of(url) > port
    assert line.endswith(f"ssh -L {port_of(url)}:127.0.0.1:{port_of(url)} {socket.gethostname()}\n")


def test_play_in_a_terminal_serves_the_page(tmp_path: Path) -> None:
    terminal = Terminal((*PLAY[:5], "--policy", "zero", "--gpu-ids", "None"), tmp_path)
    terminal.read_until("Viewer: http")
    terminal.press_ctrl_c()
    assert terminal.end() == 0
    assert "Viewer closed." in terminal.text


@pytest.mark.soak
def test_play_in_a_terminal_counts_the_episodes_of_a_task_that_cannot_be_shown(tmp_path: Path) -> None:
    words = (*PLAY[:4], f"{ROOT}/docs/examples/pendulum.py:Pendulum", "--policy", "zero", "--gpu-ids", "None")
    terminal = Terminal(words, tmp_path)
    assert terminal.end() == 0, terminal.text
    assert "Pendulum cannot be shown" in terminal.text
    assert "10 episodes, with 95% intervals: return " in terminal.text
