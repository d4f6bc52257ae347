"""Writing checkpoints whole or not at all, and loading them without running code.

A checkpoint is a directory `checkpoints/<iterations done>` with `model.pt` (tensors and plain values; plain rsl_rl
loads it too) and `manifest.json` (sizes and SHA-256 sums). It is written under a temporary name, flushed to the disk
and renamed. Finding and verifying them is `shoal.plan.checkpoints`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import torch

from shoal import __version__
from shoal.errors import TrainingFailedError, UsageError
from shoal.plan.checkpoints import MANIFEST, MODEL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shoal.plan.rundir import RunDir


UNFINISHED = ".unfinished"
"""The temporary name. Its leading dot hides it from all that looks for checkpoints. A run has one writer, so one name
is enough, and the next checkpoint sweeps away what a killed writer left."""


def write_checkpoint(run: RunDir, iteration: int, state: Mapping[str, Any], world_size: int) -> Path:
    """Write one checkpoint, so that it appears under its final name whole or not at all.

    Args:
        run: The run's directory.
        iteration: Iterations done; names the checkpoint.
        state: Tensors and plain values only, nested in dicts and lists.
        world_size: Number of ranks, for the manifest.

    Raises:
        TrainingFailedError: The disk refused it. Older checkpoints are untouched.
    """
    final = run.checkpoint_dir(iteration)
    unfinished = final.with_name(UNFINISHED)
    model = _serialized(state)
    files = {MODEL: {"bytes": len(model), "sha256": hashlib.sha256(model).hexdigest()}}
    manifest = {"iteration": iteration, "world_size": world_size, "shoal": __version__, "files": files}
    try:
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
        _write(unfinished / MODEL, model)
        _write(unfinished / MANIFEST, json.dumps(manifest, indent=2).encode())
        _flush_directory(unfinished)
        if final.exists():  # A damaged one that a resume passed over.
            shutil.rmtree(final)
        unfinished.rename(final)
        _flush_directory(final.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        message = (
            f"The checkpoint {final} could not be written ({error.strerror or error}): "
            "make room or mend the directory, and pass --resume to go on from the one before."
        )
        raise TrainingFailedError(message) from error
    return final


def read_checkpoint(model: Path, device: str) -> dict[str, Any]:
    """Load a `model.pt` onto `device`. Only tensors and plain values are accepted, so no code of the file runs.

    Raises:
        UsageError: The file holds other things, or is no checkpoint.
    """
    try:
        state = torch.load(model, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is none of its own.
        message = (
            f"The checkpoint {model} cannot be loaded as plain tensors ({type(error).__name__}): "
            "it is damaged, or was pickled with code in it, which Shoal does not run. Pass another one, or make it "
            f"plain with `shoal convert {model} --trust` if you trust the people it is from."
        )
        raise UsageError(message) from error
    if not isinstance(state, dict) or "actor_state_dict" not in state:
        message = f"The file {model} is no checkpoint of a PPO policy: it has no 'actor_state_dict'. Pass another one."
        raise UsageError(message)
    return state


def _serialized(state: Mapping[str, Any]) -> memoryview:
    """Return the bytes of `model.pt`. Made in memory: of a full disk, torch's own writer says `unexpected pos`."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getbuffer()


def _write(path: Path, data: bytes | memoryview) -> None:
    """Write a file, and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_directory(path: Path) -> None:
    """Wait until the disk knows the names in `path`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
