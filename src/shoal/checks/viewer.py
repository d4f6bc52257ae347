"""Checks of viewers: a package, a display, a port."""

import importlib.util
import socket
from collections.abc import Mapping

from shoal.config import PlayConfig
from shoal.config.checks import HIGHEST_PORT
from shoal.errors import UsageError

PORTS_TRIED = 100


def free_viewer_port(config: PlayConfig) -> int:
    """Return a free port for the web viewer, the first from `--viewer-port` on."""
    if importlib.util.find_spec("viser") is None:
        raise UsageError("--viewer web was asked for, but viser is not installed: run `uv add 'shoal[viewer]'`.")
    host, first = config.viewer_host, config.viewer_port
    last = min(first + PORTS_TRIED - 1, HIGHEST_PORT)
    reason = ""
    for port in range(first, last + 1):
        try:
            family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as trial:
                # Recently closed connections do not block a port, as for servers.
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, socket.gaierror):  # The look-up fails for every port, and may take long.
                break
        else:
            return port
    raise UsageError(
        f"The viewer cannot be served at {host}, ports {first} to {last} ({reason}): pass --viewer-host 127.0.0.1, "
        "or another --viewer-port."
    )


def check_display(environ: Mapping[str, str]) -> None:
    """Refuse a native viewer without a display."""
    if not (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        raise UsageError(
            "--viewer native was asked for, but there is no display (DISPLAY is not set): pass --viewer web, and look "
            "at the policy in a browser."
        )
