"""Writing checkpoints whole or not at all, and loading them without running code.

A checkpoint is a directory `checkpoints/<iterations done>` with `model.pt` (the learner, which all ranks share; plain
rsl_rl loads it too), one `rank_00000.pt` for each rank (its environments and random states) and `manifest.json` (sizes
and SHA-256 sums). It is written under a temporary name, flushed to the disk and renamed. Finding and verifying them is
`shoal.plan.checkpoints`.

Each rank writes its file into the unfinished directory, and then a second file with its size and sum. Rank 0 writes the
learner and polls for the sums of the others. No collective is needed, so all of it runs in threads beside the training.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shoal import __version__
from shoal.errors import TrainingFailedError, UsageError, refusing_os_errors
from shoal.files import Folder, write_all
from shoal.learn.checkpoint_transfer import CheckpointTransfer
from shoal.plan.checkpoints import MANIFEST, MODEL, Checkpoint, rank_file
from shoal.plan.rundir import RunDir
from shoal.reading import leaves_of, parse_json, read_bytes, read_tensors
from shoal.timing import wait_for

_POLL_S = 0.02
RANK_FILE_TIMEOUT_S = 120.0
"""How long rank 0 waits for the file of another rank [s]. All ranks copy their state in the same iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one rank saves after an iteration. Tensors and plain values only, nested in dicts and lists."""

    iteration: int
    """Iterations done; names the checkpoint."""
    world_size: int = 1
    learner: Mapping[str, Any] | None = None
    """Content of `model.pt`, on rank 0."""
    rank: int = 0
    rank_state: Mapping[str, Any] | None = None
    """Content of the rank's file. None where ranks have none."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of the manifest, or functions that return one once it is known: the last thing to wait for."""


def write_snapshot(run: RunDir, snapshot: Snapshot, transfer: CheckpointTransfer | None = None) -> Path:
    """Write one rank's part of a checkpoint; return its directory. Rank 0 waits for the others, then makes it appear.

    Ranks that do not see the run directory send their files by `transfer`.

    Raises:
        TrainingFailedError: The disk refused it, or another rank could not write its part. Older ones are untouched.
    """
    final = run.checkpoint_dir(snapshot.iteration)
    remedy = "make room or mend the directory, and pass --resume to go on from the one before"
    with refusing_os_errors(f"The checkpoint {final} could not be written", remedy, TrainingFailedError):
        if snapshot.learner is not None:
            _write_checkpoint(run, snapshot, snapshot.learner, transfer)
        elif transfer is not None and snapshot.rank in transfer.remote_ranks:
            transfer.send(_serialized(snapshot.rank_state or {}))
        else:
            _write_rank_file(run, snapshot)
    return final


def _write_checkpoint(
    run: RunDir, snapshot: Snapshot, learner: Mapping[str, Any], transfer: CheckpointTransfer | None
) -> None:
    """Write rank 0's files, wait for those of the others, and rename the directory. A failure removes it."""
    folder = run.folder
    final, unfinished = run.checkpoint_dir(snapshot.iteration), run.unfinished_dir(snapshot.iteration)
    try:
        folder.make(unfinished)
        sums = {MODEL: _write(folder, unfinished / MODEL, _serialized(learner))}
        if snapshot.rank_state is not None:
            sums[rank_file(0)] = _write(folder, unfinished / rank_file(0), _serialized(snapshot.rank_state))
            for rank in range(1, snapshot.world_size):
                if transfer is not None and rank in transfer.remote_ranks:
                    sums[rank_file(rank)] = _write(folder, unfinished / rank_file(rank), transfer.receive(rank))
                else:
                    sums[rank_file(rank)] = _wait_for_sum(rank, run, snapshot.iteration)
        first = {"iteration": snapshot.iteration, "world_size": snapshot.world_size, "shoal": __version__}
        metadata = {name: entry() if callable(entry) else entry for name, entry in snapshot.metadata.items()}
        _write(folder, unfinished / MANIFEST, json.dumps({**first, **metadata, "files": sums}, indent=2).encode())
        folder.flush(unfinished)
        folder.remove_tree(final)  # A damaged one that a resume passed over.
        folder.rename(unfinished, final)
        folder.flush(final.parent)
    except (OSError, TrainingFailedError):
        with contextlib.suppress(OSError):
            folder.remove_tree(unfinished)
        raise


def remove_rank_files(run: RunDir, checkpoint: Checkpoint) -> None:
    """Leave only the learner in a checkpoint. The manifest is replaced first, so that it names no missing file."""
    manifest = checkpoint.manifest()
    if MODEL not in manifest.get("files", {}):
        return  # It is damaged.
    manifest["files"] = {MODEL: manifest["files"][MODEL]}
    unfinished = checkpoint.path / f".unfinished-{MANIFEST}"
    run.folder.remove(unfinished)
    _write(run.folder, unfinished, json.dumps(manifest, indent=2).encode())
    run.folder.rename(unfinished, checkpoint.path / MANIFEST)
    run.folder.flush(checkpoint.path)
    for file in checkpoint.path.glob("rank_*.pt"):
        run.folder.remove(file)


def _write_rank_file(run: RunDir, snapshot: Snapshot) -> None:
    """Write another rank's file, then its sum. Where rank 0 has given the checkpoint up, return: rank 0 reports it."""
    unfinished = run.unfinished_dir(snapshot.iteration)
    file = unfinished / rank_file(snapshot.rank)
    # Only rank 0 creates it, so that nothing is left where rank 0 has failed.
    if not wait_for(unfinished.exists, RANK_FILE_TIMEOUT_S, _POLL_S):
        return
    try:
        sums = json.dumps(_write(run.folder, file, _serialized(snapshot.rank_state or {})))
        run.folder.write(file.with_suffix(".sum"), sums)
    except OSError:
        with contextlib.suppress(OSError):
            run.folder.remove(file)
            run.folder.write(file.with_suffix(".sum"), "")  # It could not be written.
        if unfinished.exists():
            raise


def _wait_for_sum(rank: int, run: RunDir, iteration: int) -> dict[str, Any]:
    """Wait for another rank's file, and return its size and sum; raise if it could not be written, or not in time."""
    file = (run.unfinished_dir(iteration) / rank_file(rank)).with_suffix(".sum")
    text = read_bytes(file) if wait_for(file.exists, RANK_FILE_TIMEOUT_S, _POLL_S) else b""
    if not text:
        raise TrainingFailedError(
            f"The checkpoint {run.checkpoint_dir(iteration)} was not finished: rank {rank} could not write its part, "
            f"or not within {RANK_FILE_TIMEOUT_S:.0f} s. Pass --resume to go on from the one before."
        )
    run.folder.remove(file)
    return parse_json(text)


def read_checkpoint(model: Path) -> dict[str, Any]:
    """Load a `model.pt` into host memory. Only tensors and plain values are accepted: no code of the file runs.

    Networks and optimizers copy from there. On a GPU, reading Adam's `step` would synchronise in each update.

    Raises:
        UsageError: The file holds other things, or is no checkpoint.
    """
    try:
        state = read_tensors(model)
    except MemoryError:
        raise
    except Exception as error:  # torch raises many kinds for a file that is none of its own.
        raise UsageError(
            f"The checkpoint {model} cannot be loaded as plain tensors ({_reason(error)}): "
            "it is damaged, or was pickled with code in it, which Shoal does not run. Pass another one, or make it "
            f"plain with `shoal convert {model} --trust` if you trust the people it is from."
        ) from error
    if isinstance(state, dict) and "model_state_dict" in state:
        raise UsageError(f"The file {model} is a checkpoint of an older rsl_rl: run `shoal convert {model}`.")
    if not isinstance(state, dict) or not {"iter", "actor_state_dict"} & state.keys():
        raise UsageError(f"The file {model} is no checkpoint of a learner: it has no 'iter'. Pass another one.")
    iteration = state.get("iter", 0)
    if type(iteration) is not int or not -1 <= iteration < 2**53:
        raise UsageError(f"The checkpoint {model} says that its 'iter' is {iteration!r:.60}: pass another one.")
    for name, part in state.items():
        if str(name).endswith("_state_dict") and not isinstance(part, dict | None):
            raise UsageError(f"The checkpoint {model} has no weights in '{name}', but {part!r:.60}: pass another one.")
        for path, value in leaves_of(part if name != "infos" else {}):  # Which is free for users.
            if isinstance(value, torch.Tensor) and not value.isfinite().all():
                raise UsageError(f"The weights of {model} are not finite ({name}, {path}): pass an earlier checkpoint.")
    return state


def read_rank_file(path: Path, num_envs: int) -> dict[str, Any]:
    """Load a rank's file, with `num_envs` environments, into host memory.

    Raises:
        UsageError: The file cannot be loaded as plain tensors.
    """
    try:
        state = read_tensors(path)
    except Exception as error:  # As above.
        raise UsageError(
            f"The file {path} cannot be loaded as plain tensors ({_reason(error)}), although its sum is as it "
            "should be: it was written by another version. Pass --checkpoint to start a new run from its weights."
        ) from error
    rows = state.get("rows") if isinstance(state, dict) else None
    if not isinstance(rows, dict) or not all(
        isinstance(row, torch.Tensor) and row.shape[:1] == (num_envs,) for row in rows.values()
    ):
        message = f"The file {path} is no part of a checkpoint: it has no 'rows' of its environments. Pass another one."
        raise UsageError(message)
    return state


def _reason(error: Exception) -> str:
    """Return the limit that a file exceeds, or the name of torch's error."""
    return str(error) if type(error) is ValueError else type(error).__name__


def _serialized(state: Mapping[str, Any]) -> memoryview:
    """Return the bytes that `torch.save` writes. In memory, as torch reports a full disk as `unexpected pos`."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getbuffer()


def _write(folder: Folder, path: Path, data: bytes | memoryview) -> dict[str, Any]:
    """Write a file, flush it to the disk, and return its size and sum."""
    with folder.open(path, "w+") as file:
        write_all(file, data)
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
