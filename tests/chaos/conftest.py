"""What a test of chaos leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.commands import end_all

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    """End what a test has started, when it fails before its end."""
    yield
    end_all()
