"""Where the tests of this family run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a directory of the test's own: of Gymnasium's half-cheetah, MuJoCo leaves a file with a warning."""
    monkeypatch.chdir(tmp_path)
