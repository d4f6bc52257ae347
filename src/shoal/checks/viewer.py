"""What a viewer needs of the machine: a package, a display, a port."""

from __future__ import annotations

import importlib.util
import socket
from typing import TYPE_CHECKING

from shoal.config.checks import HIGHEST_PORT
from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.config import PlayConfig

PORTS_TRIED = 100
"""How many ports in a row are tried."""


def free_viewer_port(config: PlayConfig) -> int:
    """Return the port that a page can be served on.

    Raises:
        UsageError: The package that makes the page is not installed, or there is no such port.
    """
    if importlib.util.find_spec("viser") is None:
        message = "--viewer web was asked for, but viser is not installed: run `uv add 'shoal[viewer]'`."
        raise UsageError(message)
    return free_port(config.viewer_host, config.viewer_port)


def free_port(host: str, first: int) -> int:
    """Return the first free port of `host` from `first` on.

    Raises:
        UsageError: There is none, or nothing can be served at `host`.
    """
    last = min(first + PORTS_TRIED - 1, HIGHEST_PORT)
    why = ""
    for port in range(first, last + 1):
        try:
            family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as trial:
                # As servers do: connections that have just ended do not keep a port.
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
        except OSError as error:
            why = error.strerror or str(error)
        else:
            return port
    message = (
        f"The viewer cannot be served at {host}, ports {first} to {last} ({why}): pass --viewer-host 127.0.0.1, "
        "or another --viewer-port."
    )
    raise UsageError(message)


def check_display(environ: Mapping[str, str]) -> None:
    """Make sure that a window can be opened.

    Raises:
        UsageError: There is no display.
    """
    if not (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        message = (
            "--viewer native was asked for, but there is no display (DISPLAY is not set): pass --viewer web, and look "
            "at the policy in a browser."
        )
        raise UsageError(message)
