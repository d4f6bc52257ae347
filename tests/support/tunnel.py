"""A tunnel to a port of this machine, as `ssh -L` makes one, which can be cut."""

from __future__ import annotations

import contextlib
import shutil
import socket
import socketserver
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Tunnel(socketserver.ThreadingTCPServer):
    """Forwards connections to a free port to another one."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, to: int) -> None:
        """Listen on a free port."""
        super().__init__(("127.0.0.1", 0), _Connection)
        self.to = to
        self.open = set[socket.socket]()

    @property
    def port(self) -> int:
        """The port of its near end."""
        return self.server_address[1]

    def cut(self) -> None:
        """Break all connections; further ones are forwarded."""
        for end in [*self.open]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        tunnel = self.server
        assert isinstance(tunnel, Tunnel)
        near = self.request
        with socket.create_connection(("127.0.0.1", tunnel.to)) as far:
            tunnel.open |= {near, far}
            back = threading.Thread(target=_carry, args=(far, near))
            back.start()
            _carry(near, far)
            back.join()
            tunnel.open -= {near, far}


def _carry(source: socket.socket, to: socket.socket) -> None:
    with (
        contextlib.suppress(OSError),
        source.makefile("rb", buffering=0) as read,
        to.makefile("wb", buffering=0) as write,
    ):
        shutil.copyfileobj(read, write)
    for end in (source, to):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def tunnel_to(port: int) -> Iterator[Tunnel]:
    """Open a tunnel to a port."""
    with Tunnel(port) as tunnel:
        thread = threading.Thread(target=tunnel.serve_forever)
        thread.start()
        try:
            yield tunnel
        finally:
            tunnel.shutdown()
            tunnel.cut()
            thread.join()
