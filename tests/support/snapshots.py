"""Wording that is meant: what a command says is compared with a file, and changes only when somebody says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

UPDATE = "SHOAL_UPDATE_SNAPSHOTS"
"""Set to 1, it makes the tests write their files instead of reading them. Look at the difference before you commit."""


def matches_snapshot(file: Path, text: str) -> bool:
    """Whether `text` is what the file holds. Where it is not, pytest shows both; see `UPDATE`."""
    if os.environ.get(UPDATE) == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"Set {UPDATE}=1 and run again if this is meant."
    return True
