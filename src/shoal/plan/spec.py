"""`WorkerSpec`, which each worker of a training gets as JSON, and `NodeSpec`, the part that its node needs too."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from shoal.config import TrainConfig
from shoal.config.checks import foreign_code
from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError
from shoal.plan.nodes import NodePlan
from shoal.plan.rundir import RunDir
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
    nodes: tuple[NodePlan, ...]
    """All nodes in the launching process, and one in what is sent to a node: the size does not grow with the others."""
    first_rank: int = 0
    """Global rank of the first worker of `nodes`. Ranks count through them in this order."""
    world_size: int
    rendezvous: str | None = None
    """Address of node 0 at which the ranks of several nodes meet; None for one node."""
    log_dir: str | None = None
    """Directory of the ranks' output files; None where the output stays where it is."""
    scratch: str | None = None
    """A directory of this node, removed with the launch: signs of life, heartbeats, temporary files."""

    @property
    def run(self) -> RunDir:
        """The run, with the paths in it."""
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
        return Path(self.log_dir or "", f"{host.replace('/', '_')}[{local_rank}].log")  # As torchrunx 0.4 names it.

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Return the fields of this class from JSON values that may hold more."""
        return from_plain(cls, {field.name: data[field.name] for field in fields(cls)})


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
        """Return all fields as a string."""
        return json.dumps(to_plain(self))

    @classmethod
    def from_json(cls, text: str, own: TrainConfig | None = None) -> Self:
        """Return the specification that `to_json` made into a string. Imports the task that it names.

        From a process that is not trusted it may name only code that `own`, this process's configuration, names too.
        """
        data: dict[str, Any] = json.loads(text)
        if own is not None:
            found = foreign_code(to_plain(own), data["config"])
            if found is not None:
                raise UsageError(
                    f"Rank 0 would import '{found[1]}' ({found[0]}), which this rank was not asked for: type the same "
                    "command for every rank, with the task and the classes of the run that goes on."
                )
        task, learner = data["config"]["task"], data["config"]["learner"]
        data["config"] = from_plain(own or registry.resolve(task).defaults(task, learner), data["config"])
        return cls.from_plain(data)
