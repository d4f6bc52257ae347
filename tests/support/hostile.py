"""A file that runs code when it is unpickled."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path


class Hostile:
    """Pickles as a call that makes a directory."""

    def __init__(self, marker: Path) -> None:
        """Name the directory."""
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the call."""
        return os.mkdir, (str(self.marker),)


def write_hostile(file: Path, state: dict[str, Any]) -> Path:
    """Save a checkpoint with code in its infos; return the directory that appears when the code runs."""
    marker = file.with_suffix(".ran")
    torch.save(state | {"infos": {"seen": 3, "env": Hostile(marker)}}, file)
    return marker
