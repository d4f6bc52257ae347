"""Writing checkpoints whole or not at all, and loading them without running code.

A checkpoint is a directory `checkpoints/<iterations done>` with `model.pt` (the learner, which all ranks share; plain
rsl_rl loads it too), one `rank_00000.pt` for each rank (its environments and random states) and `manifest.json` (sizes
and SHA-256 sums). It is written under a temporary name, flushed to the disk and renamed. Finding and verifying them is
`shoal.plan.checkpoints`.

Each rank writes its own file into the unfinished directory and, when the disk has it, a note of its sum. Rank 0 writes
the learner and waits for the notes of the others, which needs no collective: all of it can happen beside the training.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from shoal import __version__
from shoal.errors import TrainingFailedError, UsageError
from shoal.plan.checkpoints import MANIFEST, MODEL, rank_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shoal.learn.courier import Courier
    from shoal.plan.checkpoints import Checkpoint
    from shoal.plan.rundir import RunDir


_NOTE = ".sum"
"""What the name of a rank's note ends with."""
_POLL_S = 0.02
PATIENCE_S = 120.0
"""How long rank 0 waits for the files of the others [s]. They were copied at the same moment as its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one rank saves after an iteration. Tensors and plain values only, nested in dicts and lists."""

    iteration: int
    """Iterations done; names the checkpoint."""
    world_size: int = 1
    """Number of ranks."""
    learner: Mapping[str, Any] | None = None
    """What `model.pt` holds. Rank 0 has it."""
    rank: int = 0
    """Whose it is."""
    own: Mapping[str, Any] | None = None
    """What the rank's file holds. None where ranks have none."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else the manifest tells."""


def write_snapshot(run: RunDir, snapshot: Snapshot, courier: Courier | None = None) -> Path:
    """Write one rank's share of a checkpoint. Rank 0 waits for the others, so that it appears whole or not at all.

    Args:
        run: The run.
        snapshot: What is saved.
        courier: Brings what ranks save that do not see the run's directory. None where all see it.

    Returns:
        The checkpoint's directory. It is there when rank 0 comes back.

    Raises:
        TrainingFailedError: The disk refused it, or another rank could not write its share. Older ones are untouched.
    """
    final = run.checkpoint_dir(snapshot.iteration)
    unfinished = run.unfinished_dir(snapshot.iteration)
    try:
        if snapshot.learner is not None:
            _write_whole(unfinished, final, snapshot, snapshot.learner, courier)
        elif courier is not None and snapshot.rank in courier.elsewhere:
            courier.send(_serialized(snapshot.own or {}))
        else:
            _write_part(unfinished, snapshot)
    except OSError as error:
        message = (
            f"The checkpoint {final} could not be written ({error.strerror or error}): "
            "make room or mend the directory, and pass --resume to go on from the one before."
        )
        raise TrainingFailedError(message) from error
    return final


def _write_whole(
    unfinished: Path, final: Path, snapshot: Snapshot, learner: Mapping[str, Any], courier: Courier | None
) -> None:
    """Write what is rank 0's, wait for the others, and let the checkpoint appear. What is unfinished goes."""
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        sums = {MODEL: _write(unfinished / MODEL, _serialized(learner))}
        if snapshot.own is not None:
            sums[rank_file(0)] = _write(unfinished / rank_file(0), _serialized(snapshot.own))
            for rank in range(1, snapshot.world_size):
                if courier is not None and rank in courier.elsewhere:
                    sums[rank_file(rank)] = _write(unfinished / rank_file(rank), courier.receive(rank))
                else:
                    sums[rank_file(rank)] = _part_of(rank, unfinished, final)
        told = {"iteration": snapshot.iteration, "world_size": snapshot.world_size, "shoal": __version__}
        manifest = {**told, **snapshot.about, "files": sums}
        _write(unfinished / MANIFEST, json.dumps(manifest, indent=2).encode())
        _flush_directory(unfinished)
        if final.exists():  # A damaged one that a resume passed over.
            shutil.rmtree(final)
        unfinished.rename(final)
        _flush_directory(final.parent)
    except (OSError, TrainingFailedError):
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def remove_rank_files(checkpoint: Checkpoint) -> None:
    """Leave only the learner in a checkpoint. The manifest is replaced first, so that it names no file that is gone."""
    manifest = checkpoint.manifest()
    if MODEL not in manifest.get("files", {}):
        return  # It is damaged.
    manifest["files"] = {MODEL: manifest["files"][MODEL]}
    unfinished = checkpoint.path / f".unfinished-{MANIFEST}"
    _write(unfinished, json.dumps(manifest, indent=2).encode())
    unfinished.rename(checkpoint.path / MANIFEST)
    _flush_directory(checkpoint.path)
    for file in checkpoint.path.glob("rank_*.pt"):
        file.unlink()


def _write_part(unfinished: Path, snapshot: Snapshot) -> None:
    """Write another rank's file, and tell rank 0. If rank 0 has given the checkpoint up, that is its own to tell."""
    file = unfinished / rank_file(snapshot.rank)
    give_up = time.monotonic() + PATIENCE_S
    while not unfinished.exists():  # Rank 0 makes it, and so nothing is made where it has failed.
        if time.monotonic() > give_up:
            return
        time.sleep(_POLL_S)
    try:
        _tell(file, json.dumps(_write(file, _serialized(snapshot.own or {}))))
    except OSError:
        file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            _tell(file, "")
        if unfinished.exists():
            raise


def _tell(file: Path, text: str) -> None:
    """Tell rank 0 that the disk has a rank's file, or with an empty text that it refused it."""
    whole = file.with_suffix(".told")
    whole.write_text(text, encoding="utf-8")
    whole.rename(file.with_suffix(_NOTE))


def _part_of(rank: int, unfinished: Path, final: Path) -> dict[str, Any]:
    """Wait until another rank's file is there, and return its size and sum.

    Raises:
        TrainingFailedError: It does not come.
    """
    note = (unfinished / rank_file(rank)).with_suffix(_NOTE)
    give_up = time.monotonic() + PATIENCE_S
    while not note.exists() and time.monotonic() < give_up:
        time.sleep(_POLL_S)
    told = note.read_text(encoding="utf-8") if note.exists() else ""
    if not told:
        message = (
            f"The checkpoint {final} was not finished: rank {rank} could not write its part, or not within "
            f"{PATIENCE_S:.0f} s. Pass --resume to go on from the one before."
        )
        raise TrainingFailedError(message)
    note.unlink()
    return json.loads(told)


def read_checkpoint(model: Path) -> dict[str, Any]:
    """Load a `model.pt` into the host's memory. Only tensors and plain values are accepted: no code of the file runs.

    Networks and optimizers copy from there. On a GPU, Adam's `step` would make each update wait for it.

    Raises:
        UsageError: The file holds other things, or is no checkpoint.
    """
    try:
        state = torch.load(model, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # torch raises many kinds for a file that is none of its own.
        message = (
            f"The checkpoint {model} cannot be loaded as plain tensors ({type(error).__name__}): "
            "it is damaged, or was pickled with code in it, which Shoal does not run. Pass another one, or make it "
            f"plain with `shoal convert {model} --trust` if you trust the people it is from."
        )
        raise UsageError(message) from error
    if not isinstance(state, dict) or "actor_state_dict" not in state:
        older = isinstance(state, dict) and "model_state_dict" in state
        remedy = f"It is of an older rsl_rl: run `shoal convert {model}`." if older else "Pass another one."
        message = f"The file {model} is no checkpoint of a PPO policy: it has no 'actor_state_dict'. {remedy}"
        raise UsageError(message)
    return state


def read_rank_file(path: Path) -> dict[str, Any]:
    """Load what a rank has saved, into the host's memory.

    Raises:
        UsageError: The file cannot be loaded as plain tensors.
    """
    try:
        own = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # As above.
        message = (
            f"The file {path} cannot be loaded as plain tensors ({type(error).__name__}), although its sum is as it "
            "should be: it was written by another version. Pass --checkpoint to start a new run from its weights."
        )
        raise UsageError(message) from error
    rows = own.get("rows") if isinstance(own, dict) else None
    if not isinstance(rows, dict) or not all(isinstance(row, torch.Tensor) for row in rows.values()):
        message = f"The file {path} is no part of a checkpoint: it has no 'rows' of environments. Pass another one."
        raise UsageError(message)
    return own


def _serialized(state: Mapping[str, Any]) -> memoryview:
    """Return the bytes of `model.pt`. Made in memory: of a full disk, torch's own writer says `unexpected pos`."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getbuffer()


def _write(path: Path, data: bytes | memoryview) -> dict[str, Any]:
    """Write a file, wait until the disk has it, and return its size and sum."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _flush_directory(path: Path) -> None:
    """Wait until the disk knows the names in `path`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
