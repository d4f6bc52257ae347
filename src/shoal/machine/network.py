"""Which network interface leads to another machine, and which addresses are this machine's own.

gloo, left alone, listens at the address that the host's name resolves to, which on Debian is 127.0.1.1; NCCL takes the
first interface that it likes. Both take an interface by name. What leads to the other machines is the kernel's to say.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOPBACK = next((name for _number, name in socket.if_nameindex() if name in {"lo", "lo0"}), "lo")
"""This machine's interface to itself."""
_DISCARD = 9
"""A port to which nothing is sent: a route is looked up without a packet."""
_ANSWER_S = 2.0
"""How long another machine may take to answer [s]."""


@dataclass(frozen=True, slots=True)
class Route:
    """How this machine reaches another one, or itself."""

    address: str
    """The other machine's address, as numbers."""
    source: str
    """The address of this machine that the other one sees."""
    interface: str
    """The interface that has it."""

    @property
    def is_local(self) -> bool:
        """Whether the address is one of this machine's own."""
        return self.interface == LOOPBACK or self.source == self.address

    def environment(self) -> dict[str, str]:
        """Return the variables by which gloo and NCCL listen on this interface, and on no other."""
        return _through(self.interface, new_protocol=":" in self.source)


def addresses_by_interface() -> dict[str, tuple[str, ...]]:
    """Return the addresses of each interface of this machine that is up, without scopes."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    wanted = {socket.AF_INET, socket.AF_INET6}
    return {
        name: tuple(each.address.partition("%")[0] for each in addresses if each.family in wanted)
        for name, addresses in psutil.net_if_addrs().items()
        if name in up
    }


def route_to(host: str, interfaces: Mapping[str, tuple[str, ...]] | None = None) -> Route | None:
    """Return how this machine reaches `host`, by the first of its addresses that there is a way to.

    Args:
        host: A name or an address.
        interfaces: Addresses by interface, `addresses_by_interface` by default.

    Returns:
        None when the name does not resolve, or nothing leads there.
    """
    interfaces = addresses_by_interface() if interfaces is None else interfaces
    owners = {ipaddress.ip_address(each): name for name, addresses in interfaces.items() for each in addresses}
    with contextlib.suppress(OSError, UnicodeError):
        for family, _type, _protocol, _name, place in socket.getaddrinfo(host, _DISCARD, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(place)
                address, source = str(place[0]).partition("%")[0], str(probe.getsockname()[0]).partition("%")[0]
                interface = owners.get(ipaddress.ip_address(source))
                if interface is not None:
                    return Route(address, source, interface)
    return None


def answers(host: str, port: int) -> bool:
    """Whether something listens there, as far as it answers soon."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_ANSWER_S):
        return True
    return False


def through(interface: str) -> dict[str, str]:
    """Return the variables by which gloo and NCCL listen on an interface that somebody has asked for.

    Raises:
        UsageError: This machine does not have it, or it is down. Names those that there are.
    """
    there = addresses_by_interface()
    addresses = there.get(interface)
    if not addresses:
        known = ", ".join(sorted(name for name, addresses in there.items() if addresses))
        message = (
            f"--interface {interface} was asked for, but {socket.gethostname()} has no such interface that is up and "
            f"has an address: pass one of {known}."
        )
        raise UsageError(message)
    return _through(interface, new_protocol=all(":" in address for address in addresses))


def _through(interface: str, *, new_protocol: bool) -> dict[str, str]:
    variables = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return variables | ({"NCCL_SOCKET_FAMILY": "AF_INET6"} if new_protocol else {})
