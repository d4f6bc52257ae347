"""One launch through each door, made once for all tests that read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, SURROUNDINGS, TRAIN, end_all, start, torchrun
from support.ports import Stranger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.commands import Ended
    from support.ports import Listener


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trainings in the test's own process find what those of commands find."""
    for name, value in SURROUNDINGS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    """End what a test has started, when it fails before its end."""
    yield
    end_all()


ITERATIONS = 3

DOORS = {
    "in process": (TRAIN, ()),
    "spawned": (TRAIN, ("--nproc-per-node", "2")),
    "joined": (torchrun(2), ()),
    "joined alone": (torchrun(1), ()),
}
"""The words and the flags that lead through each door."""


@pytest.fixture(scope="session", params=DOORS)
def door(request: pytest.FixtureRequest) -> str:
    """Each door in turn."""
    return request.param


_heard_on: dict[str, set[Listener]] = {}


@pytest.fixture(scope="session")
def launch(door: str, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A training of three iterations through a door."""
    command, flags = DOORS[door]
    where = tmp_path_factory.mktemp(door.replace(" ", "_"))
    task_and_length = ("Cartpole-Swingup", "--max-iterations", str(ITERATIONS))
    # Ranks of one machine meet on loopback, whatever interface the shell names: gloo would fail on this one.
    running = start((*command, *task_and_length, *SMALL, *flags), where, {"GLOO_SOCKET_IFNAME": "shoal-none0"})
    with Stranger(running.mark) as onlooker:
        ended = running.end()
    # torchrun's own process keeps a store, which is not ours.
    not_ours = {running.process.pid} if command != TRAIN else set[int]()
    _heard_on[door] = {listener for listener in onlooker.seen if listener.pid not in not_ours}
    return ended


@pytest.fixture
def heard_on(door: str, launch: Ended) -> set[Listener]:
    """What the processes of that training listened on, but for torchrun's own."""
    assert launch.code == 0
    return _heard_on[door]
