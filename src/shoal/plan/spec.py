"""`WorkerSpec`, the message that each worker of a training gets, and `NodeSpec`, the part that its node needs too."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from shoal.config import TrainConfig
from shoal.config.checks import foreign_code
from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError
from shoal.plan.nodes import NodePlan
from shoal.plan.rundir import RunDir, rank_log_name
from shoal.tasks import registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The checkpoint that training starts from."""

    model: str
    """Path of the `model.pt` to load."""
    mode: Literal["continue", "weights"]
    """`continue` takes iteration, totals, optimizer and learning rate too; `weights` only the networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What nodes need to start their workers. Plain values: reading them imports no task."""

    run_dir: str
    """The run's directory."""
    nodes: tuple[NodePlan, ...]
    """All nodes in the launching process, and one in what is sent to a node: the size does not grow with the others."""
    first_rank: int = 0
    """Global rank of the first worker of `nodes`. Ranks count through them in this order."""
    world_size: int
    """Number of workers of the launch."""
    rendezvous: str | None = None
    """Address of node 0 at which the ranks of several nodes meet; None for one node."""
    log_dir: str | None = None
    """Directory of the ranks' output files; None where the output stays where it is."""
    scratch: str | None = None
    """A directory of this node, removed with the launch: signs of life, heartbeats, temporary files."""

    @property
    def run(self) -> RunDir:
        """The run's directory, with its layout."""
        return RunDir(Path(self.run_dir))

    @property
    def ranks(self) -> range:
        """Global ranks of the workers of `nodes`."""
        return range(self.first_rank, self.first_rank + sum(len(node.devices) for node in self.nodes))

    def of_node(self, number: int) -> Self:
        """Return what one of `nodes` needs."""
        first = self.first_rank + sum(len(node.devices) for node in self.nodes[:number])
        return replace(self, nodes=(self.nodes[number],), first_rank=first)

    def log_file(self, rank: int) -> Path:
        """Return the file in `log_dir` that takes the output of a global rank."""
        workers = [(node.host, local_rank) for node in self.nodes for local_rank in range(len(node.devices))]
        host, local_rank = workers[rank - self.first_rank]
        return Path(self.log_dir or "", rank_log_name(host.replace("/", "_"), local_rank))

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Return the fields of this class from JSON values that may hold more."""
        values: dict[str, Any] = {field.name: data[field.name] for field in fields(cls)}
        values["nodes"] = tuple(map(NodePlan.from_plain, data["nodes"]))
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec(NodeSpec):
    """One training as its workers see it, the same on every rank of a node."""

    config: TrainConfig
    backend: str | None
    """`nccl` or `gloo`; None for a single worker, which needs no process group."""
    num_envs: int
    """Environments on each worker."""
    start: Start | None = None
    probe: int | None = None
    """Size of the all_reduce that the ranks time before they train; 0 for that of the learner's gradient, None for no
    measurement."""

    def to_json(self) -> str:
        """Return this specification as a string."""
        return json.dumps(asdict(self) | {"config": to_plain(self.config)})

    @classmethod
    def from_json(cls, text: str, own: TrainConfig | None = None) -> Self:
        """Return the specification that `to_json` made into a string. Imports the task that it names.

        Args:
            text: The string.
            own: This process's own configuration, where the string comes from a process that is not trusted.

        Raises:
            UsageError: The string names code that `own` does not name.
        """
        data: dict[str, Any] = json.loads(text)
        if own is not None:
            found = foreign_code(to_plain(own), data["config"])
            if found is not None:
                raise UsageError(
                    f"Rank 0 would import '{found[1]}' ({found[0]}), which this rank was not asked for: type the same "
                    "command for every rank, with the task and the classes of the run that goes on."
                )
        task: str = data["config"]["task"]
        data["config"] = from_plain(own or registry.resolve(task).defaults(task), data["config"])
        data["start"] = Start(**data["start"]) if data["start"] else None
        return cls.from_plain(data)
