"""What a viewer needs: a free port, a display, a package."""

from __future__ import annotations

import importlib.util
import socket

import pytest

from shoal.checks.optional import check_display, free_viewer_port
from shoal.config import PlayConfig
from shoal.errors import UsageError


def free_port(host: str, first: int) -> int:
    return free_viewer_port(PlayConfig(task="T", viewer_host=host, viewer_port=first))


def test_a_taken_port_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = free_port("127.0.0.1", port)
    assert found > port


def test_a_free_port_is_left_free() -> None:
    port = free_port("127.0.0.1", 20_000)
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_a_host_that_is_not_here_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match=rf"cannot be served at {host}, ports 8080 to 8179 \(.+\): pass"):
        free_port(host, 8080)


def test_a_host_that_is_not_found_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def look_up(*where: object, **_: object) -> None:
        asked.append(where)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(UsageError, match=r"\(Name or service not known\)"):
        free_port("nowhere.invalid", 8080)
    assert len(asked) == 1


def test_the_highest_port_is_the_last_that_is_tried() -> None:
    with pytest.raises(UsageError, match="ports 65535 to 65535"):
        free_port("192.0.2.1", 65535)


def test_a_viewer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"viser is not installed: run `uv add 'shoal\[viewer\]'`"):
        free_viewer_port(PlayConfig(task="T"))


@pytest.mark.parametrize("environ", [{}, {"DISPLAY": ""}])
def test_without_a_display_there_is_the_browser(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"there is no display .* pass --viewer web"):
        check_display(environ)


@pytest.mark.parametrize("name", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_a_display_is_enough(name: str) -> None:
    check_display({name: ":0"})
