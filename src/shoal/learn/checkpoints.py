"""Writing checkpoints whole or not at all, and loading them without running code.

A checkpoint is a directory `checkpoints/<iterations done>` with `model.pt` (tensors and plain values; plain rsl_rl
loads it too) and `manifest.json` (sizes and SHA-256 sums). It is written under a temporary name, flushed to the disk
and renamed. Finding and verifying them is `shoal.plan.checkpoints`.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import torch

from shoal import __version__
from shoal.errors import TrainingFailedError, UsageError
from shoal.plan.checkpoints import MANIFEST, MODEL, sha256

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shoal.plan.rundir import RunDir


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
    # Hidden by its leading dot from everything that looks for checkpoints.
    unfinished = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        unfinished.mkdir(parents=True)
        torch.save(dict(state), unfinished / MODEL)
        files = {MODEL: {"bytes": (unfinished / MODEL).stat().st_size, "sha256": sha256(unfinished / MODEL)}}
        manifest = {"iteration": iteration, "world_size": world_size, "shoal": __version__, "files": files}
        (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        for path in (unfinished / MODEL, unfinished / MANIFEST, unfinished):
            _flush(path)
        if final.exists():  # A damaged one that a resume passed over, or a rerun of the same iterations.
            shutil.rmtree(final)
        unfinished.rename(final)
        _flush(final.parent)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError.
        shutil.rmtree(unfinished, ignore_errors=True)
        message = f"The checkpoint {final} could not be written ({error}). Free some disk space and pass --resume."
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
            "it is damaged, or was pickled with code in it, which Shoal does not run. Pass another one."
        )
        raise UsageError(message) from error
    if not isinstance(state, dict) or "actor_state_dict" not in state:
        message = f"The file {model} is no checkpoint of a PPO policy: it has no 'actor_state_dict'. Pass another one."
        raise UsageError(message)
    return state


def _flush(path: Path) -> None:
    """Make the kernel write `path`, a file or a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
