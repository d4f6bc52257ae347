"""State that the workers of an elastic launch keep between attempts."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from shoal.errors import TrainingFailedError
from shoal.launch.elastic import final_failure, final_failures
from shoal.plan.launchers import STATE_DIR

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pytest


def fail(attempt: AbstractContextManager[None], words: str) -> None:
    error = TrainingFailedError(words)
    with suppress(TrainingFailedError):
        attempt.__exit__(type(error), error, None)


def test_failures_of_two_ranks_at_once_leave_one_that_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STATE_DIR, str(tmp_path))
    first, second = final_failures(), final_failures()
    for attempt in (first, second):
        attempt.__enter__()
    fail(first, "long " * 20)
    with (tmp_path / "final").open("rb", buffering=0) as reader:
        begun = reader.read(1)
        fail(second, "short")
        assert json.loads(begun + reader.read())["error"] == "long " * 20
    left = final_failure(tmp_path)
    assert left is not None
    assert left.error == "short"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
