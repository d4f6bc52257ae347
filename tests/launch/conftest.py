"""One launch through each door, made once for all tests that read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, SURROUNDINGS, TRAIN, end_all, run, torchrun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.commands import Ended


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


@pytest.fixture(scope="session")
def launch(door: str, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A training of three iterations through a door."""
    command, flags = DOORS[door]
    where = tmp_path_factory.mktemp(door.replace(" ", "_"))
    task_and_length = ("Cartpole-Swingup", "--max-iterations", str(ITERATIONS))
    return run((*command, *task_and_length, *SMALL, *flags), where)
