"""Which interface leads to an address, by the kernel's own answer and by tables of other nodes' addresses."""

from __future__ import annotations

import socket

import pytest

from shoal.errors import UsageError
from shoal.machine import network
from shoal.machine.network import LOOPBACK, Route, addresses_by_interface, route_to, through


def test_this_machine_reaches_itself_over_loopback() -> None:
    assert "127.0.0.1" in addresses_by_interface()[LOOPBACK]
    assert route_to("127.0.0.1") == Route("127.0.0.1", "127.0.0.1", LOOPBACK)


def test_what_debian_calls_a_machine_itself_is_local() -> None:
    route = route_to("127.0.1.1")
    assert route is not None
    assert (route.source, route.is_local) == ("127.0.0.1", True)


@pytest.mark.parametrize("host", ["", "a..b", "no-such-host.invalid"])
def test_nothing_leads_to_a_name_that_does_not_resolve(host: str) -> None:
    assert route_to(host) is None


def test_the_interface_is_the_one_that_owns_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces: dict[str, tuple[str, ...]] = {"eth0": ("192.0.2.1",)}
    monkeypatch.setattr(network, "addresses_by_interface", lambda: interfaces)
    assert route_to("127.0.0.1") is None
    interfaces["eth7"] = ("192.0.2.2", "127.0.0.1")
    assert route_to("127.0.0.1") == Route("127.0.0.1", "127.0.0.1", "eth7")


@pytest.mark.parametrize(
    ("source", "more"), [("192.0.2.1", {}), ("2001:db8::1", {"NCCL_SOCKET_FAMILY": "AF_INET6"})], ids=["old", "new"]
)
def test_gloo_and_nccl_are_restricted_to_the_interface(source: str, more: dict[str, str]) -> None:
    told = {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
    assert Route("192.0.2.2", source, "eth1").environment() == told | more


def test_a_requested_interface_is_used_or_refused() -> None:
    assert through(LOOPBACK)["GLOO_SOCKET_IFNAME"] == LOOPBACK
    with pytest.raises(UsageError, match=rf"^--interface eth77 .* {socket.gethostname()} has no such .*{LOOPBACK}"):
        through("eth77")
