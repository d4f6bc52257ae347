"""The plan of a launch, whatever its workers do: mode, nodes and devices. What cannot be done is refused here.

It is made once, and travels as JSON to every worker.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from shoal.config import LaunchConfig
from shoal.config.plain import shared_fields
from shoal.errors import UsageError, counted
from shoal.machine.gpus import VisibleGpus
from shoal.machine.host import why_unwritable
from shoal.machine.network import through
from shoal.plan.nodes import GpuIds, Nodes, choose_backend, parse_gpu_ids, plan_workers
from shoal.plan.ranks import Launcher, Rank, has_own_gpus, joined_rank, launcher_of, stale_rank_note
from shoal.plan.rundir import RunDir

LaunchMode = Literal["in process", "spawned", "joined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Nodes):
    """Where the workers of one command run, and how they are started; a subclass has their work. Plain as JSON.

    There is at least one node: those of `--hosts`, otherwise this machine alone. What is sent to a node has its own
    only, so that the size does not grow with the others.
    """

    config: LaunchConfig
    launch_mode: LaunchMode
    first_rank: int = 0
    """Global rank of the first worker of `nodes`. Ranks count through them in this order."""
    world_size: int
    rank: Rank | None = None
    """In the mode *joined*, this process's rank."""
    backend: Literal["nccl", "gloo"] | None = None
    """Backend of the process group; None without one."""
    run_dir: str = ""
    """Directory of the run, or of the results, once there is one."""
    log_dir: str | None = None
    """Directory of the log files of the ranks; None where the output stays where it is."""
    scratch: str | None = None
    """A directory of a node, removed with the launch: signs of life, heartbeats, temporary files."""
    launch: dict[str, Any] = field(default_factory=dict[str, Any])
    """Entry of `run.json`. Rank 0 writes it where a run goes on; empty where there is none, as in evaluations."""

    def shared(self, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  Fields of any type.
        """Return the fields of this class by name, with changes, for a plan that has more."""
        return shared_fields(Plan, self) | changes

    @property
    def run(self) -> RunDir:
        """The run, with the paths in it."""
        return RunDir(Path(self.run_dir))

    @property
    def ranks(self) -> range:
        """Global ranks of the workers of `nodes`."""
        return range(self.first_rank, self.first_rank + len(self.devices))

    @property
    def workers(self) -> str:
        """Number of workers, and their devices, in words."""
        return f"{counted(self.world_size, 'worker')} on {', '.join(dict.fromkeys(self.devices))}"

    @property
    def tasks(self) -> tuple[str, ...]:
        """What the workers import; the same everywhere."""
        return (self.config.task,) if self.config.task else ()

    @property
    def is_remote(self) -> bool:
        """Whether the workers run on the nodes of `--hosts`."""
        return bool(self.config.hosts)

    @property
    def leads(self) -> bool:
        """Whether rank 0 is one of this process's workers, so far as is known before the ranks meet."""
        return self.rank is None or self.rank.rank == 0

    def begun(self, run: RunDir, log_dir: Path | None) -> Self:
        """Return what the workers are sent. Log files go to `log_dir`."""
        return replace(self, run_dir=str(run.path.absolute()), log_dir=str(log_dir.absolute()) if log_dir else None)

    def on_nodes(self, found: Nodes, **changes: Any) -> Self:  # noqa: ANN401  Fields of any type.
        """Return the same on other nodes, with other changes."""
        size = len(found.devices)
        backend = choose_backend((node.supports_nccl for node in found.nodes), size)
        nodes = {"nodes": found.nodes, "rendezvous": found.rendezvous, "world_size": size, "backend": backend}
        return replace(self, **nodes | changes)

    def of_node(self, number: int) -> Self:
        """Return what one of `nodes` needs."""
        first = self.first_rank + sum(len(node.devices) for node in self.nodes[:number])
        return replace(self, nodes=(self.nodes[number],), first_rank=first)

    def log_file(self, rank: int) -> Path:
        """Return the file in `log_dir` that takes the output of a global rank."""
        workers = [(node.host, local_rank) for node in self.nodes for local_rank in range(len(node.devices))]
        host, local_rank = workers[rank - self.first_rank]
        return Path(self.log_dir or "", f"{host.replace('/', '_')}[{local_rank}].log")  # As torchrunx 0.4 names it.

    def log_base(self, run: RunDir, environ: Mapping[str, str]) -> Path | None:
        """Return the directory that gets one directory of log files for each launch, or None when they are off.

        `TORCHRUNX_LOG_DIR`, even an empty one, wins over the flag, whose default is a directory of the run.
        """
        if self.launch_mode != "spawned":
            return None
        named = environ.get("TORCHRUNX_LOG_DIR", self.config.torchrunx_log_dir)
        return run.torchrunx_dir if named is None else Path(named) if named else None

    def refuse_unwritable_logs(self, environ: Mapping[str, str]) -> None:
        """Refuse a directory of log files that cannot be written."""
        log_base = self.log_base(RunDir(Path(self.config.log_root)), environ)
        if log_base is not None:
            named = "TORCHRUNX_LOG_DIR" if "TORCHRUNX_LOG_DIR" in environ else "--torchrunx-log-dir"
            refuse_unwritable(named, log_base)


def plan_launch(
    config: LaunchConfig,
    environ: Mapping[str, str],
    gpus: VisibleGpus,
    probe_hosts: Callable[[], Nodes] | None = None,
    *,
    spawns: bool = False,
) -> Plan:
    """Decide where the workers run.

    `probe_hosts` probes and plans the nodes of `--hosts`. `spawns` is whether a single worker gets a process of its
    own, too.
    """
    rank, launcher = joined_rank(environ), launcher_of(environ)
    if rank is not None:
        _refuse_launchers_decisions(config, rank, launcher)
    found = probe_hosts() if probe_hosts else _plan_local(config, rank, parse_gpu_ids(config.gpu_ids), environ, gpus)
    world_size = rank.world_size if rank else len(found.devices)
    spawned = world_size > 1 or spawns or config.hosts
    stale = stale_rank_note(environ)
    return Plan(
        config=config,
        launch_mode="joined" if rank else "spawned" if spawned else "in process",
        nodes=found.nodes,
        rendezvous=found.rendezvous,
        world_size=world_size,
        backend=choose_backend((node.supports_nccl for node in found.nodes), world_size),
        rank=rank,
        notes=(*found.notes, stale) if stale else found.notes,
    )


def _refuse_launchers_decisions(config: LaunchConfig, rank: Rank, launcher: Launcher | None) -> None:
    """Refuse flags about what the launcher of this process has decided, and an interface that is not here."""
    if config.interface is not None:
        through(config.interface)
    if config.hosts:
        raise UsageError(
            f"--hosts was passed, but {launcher} started this process, and has decided on the machines: pass --hosts "
            f"without {launcher}, or leave it out."
        )
    if config.nproc_per_node not in (None, rank.local_world_size):
        raise UsageError(
            f"--nproc-per-node {config.nproc_per_node} was asked for, but the launcher has started "
            f"{rank.local_world_size} workers on this machine: leave the flag out, or tell the launcher."
        )


def _plan_local(
    config: LaunchConfig, rank: Rank | None, gpu_ids: GpuIds, environ: Mapping[str, str], gpus: VisibleGpus
) -> Nodes:
    """Return the plan of this machine's workers; in the mode *joined* the launcher has set their number."""
    number = config.nproc_per_node if rank is None else rank.local_world_size
    if number and launcher_of(environ) == "srun" and has_own_gpus(environ, len(gpus), number):
        found = plan_workers(gpu_ids, 1, gpus)
        (own,) = found.nodes
        return replace(found, nodes=(replace(own, devices=own.devices * number, uuids=own.uuids * number),))
    return plan_workers(gpu_ids, number, gpus)


def refuse_unwritable(flag: str, directory: Path) -> None:
    """Refuse a directory, named by a flag, that cannot be made or written."""
    found = why_unwritable(directory)
    if found is not None:
        nearest, why = found
        raise UsageError(f"{flag} asks for {directory}, but {nearest} {why}: pass a directory that you can write to.")


def refuse_unwritable_file(flag: str, file: Path, name: str) -> None:
    """Refuse a file, named by a flag, that cannot be written. `name` is one that it could have in a directory."""
    if file.is_dir():
        raise UsageError(f"{flag} asks for {file}, which is a directory: pass a file, such as {file / name}.")
    refuse_unwritable(flag, file.parent)
