"""Checkpoints written beside the training, by a thread of each rank's: one at a time.

The training pays for a copy. If the one before is still being written when the next is due, the training waits for it:
a checkpoint that was promised is never left out.
"""

from __future__ import annotations

import logging
import shutil
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.learn.checkpoints import Snapshot, remove_rank_files, write_snapshot
from shoal.learn.host_copy import HostCopy
from shoal.plan.checkpoints import Keep, to_drop, to_strip

if TYPE_CHECKING:
    from shoal.learn.courier import Courier
    from shoal.learn.groups import World
    from shoal.plan.rundir import RunDir

logger = logging.getLogger(__name__)

CLOSE_S = 2.0
"""How long a rank that fails waits for a checkpoint that is on its way [s]: less than it takes to be killed."""


class CheckpointWriter:
    """Writes this rank's share of each checkpoint."""

    def __init__(self, run: RunDir, world: World, keep: Keep, courier: Courier | None = None) -> None:
        """Write nothing yet.

        Args:
            run: The run.
            world: All ranks.
            keep: Which checkpoints are kept.
            courier: Brings what ranks save that do not see the run's directory.
        """
        self._courier = courier
        self._run = run
        self._world = world
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Copy what is to be saved, and write it while the training goes on.

        Raises:
            TrainingFailedError: The one before could not be written.
        """
        self.wait()
        copies = HostCopy({"learner": snapshot.learner, "own": snapshot.own}, self._world.device)
        self._thread = threading.Thread(
            target=self._write, args=(snapshot, copies), name=f"checkpoint {snapshot.iteration}", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the disk has what was saved.

        Raises:
            TrainingFailedError: It has not.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """See that nothing has gone wrong so far.

        Raises:
            TrainingFailedError: A checkpoint could not be written.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Give a checkpoint that is on its way a little time, whatever becomes of the training."""
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _write(self, snapshot: Snapshot, copies: HostCopy) -> None:
        try:
            write_snapshot(self._run, replace(snapshot, **copies.get()), self._courier)
            if self._world.is_first:
                self._drop_old()
        except BaseException as error:  # noqa: BLE001  Whatever it is, the training's own thread has to hear of it.
            self._error = error

    def _drop_old(self) -> None:
        """Remove the checkpoints and rank files that are no longer kept. A checkpoint is hidden first.

        The training does not end for one that stays, as where somebody reads it over NFS.
        """
        for checkpoint in to_drop(self._run, self._keep):
            hidden = self._run.dropped_dir(checkpoint.iteration)
            try:
                checkpoint.path.rename(hidden)
                shutil.rmtree(hidden)
            except OSError as error:
                logger.warning("The old checkpoint %s was not removed (%s).", checkpoint.path, error)
        for checkpoint in to_strip(self._run, self._keep):
            try:
                remove_rank_files(checkpoint)
            except OSError as error:
                logger.warning("The rank files of the checkpoint %s were not removed (%s).", checkpoint.path, error)
