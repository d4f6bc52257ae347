"""Network interfaces, addresses, and routes of this machine.

By default gloo listens at the address of the host's name, which on Debian is 127.0.1.1, and NCCL takes the first
suitable interface. Both accept an interface by name, which the kernel's routing table provides.
"""

import contextlib
import ipaddress
import socket
from dataclasses import dataclass

import psutil

from shoal.errors import UsageError

LOOPBACK = next((name for _number, name in socket.if_nameindex() if name in {"lo", "lo0"}), "lo")
"""Name of the loopback interface."""
_DISCARD = 9  # Port for route look-ups, which send no packet.
_ANSWER_S = 2.0  # Time limit of a connection attempt [s].


@dataclass(frozen=True, slots=True)
class Route:
    """Route to another node, or to this one."""

    address: str
    """Numeric address of the other machine."""
    source: str
    """Address of this machine on that route."""
    interface: str
    """Interface with the source address."""

    @property
    def is_local(self) -> bool:
        """Whether the address is one of this machine."""
        return self.interface == LOOPBACK or self.source == self.address

    def environment(self) -> dict[str, str]:
        """Return the variables that restrict gloo and NCCL to this interface."""
        return _interface_variables(self.interface, ipv6=":" in self.source)


def addresses_by_interface() -> dict[str, tuple[str, ...]]:
    """Return the addresses, without scopes, of each interface that is up."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    wanted = {socket.AF_INET, socket.AF_INET6}
    return {
        name: tuple(each.address.partition("%")[0] for each in addresses if each.family in wanted)
        for name, addresses in psutil.net_if_addrs().items()
        if name in up
    }


def route_to(host: str) -> Route | None:
    """Return the route to the first reachable address of a name; None when it does not resolve, or there is none."""
    interfaces = addresses_by_interface()
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
    """Whether a connection to a port succeeds within a short time."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_ANSWER_S):
        return True
    return False


def through(interface: str) -> dict[str, str]:
    """Return the variables that restrict gloo and NCCL to the interface of `--interface`.

    Raises:
        UsageError: This machine does not have it, or it is down.
    """
    interfaces = addresses_by_interface()
    addresses = interfaces.get(interface)
    if not addresses:
        known = ", ".join(sorted(name for name, addresses in interfaces.items() if addresses))
        raise UsageError(
            f"--interface {interface} was asked for, but {socket.gethostname()} has no such interface that is up and "
            f"has an address: pass one of {known}."
        )
    return _interface_variables(interface, ipv6=all(":" in address for address in addresses))


def _interface_variables(interface: str, *, ipv6: bool) -> dict[str, str]:
    variables = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return variables | ({"NCCL_SOCKET_FAMILY": "AF_INET6"} if ipv6 else {})
