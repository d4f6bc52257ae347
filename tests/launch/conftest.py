"""What every launch of a test finds around it, and what it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.commands import SURROUNDINGS, end_all

if TYPE_CHECKING:
    from collections.abc import Iterator


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
