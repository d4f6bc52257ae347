"""Which checkpoint is shown, and whether its run has a newer one by now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.plan.checkpoints import list_checkpoints
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.checkpoints import Checkpoint


class Shown:
    """The checkpoint that is shown. A `.pt` file that lies in no run is shown for ever."""

    def __init__(self, model: Path) -> None:
        """Show `model`, the file with the weights."""
        run = RunDir(model.absolute().parent.parent.parent)
        self.run = run if run.checkpoints_dir == model.absolute().parent.parent else None
        """The run that it came from, which may go on."""
        self.name = model.absolute().parent.name if self.run else model.name
        """What it is called on the page: the iterations done, or the file."""

    def newer(self) -> Checkpoint | None:
        """Return the newest whole checkpoint of the run, if it is newer than the one that is shown."""
        if self.run is None:
            return None
        newer = (each for each in list_checkpoints(self.run) if each.iteration > int(self.name))
        return next((each for each in reversed(list(newer)) if each.damage() is None), None)

    def show(self, checkpoint: Checkpoint) -> None:
        """Show another one of the same run."""
        self.name = checkpoint.path.name
