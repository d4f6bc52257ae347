"""The plan of a training: launch mode, nodes and devices, batch sizes, directories, and the checkpoint to start from.

What cannot be done is refused here, before a process is started or a file is written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from shoal.config import TrainConfig
from shoal.config.env import MujocoConfig
from shoal.config.machines import number_of_nodes
from shoal.errors import UsageError
from shoal.machine.gpus import VisibleGpus
from shoal.machine.host import why_unwritable
from shoal.machine.network import through
from shoal.plan.devices import GpuIds, parse_gpu_ids, plan_bound_workers, plan_workers
from shoal.plan.launchers import Launcher, launcher_of
from shoal.plan.nodes import NodePlan, Nodes, choose_backend
from shoal.plan.ranks import Rank, joined_rank, stale_rank_note
from shoal.plan.resume import changes_since, find_start
from shoal.plan.rundir import (
    RunDir,
    experiment_dir,
    refuse_links,
    torchrunx_log_dir,
    validate_run_name,
)
from shoal.plan.spec import Start, WorkerSpec
from shoal.plan.srun import has_own_gpus
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec

LaunchMode = Literal["in process", "spawned", "joined", "elastic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """What one `train` command will do."""

    config: TrainConfig
    spec: TaskSpec
    launch_mode: LaunchMode
    nodes: tuple[NodePlan, ...]
    """The nodes whose workers this process plans, never empty: those of `--hosts`, otherwise this machine alone."""
    rendezvous: str | None = None
    """The address at which the ranks of several nodes of `--hosts` meet."""
    world_size: int
    num_envs: int
    """Environments on each worker."""
    rank: Rank | None
    """This process's rank, in the mode *joined*."""
    continued: RunDir | None
    """The run that is continued; None for a new one."""
    start: Start | None
    start_iteration: int
    notes: tuple[str, ...]
    """Sentences that the user should read before training starts."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of each worker of `nodes`, in the order of their ranks."""
        return tuple(device for node in self.nodes for device in node.devices)

    @property
    def backend(self) -> Literal["nccl", "gloo"] | None:
        """Backend of the process group; None for a single worker."""
        return choose_backend((node.supports_nccl for node in self.nodes), self.world_size)

    @property
    def is_remote(self) -> bool:
        """Whether the workers run on the nodes of `--hosts`."""
        return bool(self.config.hosts)

    @property
    def samples_per_iteration(self) -> int:
        """Environment steps of all workers in one iteration."""
        return self.num_envs * self.world_size * self.config.agent.num_steps_per_env

    @property
    def mini_batch_size(self) -> int:
        """Environment steps of one worker in one gradient. rsl_rl rounds down and drops the rest."""
        agent = self.config.agent
        return self.num_envs * agent.num_steps_per_env // agent.algorithm.num_mini_batches

    def log_base(self, run: RunDir, environ: Mapping[str, str]) -> Path | None:
        """Return the directory that gets one directory of rank files for each launch, or None when they are off."""
        return torchrunx_log_dir(environ, self.config.torchrunx_log_dir, run) if self.launch_mode == "spawned" else None

    def worker_spec(self, run: RunDir, log_dir: Path | None = None) -> WorkerSpec:
        """Return what the workers need to know. Rank files go to `log_dir`, if there is one."""
        return WorkerSpec(
            config=self.config,
            run_dir=str(run.path.absolute()),
            nodes=self.nodes,
            world_size=self.world_size,
            rendezvous=self.rendezvous,
            log_dir=str(log_dir.absolute()) if log_dir else None,
            backend=self.backend,
            num_envs=self.num_envs,
            start=self.start,
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the plan as plain values, for `run.json` and `--dry-run`."""
        return {
            "task": self.config.task,
            "launch_mode": self.launch_mode,
            "devices": list(self.devices),
            **self._remote_nodes_to_plain(),
            "backend": self.backend,
            "world_size": self.world_size,
            **self._rates_to_plain(),
            "num_envs": self.num_envs,
            "num_envs_total": self.num_envs * self.world_size,
            "samples_per_iteration": self.samples_per_iteration,
            "mini_batch_size": self.mini_batch_size,
            "seeds": [self.config.seed + rank for rank in range(self.world_size)],
            "max_iterations": self.config.max_iterations,
            "start": self.start.model if self.start else None,
            "start_iteration": self.start_iteration,
        }

    def _rates_to_plain(self) -> dict[str, Any]:
        """Return how often physics and policy run, where the configuration says it."""
        env = self.config.env
        physics_dt = getattr(env, "physics_dt", None)
        if physics_dt is None:
            return {}
        physics_hz = 1 / physics_dt
        return {"physics_hz": round(physics_hz, 3), "control_hz": round(physics_hz / getattr(env, "decimation", 1), 3)}

    def _remote_nodes_to_plain(self) -> dict[str, Any]:
        """Return the nodes of `--hosts`."""
        if not self.is_remote:
            return {}
        return {
            "machines": [f"{node.host}: {', '.join(node.devices)}" for node in self.nodes],
            "interfaces": [f"{node.host}: {node.network.get('GLOO_SOCKET_IFNAME', '-')}" for node in self.nodes],
            "rendezvous": self.rendezvous,
        }


def plan_training(
    config: TrainConfig,
    environ: Mapping[str, str],
    gpus: VisibleGpus,
    probe_hosts: Callable[[], Nodes] | None = None,
) -> TrainPlan:
    """Decide everything about one training.

    Args:
        config: The configuration.
        environ: Environment variables.
        gpus: The visible GPUs.
        probe_hosts: With `--hosts`, probes and plans the nodes.

    Raises:
        UsageError: What was asked cannot be done.
    """
    spec = registry.resolve(config.task)
    validate_run_name(config.run_name)
    rank = joined_rank(environ)
    leads = not config.node_rank if rank is None else rank.rank == 0
    if rank is not None and config.interface is not None:
        through(config.interface)
    gpu_ids, number = _requested_workers(config, rank, launcher_of(environ))
    if probe_hosts is not None:
        found = probe_hosts()
    else:
        if rank and launcher_of(environ) == "srun" and has_own_gpus(environ, len(gpus), rank.local_world_size):
            workers = plan_bound_workers(gpu_ids, rank.local_world_size, gpus)
        else:
            workers = plan_workers(gpu_ids, number, gpus)
        found = Nodes(nodes=(NodePlan.of(workers, gpus),), notes=workers.notes)
    num_nodes = number_of_nodes(config.nnodes)[1] if config.nnodes and rank is None else 1
    world_size = rank.world_size if rank else num_nodes * sum(len(node.devices) for node in found.nodes)
    _refuse_useless_restarts(config, launcher_of(environ), world_size)
    num_envs = _envs_per_worker(config, world_size)
    _refuse_empty_mini_batches(config, num_envs)
    if isinstance(config.env, MujocoConfig):
        config.env.engine_on(found.nodes[0].devices[0])
    # Rank 0 alone looks for the run and the checkpoint: other ranks may have disks of their own.
    continued, start, iteration, passed_over = find_start(config, spec) if leads else (None, None, 0, [])
    env_notes = spec.check_env(config.env)
    if continued is None:
        refuse_unwritable("--log-root", experiment_dir(config.log_root, spec.experiment))
    else:
        refuse_links(continued)
        refuse_unwritable("--resume", continued.path)
    stale = stale_rank_note(environ)
    spawned = world_size > 1 or config.max_restarts or config.hosts
    launch_mode: LaunchMode = (
        "joined" if rank else "elastic" if num_nodes > 1 else "spawned" if spawned else "in process"
    )
    plan = TrainPlan(
        config=config,
        spec=spec,
        launch_mode=launch_mode,
        nodes=found.nodes,
        rendezvous=found.rendezvous,
        world_size=world_size,
        num_envs=num_envs,
        rank=rank,
        continued=continued,
        start=start,
        start_iteration=iteration,
        notes=(
            *found.notes,
            *([stale] if stale else []),
            *([spec.note] if spec.note else []),
            *env_notes,
            *passed_over,
            *changes_since(config, start, world_size, num_envs),
        ),
    )
    log_base = plan.log_base(RunDir(Path(config.log_root)), environ)
    if log_base is not None:
        named = "TORCHRUNX_LOG_DIR" if "TORCHRUNX_LOG_DIR" in environ else "--torchrunx-log-dir"
        refuse_unwritable(named, log_base)
    # From here on the task is named so that it is found from any working directory.
    return replace(plan, config=replace(config, task=_absolute(config.task)))


def _requested_workers(config: TrainConfig, rank: Rank | None, launcher: Launcher | None) -> tuple[GpuIds, int | None]:
    """Return the GPUs and the number of workers of this node; in the mode *joined* the launcher has set the number."""
    flag = "--hosts" if config.hosts else "--nnodes" if config.nnodes else None
    if rank is not None and flag:
        raise UsageError(
            f"{flag} was passed, but {launcher} started this process, and has decided on the machines: pass {flag} "
            f"without {launcher}, or leave it out."
        )
    gpu_ids = requested_gpus(config)
    if rank is None:
        return gpu_ids, config.nproc_per_node
    if config.nproc_per_node not in (None, rank.local_world_size):
        raise UsageError(
            f"--nproc-per-node {config.nproc_per_node} was asked for, but the launcher has started "
            f"{rank.local_world_size} workers on this machine: leave the flag out, or tell the launcher."
        )
    return gpu_ids, rank.local_world_size


def requested_gpus(config: TrainConfig) -> GpuIds:
    """Return the GPUs that `--gpu-ids` requests on each node."""
    return "auto" if config.gpu_ids == ("auto",) else parse_gpu_ids(config.gpu_ids)


def _refuse_useless_restarts(config: TrainConfig, launcher: Launcher | None, world_size: int) -> None:
    """Refuse restart flags that have no effect.

    Raises:
        UsageError: Another launcher restarts, restarts are off, or `--min-workers` exceeds the number of workers.
    """
    if launcher == "torchrun" and config.max_restarts:
        raise UsageError(
            f"--max-restarts {config.max_restarts} was asked for, but torchrun started this process, and only torchrun "
            "can start its workers again: pass --max-restarts to torchrun, and --max-restarts 0 here."
        )
    if launcher == "srun" and config.max_restarts:
        raise UsageError(
            f"--max-restarts {config.max_restarts} was asked for, but srun started this process, and cannot start its "
            "tasks again: let the batch script requeue the job, or pass --hosts slurm without srun."
        )
    if config.min_workers is None:
        return
    if not config.max_restarts:
        raise UsageError(
            f"--min-workers {config.min_workers} was asked for, but without restarts it does nothing: "
            "pass --max-restarts 3, say, or leave it out."
        )
    if config.min_workers > world_size:
        raise UsageError(
            f"--min-workers {config.min_workers} was asked for, but there are {world_size} to begin with: "
            f"pass --min-workers {world_size} or fewer."
        )


def _envs_per_worker(config: TrainConfig, world_size: int) -> int:
    """Return the environments on each worker.

    Raises:
        UsageError: The total does not divide evenly.
    """
    total = config.num_envs_total
    if total is None:
        return config.num_envs
    if total < world_size or total % world_size:
        below = max(1, total // world_size) * world_size
        raise UsageError(
            f"--num-envs-total {total} does not divide evenly over {world_size} workers: "
            f"pass --num-envs-total {below} or {below + world_size}."
        )
    return total // world_size


def _refuse_empty_mini_batches(config: TrainConfig, num_envs: int) -> None:
    """Refuse empty mini-batches. rsl_rl rounds their size down, even to zero.

    Raises:
        UsageError: There are more of them than there are samples, or sequences for a recurrent network.
    """
    agent = config.agent
    requested = agent.algorithm.num_mini_batches
    recurrent = "RNNModel" in (agent.actor.class_name, agent.critic.class_name)
    samples = num_envs if recurrent else num_envs * agent.num_steps_per_env
    if requested <= samples:
        return
    envs = "1 environment" if num_envs == 1 else f"{num_envs} environments"
    why = (
        f"{envs}, whose sequences a recurrent network learns from as wholes"
        if recurrent
        else f"{agent.num_steps_per_env} steps of {envs}"
    )
    raise UsageError(
        f"--agent.algorithm.num-mini-batches {requested} was asked for, but a worker collects only {why}: pass "
        f"--agent.algorithm.num-mini-batches {samples} or fewer, or more environments."
    )


def refuse_unwritable(flag: str, directory: Path) -> None:
    """Raise UsageError, with the flag that names it, for a directory that cannot be made or written."""
    found = why_unwritable(directory)
    if found is not None:
        nearest, why = found
        raise UsageError(f"{flag} asks for {directory}, but {nearest} {why}: pass a directory that you can write to.")


def _absolute(task: str) -> str:
    path, dot_py, attribute = task.partition(".py:")
    return f"{Path(path).expanduser().absolute()}{dot_py}{attribute}" if dot_py else task
