"""Access to the web viewer: the token, and which `Host` and `Origin` headers a request may have.

viser serves page and WebSockets through `websockets.asyncio.server.serve`, and has no hook for requests: that name is
replaced while its server starts.
"""

import re
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qs

from websockets.asyncio import server as websockets_server
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from shoal.errors import ShoalError

_HOST = re.compile(r"(\[[\da-f:.]+\]|[\w.-]+)(?::(\d+))?", re.ASCII | re.IGNORECASE)

Respond = Callable[[ServerConnection, Request], Response | None]


class Guard:
    """Refuses requests without the token, under another machine's name, or from another site's page."""

    def __init__(self, viewer_host: str) -> None:
        """Draw a token. `viewer_host` is a name of this machine, too."""
        self.token = secrets.token_urlsafe()
        self._names = {"localhost", socket.gethostname().lower(), viewer_host.lower()}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Guard the server that viser starts meanwhile."""
        serve, guarded = websockets_server.serve, list[str]()

        def guarded_serve(*where: Any, process_request: Respond, **options: Any) -> Any:  # noqa: ANN401  As websockets.
            guarded.append("server")
            return serve(*where, process_request=partial(self._respond, process_request), **options)

        websockets_server.serve = guarded_serve
        try:
            yield
        finally:
            websockets_server.serve = serve
        if not guarded:
            raise ShoalError("The installed viser serves its page in a way that Shoal cannot guard: install viser 1.1.")

    def _respond(self, respond: Respond, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse a request, or let viser `respond`. A page that is opened with the token gets a cookie with it."""
        headers = request.headers
        hosts, origins = headers.get_all("Host"), headers.get_all("Origin")
        host = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if host is None or not self._is_own(host[1].strip("[]").lower(), connection):
            return _refuse(
                "The viewer does not answer to this host name: open the address that it printed.", connection
            )
        if origins and origins not in ([f"http://{hosts[0]}"], [f"https://{hosts[0]}"]):
            return _refuse(
                "The viewer does not answer to pages of other sites: open the address that it printed.", connection
            )
        # Browsers send cookies to all ports of a host, so the name tells viewers apart.
        name = f"shoal-viewer-{host[2] or 80}"
        cookies = [pair.strip().partition("=") for line in headers.get_all("Cookie") for pair in line.split(";")]
        is_opened = self._is_token(*parse_qs(request.path.partition("?")[2]).get("token", []))
        if not is_opened and not self._is_token(*(value for key, _, value in cookies if key == name)):
            return _refuse("The viewer needs the token of the address that it printed: open that address.", connection)
        response = respond(connection, request)
        if is_opened and response is not None:
            response.headers["Set-Cookie"] = f"{name}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            response.headers["Referrer-Policy"] = "no-referrer"
        return response

    def _is_own(self, name: str, connection: ServerConnection) -> bool:
        """Return whether a name or address, of any port (`ssh -L`), is this machine's.

        A page that rebinds its own name to this machine keeps that name, and so never has an address here. Addresses
        of a network are taken over that network only.
        """
        try:
            is_address_here = ip_address(name).is_loopback or not ip_address(connection.local_address[0]).is_loopback
        except ValueError:
            is_address_here = False
        return is_address_here or name in self._names

    def _is_token(self, *given: str) -> bool:
        return any(secrets.compare_digest(each.encode(errors="replace"), self.token.encode()) for each in given)


def _refuse(sentence: str, connection: ServerConnection) -> Response:
    return connection.respond(HTTPStatus.FORBIDDEN, f"{sentence}\n")
