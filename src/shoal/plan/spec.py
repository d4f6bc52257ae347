"""`WorkerSpec`, which each worker gets as JSON, and `NodeSpec`, the part that its node needs too."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from shoal.config import LaunchConfig, TrainConfig
from shoal.config.checks import foreign_code
from shoal.config.evaluate import Assignment
from shoal.config.plain import from_plain, to_plain
from shoal.config.sweep import SweepFile
from shoal.errors import UsageError
from shoal.plan.job import Job
from shoal.plan.nodes import NodePlan
from shoal.plan.rundir import RunDir
from shoal.tasks import registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The checkpoint that training starts from."""

    model: str
    """Path of the `model.pt` to load."""
    mode: Literal["continue", "weights", "teacher"]
    """`continue` takes iteration, totals, optimizer and learning rate too; `weights` only the networks; `teacher` is of
    another learner, and only its policy is taken."""


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
        return from_plain(cls, {each.name: data[each.name] for each in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec(NodeSpec):
    """The work of a launch as its workers see it, the same on every rank of a node."""

    config: LaunchConfig
    backend: str | None = None
    """`nccl` or `gloo`; None without a process group."""
    launch: dict[str, Any] = field(default_factory=dict[str, Any])
    """Entry of `run.json`. Rank 0 writes it where a run goes on; empty where there is none, as in evaluations."""

    def to_json(self) -> str:
        """Return all fields as a string."""
        return json.dumps({"work": type(self).__name__, **to_plain(self)})

    @classmethod
    def from_json(cls, text: str, own: Self | None = None) -> Self:
        """Return the specification that `to_json` made into a string. Imports the task that it names.

        From a process that is not trusted it may name only code that `own`, this process's specification, names too.
        """
        data: dict[str, Any] = json.loads(text)
        kind: type[Any] = _KINDS[data["work"]]
        if own is not None:
            found = foreign_code(kind.code_in(to_plain(own)), kind.code_in(data))
            if found is not None:
                raise UsageError(
                    f"Rank 0 would import '{found[1]}' ({found[0]}), which this rank was not asked for: type the same "
                    "command for every rank, with the task and the classes of the run that goes on."
                )
        data["config"] = kind.read_config(data["config"], own and own.config)
        return kind.from_plain(data)

    @classmethod
    def read_config(cls, config: dict[str, Any], own: LaunchConfig | None) -> LaunchConfig:
        """Return the configuration of plain values."""
        del own
        return from_plain(LaunchConfig, config)

    @classmethod
    def code_in(cls, plain: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the parts of the plain values that may name code: mappings with `task`, `env`, `learner`, `agent`."""
        return [plain["config"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec(WorkerSpec):
    """One training."""

    config: TrainConfig
    num_envs: int
    """Environments on each worker."""
    start: Start | None = None
    probe: int | None = None
    """Size of the all_reduce that the ranks time before they train; 0 for that of the learner's gradient, None for no
    measurement."""

    @classmethod
    def read_config(cls, config: dict[str, Any], own: LaunchConfig | None) -> TrainConfig:
        """Return the configuration of plain values, with the classes of its task and learner."""
        task, learner = config["task"], config["learner"]
        known = own if isinstance(own, TrainConfig) else registry.resolve(task).defaults(task, learner)
        return from_plain(known, config)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSpec(WorkerSpec):
    """A queue of evaluation jobs. The directory of the run is that of the results."""

    jobs: tuple[Job, ...]
    assignment: Assignment
    fail_fast: bool = False
    policy_device: str | None = None
    policy_device_id: int | None = None

    @classmethod
    def code_in(cls, plain: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the jobs."""
        return plain["jobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec(WorkerSpec):
    """A sweep, whose trials each worker trains one at a time. The directory of the run is that of the sweep."""

    sweep: SweepFile

    @classmethod
    def code_in(cls, plain: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Return the task, the learner, and the values of all flags by their dotted names."""
        sweep = plain["sweep"]
        choices = {name: parameter["choices"] for name, parameter in sweep["parameters"].items()}
        return [plain["config"], sweep["fixed"], choices]


_KINDS = {kind.__name__: kind for kind in (TrainSpec, EvaluateSpec, SweepSpec)}
