"""Background writer of checkpoints: one thread on each rank, one checkpoint at a time.

The training pays for a copy of the tensors. If a checkpoint is still being written when the next is due, the training
waits for it: none is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from shoal.config import TrainConfig
from shoal.learn.checkpoint_transfer import CheckpointTransfer
from shoal.learn.checkpoints import Snapshot, remove_rank_files, write_snapshot
from shoal.learn.groups import World
from shoal.plan.checkpoints import to_drop, to_strip
from shoal.plan.rundir import RunDir
from shoal.timing import in_background

logger = logging.getLogger(__name__)

CLOSE_S = 2.0
"""How long a failing rank waits for an unfinished checkpoint [s]: less than the launcher waits before it kills it."""


class CheckpointWriter:
    """Writes this rank's part of each checkpoint in a background thread.

    `save`, `wait` and `check` raise a `TrainingFailedError` if an earlier checkpoint could not be written.
    """

    def __init__(
        self, run: RunDir, world: World, config: TrainConfig, transfer: CheckpointTransfer | None = None
    ) -> None:
        self._run, self._world, self._config, self._transfer = run, world, config, transfer
        self._writing: Future[None] | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Copy a snapshot, and write it while the training continues."""
        self.wait()
        state = {"learner": snapshot.learner, "rank_state": snapshot.rank_state}
        copies = start_host_copy(state, self._world.device)
        self._writing = in_background(partial(self._write, snapshot, copies), f"checkpoint {snapshot.iteration}")

    def wait(self) -> None:
        """Wait until the last snapshot is on the disk."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def check(self) -> None:
        """Raise the error of the background thread, once."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def close(self) -> None:
        """Wait at most `CLOSE_S` for an unfinished checkpoint; never raises."""
        if self._writing is not None:
            wait([self._writing], CLOSE_S)

    def _write(self, snapshot: Snapshot, copies: Callable[[], Any]) -> None:
        write_snapshot(self._run, replace(snapshot, **copies()), self._transfer)
        if self._world.is_first:
            self._drop_old()

    def _drop_old(self) -> None:
        """Remove checkpoints and rank files that are no longer kept. A checkpoint is renamed to a hidden name first.

        One that cannot be removed, such as one that is being read over NFS, costs a warning.
        """
        for checkpoint in to_drop(self._run, self._config):
            hidden = self._run.dropped_dir(checkpoint.iteration)
            try:
                self._run.folder.rename(checkpoint.path, hidden)
                self._run.folder.remove_tree(hidden)
            except OSError as error:
                logger.warning("The old checkpoint %s was not removed (%s).", checkpoint.path, error)
        for checkpoint in to_strip(self._run, self._config):
            try:
                remove_rank_files(self._run, checkpoint)
            except OSError as error:
                logger.warning("The rank files of the checkpoint %s were not removed (%s).", checkpoint.path, error)


def start_host_copy(state: Any, device: str) -> Callable[[], Any]:  # noqa: ANN401  Dicts, lists and tuples of tensors.
    """Start to copy nested tensors to the host, and return what waits for the copy and returns it.

    On a GPU this queues work and does not synchronise: the device runs the next iteration meanwhile.
    """
    # On a GPU first on the device, in the training's stream; from there to the host in another stream.
    copy = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), state)
    if not device.startswith("cuda"):
        return lambda: copy
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        on_host, done = tree_map_only(torch.Tensor, _to_host, copy), torch.cuda.Event()
        done.record(stream)

    def wait(_on_device: Any = copy) -> Any:  # noqa: ANN401  It is kept until the second copy is done.
        # CUDA may make a context on the current device, which is GPU 0 in a thread that has set none.
        with torch.cuda.device(device):
            done.synchronize()
        return on_host

    return wait


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
