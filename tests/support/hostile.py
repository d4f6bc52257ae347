"""A file that runs code when it is unpickled, also as a part of a checkpoint whose manifest vouches for it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import torch

from shoal.plan.checkpoints import sha256

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


def vouch_for(file: Path) -> None:
    """Let the manifest beside a file of a checkpoint say that it is as it should be."""
    manifest = file.with_name("manifest.json")
    told = json.loads(manifest.read_text(encoding="utf-8"))
    told["files"][file.name] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
    manifest.write_text(json.dumps(told), encoding="utf-8")
