"""Access to the web viewer: each request needs the token, a name of this machine, and no page of another site."""

from __future__ import annotations

import http.client
import socket
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio import server as websockets_server

from shoal.config import PlayConfig
from shoal.errors import ShoalError
from shoal.viewer import web
from shoal.viewer.access import Guard

if TYPE_CHECKING:
    from collections.abc import Iterator

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


class Visited:
    """A viewer, and what it answers."""

    def __init__(self, port: int, token: str) -> None:
        """Name the viewer."""
        self.port, self.token = port, token

    def get(
        self, path: str, *headers: tuple[str, str], host: str | None = None, at: str = "127.0.0.1"
    ) -> http.client.HTTPResponse:
        """Return the answer to a request under the name of a host and with further headers."""
        connection = http.client.HTTPConnection(at, self.port, timeout=30)
        connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
        for name, value in [("Host", host if host is not None else f"127.0.0.1:{self.port}"), *headers]:
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse()

    def statuses(self, *headers: tuple[str, str], host: str | None = None, at: str = "127.0.0.1") -> set[int]:
        """Return the answers to a request for the page, and for a WebSocket, both with the token."""
        path = f"/?token={self.token}"
        return {self.get(path, *headers, *more, host=host, at=at).status for more in ((), UPGRADE.items())}


def visited(viewer_host: str) -> Iterator[Visited]:
    """Serve an empty page at a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with web._served(PlayConfig(task="T", viewer_host=viewer_host, viewer_port=port), label="T") as (server, token):
        yield Visited(server.get_port(), token)


@pytest.fixture(scope="module")
def viewer() -> Iterator[Visited]:
    """A viewer for this machine."""
    yield from visited("127.0.0.1")


@pytest.fixture(scope="module")
def open_viewer() -> Iterator[Visited]:
    """A viewer for the network."""
    yield from visited("0.0.0.0")  # noqa: S104  It needs the token, and answers only this test.


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "LOCALHOST:80", "127.0.0.2:1", "[::1]:9", "localhost:40000", socket.gethostname()],
)
def test_this_machine_is_served_at_any_port_as_behind_a_tunnel(viewer: Visited, host: str) -> None:
    assert viewer.statuses(host=host) == {200, 101}


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        f"{socket.gethostname()}.evil.example",
        "me@localhost",
        "localhost:80:80",
        "192.0.2.1",
        "[::1",
        "[::]]",
        "[2001:db8::1]",
        "0.0.0.0",  # noqa: S104
        "",
        "localhost evil.example",
        "\xe4.example",
    ],
)
def test_a_foreign_host_is_refused_as_after_dns_rebinding(viewer: Visited, host: str) -> None:
    assert viewer.statuses(host=host) == {403}


def test_no_host_and_two_hosts_are_refused(viewer: Visited) -> None:
    assert viewer.statuses(("Host", "127.0.0.1")) == {403}
    with socket.create_connection(("127.0.0.1", viewer.port), timeout=30) as raw:
        raw.sendall(f"GET /?token={viewer.token} HTTP/1.1\r\n\r\n".encode())
        assert raw.recv(100).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "http://localhost:{port}",
        "http://127.0.0.1",
        "http://127.0.0.1:{port}0",
        "http://127.0.0.1:{port}.evil.example",
        "http://evil.example@127.0.0.1:{port}",
        "file://",
        "ws://127.0.0.1:{port}",
    ],
)
def test_a_page_of_another_site_is_refused(viewer: Visited, origin: str) -> None:
    assert viewer.statuses(("Origin", origin.format(port=viewer.port))) == {403}


def test_its_own_page_is_served_and_only_with_one_origin(viewer: Visited) -> None:
    own = ("Origin", f"http://127.0.0.1:{viewer.port}")
    assert viewer.statuses(own) == {200, 101}
    assert viewer.statuses(("Origin", "http://localhost:9"), host="localhost:9") == {200, 101}
    assert viewer.statuses(own, own) == {403}
    assert viewer.statuses(own, ("Origin", "http://evil.example")) == {403}


@pytest.mark.parametrize(
    "path",
    ["/", "/index.html", "/?token=", "/?token=wrong", "/?token=%C3%A4", "/?Token={token}", "/{token}", "//[?token"],
)
def test_without_the_token_nothing_is_served(viewer: Visited, path: str) -> None:
    path = path.format(token=viewer.token)
    for more in ((), UPGRADE.items()):
        answer = viewer.get(path, *more)
        assert answer.status == 403
        assert answer.read() == b"The viewer needs the token of the address that it printed: open that address.\n"


def test_the_page_gets_a_cookie_that_no_script_and_no_other_site_can_use(viewer: Visited) -> None:
    answer = viewer.get(f"/?token={viewer.token}", host="localhost:9000")
    cookie, *attributes = str(answer.headers["Set-Cookie"]).split("; ")
    assert cookie == f"shoal-viewer-9000={viewer.token}"
    assert attributes == ["Path=/", "HttpOnly", "SameSite=Strict"]
    assert viewer.token.encode() not in answer.read()
    others = 'a="b;c"; =; _xsrf=2|1:0|x; shoal-viewer-80=other'
    for more, status in (((), 200), (UPGRADE.items(), 101)):
        served = viewer.get("/", ("Cookie", f"{others}; {cookie}"), *more, host="localhost:9000")
        assert (served.status, served.headers["Set-Cookie"]) == (status, None)
        assert viewer.get("/", ("Cookie", f"{others}; {cookie}"), *more, host="localhost:9001").status == 403
        assert viewer.get("/", ("Cookie", "shoal-viewer-9000=\xe4"), *more, host="localhost:9000").status == 403


def test_each_viewer_has_a_token_of_its_own() -> None:
    tokens = {Guard("127.0.0.1").token for _ in range(10)}
    assert len(tokens) == 10
    assert min(map(len, tokens)) >= 43  # 256 bits.


def test_a_viewer_for_the_network_answers_to_addresses_but_not_to_foreign_names(open_viewer: Visited) -> None:
    assert open_viewer.statuses(host="0.0.0.0:80") == {200, 101}
    assert open_viewer.statuses(host="localhost") == {200, 101}
    assert open_viewer.statuses(host="evil.example") == {403}


def own_address() -> str:
    """Return an address of this machine that is no loopback one; no datagram is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("This machine has no network.")
        return probe.getsockname()[0]


def test_over_the_network_any_address_is_its_own_as_behind_a_forwarded_port(open_viewer: Visited) -> None:
    here = own_address()
    assert open_viewer.statuses(host=f"{here}:1", at=here) == {200, 101}
    assert open_viewer.statuses(host="192.0.2.1", at=here) == {200, 101}
    assert open_viewer.statuses(host="evil.example", at=here) == {403}
    assert open_viewer.get("/", host=here, at=here).status == 403


def test_a_viser_that_cannot_be_guarded_is_refused() -> None:
    serve = websockets_server.serve
    with pytest.raises(ShoalError, match="cannot guard: install viser"), Guard("127.0.0.1").installed():
        pass
    assert websockets_server.serve is serve


def test_the_printed_address_has_the_token_once() -> None:
    local = web.viewer_urls("127.0.0.1", 8080, "T")
    assert local == [
        "Viewer: http://127.0.0.1:8080/?token=T (Ctrl-C ends it)",
        f"From another machine, first run: ssh -L 8080:127.0.0.1:8080 {socket.gethostname()}",
    ]
    assert web.viewer_urls("0.0.0.0", 1, "T") == [  # noqa: S104
        f"Viewer: http://{socket.gethostname()}:1/?token=T (Ctrl-C ends it)"
    ]
    assert web.viewer_urls("2001:db8::1", 1, "T") == ["Viewer: http://[2001:db8::1]:1/?token=T (Ctrl-C ends it)"]
