"""The plan of a launch, whatever its workers do: mode, nodes and devices. What cannot be done is refused here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from shoal.config import LaunchConfig
from shoal.config.plain import shared_fields
from shoal.errors import UsageError, counted
from shoal.machine.gpus import VisibleGpus
from shoal.machine.host import why_unwritable
from shoal.machine.network import through
from shoal.plan.devices import GpuIds, parse_gpu_ids, plan_workers
from shoal.plan.launchers import Launcher, launcher_of
from shoal.plan.nodes import NodePlan, Nodes, choose_backend
from shoal.plan.ranks import Rank, joined_rank, stale_rank_note
from shoal.plan.rundir import RunDir
from shoal.plan.slurm import has_own_gpus

LaunchMode = Literal["in process", "spawned", "joined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """Where the workers of one command run, and how they are started."""

    config: LaunchConfig
    tasks: tuple[str, ...]
    """What the workers import; the same everywhere."""
    launch_mode: LaunchMode
    nodes: tuple[NodePlan, ...]
    """The nodes whose workers this process plans, never empty: those of `--hosts`, otherwise this machine alone."""
    rendezvous: str | None = None
    """The address at which the ranks of several nodes of `--hosts` meet."""
    world_size: int
    rank: Rank | None
    """In the mode *joined*, this process's rank."""
    notes: tuple[str, ...]
    """What the user should read before the workers start."""

    def shared(self, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  Fields of any type.
        """Return the fields of this class by name, with changes, for a plan that has more."""
        return shared_fields(LaunchPlan, self) | changes

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of each worker of `nodes`, in the order of their ranks."""
        return tuple(device for node in self.nodes for device in node.devices)

    @property
    def workers(self) -> str:
        """Number of workers, and their devices, in words."""
        return f"{counted(self.world_size, 'worker')} on {', '.join(dict.fromkeys(self.devices))}"

    @property
    def backend(self) -> Literal["nccl", "gloo"] | None:
        """Backend of the process group; None for a single worker."""
        return choose_backend((node.supports_nccl for node in self.nodes), self.world_size)

    @property
    def is_remote(self) -> bool:
        """Whether the workers run on the nodes of `--hosts`."""
        return bool(self.config.hosts)

    @property
    def leads(self) -> bool:
        """Whether rank 0 is one of this process's workers, so far as is known before the ranks meet."""
        return self.rank is None or self.rank.rank == 0

    def log_base(self, run: RunDir, environ: Mapping[str, str]) -> Path | None:
        """Return the directory that gets one directory of rank files for each launch, or None when they are off.

        `TORCHRUNX_LOG_DIR`, even an empty one, wins over the flag, whose default is a directory of the run.
        """
        if self.launch_mode != "spawned":
            return None
        named = environ.get("TORCHRUNX_LOG_DIR", self.config.torchrunx_log_dir)
        return run.torchrunx_dir if named is None else Path(named) if named else None

    def node_fields(self, run: RunDir, log_dir: Path | None) -> dict[str, Any]:
        """Return the fields of a `NodeSpec`. Rank files go to `log_dir`, if there is one."""
        return {
            "run_dir": str(run.path.absolute()),
            "nodes": self.nodes,
            "world_size": self.world_size,
            "rendezvous": self.rendezvous,
            "log_dir": str(log_dir.absolute()) if log_dir else None,
        }

    def refuse_unwritable_logs(self, environ: Mapping[str, str]) -> None:
        """Refuse a directory of rank files that cannot be written."""
        log_base = self.log_base(RunDir(Path(self.config.log_root)), environ)
        if log_base is not None:
            named = "TORCHRUNX_LOG_DIR" if "TORCHRUNX_LOG_DIR" in environ else "--torchrunx-log-dir"
            refuse_unwritable(named, log_base)


def plan_launch(  # noqa: PLR0913  What training and evaluation differ in is by name.
    config: LaunchConfig,
    tasks: Sequence[str],
    environ: Mapping[str, str],
    gpus: VisibleGpus,
    probe_hosts: Callable[[], Nodes] | None = None,
    *,
    spawns: bool = False,
) -> LaunchPlan:
    """Decide where the workers run.

    `probe_hosts` probes and plans the nodes of `--hosts`. `spawns` is whether a single worker gets a process of its
    own, too.
    """
    rank, launcher = joined_rank(environ), launcher_of(environ)
    if rank is not None:
        _refuse_launchers_decisions(config, rank, launcher)
    found = probe_hosts() if probe_hosts else _plan_local(config, rank, parse_gpu_ids(config.gpu_ids), environ, gpus)
    world_size = rank.world_size if rank else sum(len(node.devices) for node in found.nodes)
    spawned = world_size > 1 or spawns or config.hosts
    stale = stale_rank_note(environ)
    return LaunchPlan(
        config=config,
        tasks=tuple(tasks),
        launch_mode="joined" if rank else "spawned" if spawned else "in process",
        nodes=found.nodes,
        rendezvous=found.rendezvous,
        world_size=world_size,
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
        own = plan_workers(gpu_ids, 1, gpus)
        workers = replace(own, devices=own.devices * number)
    else:
        workers = plan_workers(gpu_ids, number, gpus)
    return Nodes(nodes=(NodePlan.of(workers, gpus),), notes=workers.notes)


def refuse_unwritable(flag: str, directory: Path) -> None:
    """Refuse a directory, named by a flag, that cannot be made or written."""
    found = why_unwritable(directory)
    if found is not None:
        nearest, why = found
        raise UsageError(f"{flag} asks for {directory}, but {nearest} {why}: pass a directory that you can write to.")
