"""How gloo behaves between nodes: what it has to be told, which address it takes, when it notices that one is lost.

These are facts of torch on which the design leans; a release that changes them is noticed here.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import LAUNCH_TIMEOUT_S, kill, wait_until
from support.machines import machines, needs_machines
from support.network import INTERFACE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.commands import Ended
    from support.machines import Machine, Machines, RunningThere

pytestmark = [pytest.mark.spawn, needs_machines]

PEER = Path(__file__).parents[1] / "support/gloo_peer.py"
TOLD = {"GLOO_SOCKET_IFNAME": INTERFACE}
FOR_EVER = 10**9


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two nodes with addresses of both kinds."""
    with machines(tmp_path_factory.mktemp("two"), "north", "south", logins=False) as made:
        yield made


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two nodes that take their own names for 127.0.1.1."""
    with machines(tmp_path_factory.mktemp("debian"), "north", "south", debian=True, logins=False) as made:
        yield made


def start_ranks(
    made: Machines, address: str, environ: dict[str, str], *, timeout_s: float = 60, times: int = 0
) -> list[RunningThere]:
    """Start a rank on each node."""
    words = [sys.executable, str(PEER)]
    return [
        machine.start_plain([*words, str(rank), address, str(timeout_s), str(times)], environ=environ)
        for rank, machine in enumerate(made.workers)
    ]


def sums(made: Machines, address: str, environ: dict[str, str]) -> list[str]:
    """Return what each rank says of its sum."""
    ended = [running.end() for running in start_ranks(made, address, environ)]
    assert [each.code for each in ended] == [0, 0], [each.stderr for each in ended]
    return [each.stdout for each in ended]


@pytest.mark.parametrize("version", [4, 6])
def test_it_takes_the_ipv4_address_of_the_interface_it_is_told_whatever_the_ranks_meet_at(
    two: Machines, version: int
) -> None:
    north, south = two.workers
    met_at = north.address if version == 4 else north.address6
    assert sums(two, met_at, TOLD) == [f"sum 2.0 over {north.address}\n", f"sum 2.0 over {south.address}\n"]


def test_untold_it_takes_the_address_that_resolving_its_own_name_puts_first(two: Machines) -> None:
    north, south = two.workers
    assert sums(two, north.address, {}) == [f"sum 2.0 over {north.address6}\n", f"sum 2.0 over {south.address6}\n"]


@pytest.mark.parametrize("environ", [TOLD, {}], ids=["told", "untold"])
def test_it_works_where_there_is_ipv6_only(tmp_path: Path, environ: dict[str, str]) -> None:
    with machines(tmp_path, "north", "south", versions=(6,), logins=False) as made:
        expected = [f"sum 2.0 over {machine.address6}\n" for machine in made.workers]
        assert sums(made, "north", environ) == expected


def test_told_it_works_where_the_own_name_is_a_loopback_address(debian: Machines) -> None:
    north, south = debian.workers
    assert sums(debian, "north", TOLD) == [f"sum 2.0 over {north.address}\n", f"sum 2.0 over {south.address}\n"]


def test_untold_one_rank_is_refused_there_and_the_other_waits(debian: Machines) -> None:
    ranks = start_ranks(debian, debian["north"].address, {})
    assert wait_until(lambda: any(rank.process.poll() is not None for rank in ranks), LAUNCH_TIMEOUT_S)
    waits, refused = sorted(ranks, key=lambda rank: rank.process.poll() is not None)
    assert "Connection refused, remote=[127.0.1.1]" in refused.end().stdout
    assert waits.process.poll() is None  # For five times the limit of a collective, it was seen.
    kill([waits.leader])
    assert waits.end().stdout == ""


def test_an_interface_that_is_not_there_is_named(two: Machines) -> None:
    ended = [running.end() for running in start_ranks(two, "north", {"GLOO_SOCKET_IFNAME": "eth7"})]
    assert all("Unable to find address for: eth7" in each.stdout for each in ended)


def lost(made: Machines, lose: Callable[[Machine, RunningThere], None]) -> list[Ended]:
    """Have ranks sum for ever, lose the second one, and return how both end."""
    ranks = start_ranks(made, "north", TOLD, timeout_s=3, times=FOR_EVER)
    for each in ranks:
        each.read_until("sum")
    lose(made["south"], ranks[1])
    return [each.end() for each in ranks]


def test_a_cut_cable_is_noticed_after_the_time_limit_by_both(tmp_path: Path) -> None:
    with machines(tmp_path, "north", "south", logins=False) as made:
        ended = lost(made, lambda machine, _: machine.cut())
    assert all("Timed out waiting 3000ms for" in each.stdout for each in ended), [each.stdout for each in ended]


def test_a_machine_without_power_is_noticed_after_the_time_limit(tmp_path: Path) -> None:
    with machines(tmp_path, "north", "south", logins=False) as made:
        stays, goes = lost(made, lambda machine, _: machine.power_off())
    assert goes.code == -9
    assert "Timed out waiting 3000ms for" in stays.stdout


def test_a_killed_rank_is_noticed_at_once_and_told_from_a_lost_machine(two: Machines) -> None:
    stays, _ = lost(two, lambda _, rank: kill([rank.leader]))
    peer = re.escape(f"[{two['south'].address}]")
    # Reset where it had not yet read what was sent to it.
    assert re.search(rf"Connection closed by peer {peer}|Read error {peer}:\d+: Connection reset by peer", stays.stdout)
