"""What one worker needs to know, as plain data that crosses from the launching process as a string."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.config.checks import foreign_code
from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError
from shoal.plan.nodes import NodePlan
from shoal.plan.rundir import RunDir
from shoal.tasks import registry

if TYPE_CHECKING:
    from shoal.config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where training begins, when it is not from nothing."""

    model: str
    """Path of the `model.pt` to load."""
    mode: Literal["continue", "weights"]
    """`continue` takes iteration, totals, optimizer and learning rate too; `weights` only the networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One training as its workers see it, the same on every rank."""

    config: TrainConfig
    """What was asked."""
    run_dir: str
    """The run's directory."""
    devices: tuple[str, ...]
    """Device of each worker on this machine, by local rank."""
    backend: str | None
    """`nccl` or `gloo`; None for a single worker, which needs no process group."""
    num_envs: int
    """Environments on each worker."""
    start: Start | None = None
    """The checkpoint to begin from."""
    scratch: str | None = None
    """A directory of this machine that dies with the launch: sign of life, rendezvous, temporary files."""
    log_files: tuple[str, ...] = ()
    """The file that takes each rank's output, by local rank; empty where the output stays where it is."""
    machines: tuple[NodePlan, ...] = ()
    """The machines of `--hosts`. `devices` and `log_files` are then those of all of them, one after the other, and each
    machine puts its own in their place."""
    meeting: str | None = None
    """The address at which the ranks of several machines meet."""
    probe: int | None = None
    """How many numbers the ranks are to sum, and to tell how long that takes, before they train; 0 for as many as the
    learner's gradient has. None to train only."""

    @property
    def run(self) -> RunDir:
        """The run's directory, with its layout."""
        return RunDir(Path(self.run_dir))

    def to_json(self) -> str:
        """Return this job as a string."""
        data = asdict(self) | {"config": to_plain(self.config)}
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str, own: TrainConfig | None = None) -> WorkerSpec:
        """Return the job that `to_json` made into a string. The task it names must be found here too.

        Args:
            text: The string.
            own: What this process itself was asked, where the string is from a process that it cannot be sure of.

        Raises:
            UsageError: The string names code that `own` does not name.
        """
        data: dict[str, Any] = json.loads(text)
        if own is not None:
            found = foreign_code(to_plain(own), data["config"])
            if found is not None:
                message = (
                    f"Rank 0 would import '{found[1]}' ({found[0]}), which this rank was not asked for: type the same "
                    "command for every rank, with the task and the classes of the run that goes on."
                )
                raise UsageError(message)
        task: str = data["config"]["task"]
        config = from_plain(own or registry.resolve(task).defaults(task), data.pop("config"))
        start = data.pop("start")
        return cls(
            config=config,
            devices=tuple(data.pop("devices")),
            log_files=tuple(data.pop("log_files")),
            start=Start(**start) if start else None,
            machines=tuple(map(NodePlan.from_plain, data.pop("machines"))),
            **data,
        )
