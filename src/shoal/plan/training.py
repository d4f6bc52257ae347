"""The plan of a training: launch mode, nodes and devices, batch sizes, directories, and the checkpoint to start from.

What cannot be done is refused here, before a process is started or a file is written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from shoal.config import AgentConfig, TrainConfig
from shoal.config.env import MujocoConfig
from shoal.config.learners import resolve_learner
from shoal.config.machines import number_of_nodes
from shoal.config.rl_games import RlGamesConfig
from shoal.errors import UsageError
from shoal.machine.gpus import VisibleGpus
from shoal.machine.host import why_unwritable
from shoal.machine.network import through
from shoal.plan.devices import GpuIds, parse_gpu_ids, plan_workers
from shoal.plan.launchers import Launcher, launcher_of
from shoal.plan.nodes import NodePlan, Nodes, choose_backend
from shoal.plan.ranks import Rank, joined_rank, stale_rank_note
from shoal.plan.resume import changes_since, find_start
from shoal.plan.rundir import RunDir, experiment_dir, refuse_bad_name, refuse_links
from shoal.plan.slurm import has_own_gpus
from shoal.plan.spec import Start, WorkerSpec
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec
from shoal.user_code import absolute

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
    """In the mode *joined*, this process's rank."""
    continued: RunDir | None
    """The run that is continued; None for a new one."""
    start: Start | None
    start_iteration: int
    notes: tuple[str, ...]
    """What the user should read before training starts."""

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

    def log_base(self, run: RunDir, environ: Mapping[str, str]) -> Path | None:
        """Return the directory that gets one directory of rank files for each launch, or None when they are off.

        `TORCHRUNX_LOG_DIR`, even an empty one, wins over the flag, whose default is a directory of the run.
        """
        if self.launch_mode != "spawned":
            return None
        named = environ.get("TORCHRUNX_LOG_DIR", self.config.torchrunx_log_dir)
        return run.torchrunx_dir if named is None else Path(named) if named else None

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
        config, agent = self.config, self.config.agent
        remote = {
            "machines": [f"{node.host}: {', '.join(node.devices)}" for node in self.nodes],
            "interfaces": [f"{node.host}: {node.network.get('GLOO_SOCKET_IFNAME', '-')}" for node in self.nodes],
            "rendezvous": self.rendezvous,
        }
        physics_dt, rates = getattr(config.env, "physics_dt", None), {}
        if physics_dt is not None:
            control_hz = 1 / physics_dt / getattr(config.env, "decimation", 1)
            rates = {"physics_hz": round(1 / physics_dt, 3), "control_hz": round(control_hz, 3)}
        samples = self.num_envs * agent.num_steps_per_env
        return {
            "task": config.task,
            "learner": config.learner,
            "launch_mode": self.launch_mode,
            "devices": list(self.devices),
            **(remote if self.is_remote else {}),
            "backend": self.backend,
            "world_size": self.world_size,
            **rates,
            "num_envs": self.num_envs,
            "num_envs_total": self.num_envs * self.world_size,
            "samples_per_iteration": samples * self.world_size,
            **agent.plan_entries(self.num_envs),
            "seeds": [config.seed + rank for rank in range(self.world_size)],
            "max_iterations": config.max_iterations,
            "start": self.start.model if self.start else None,
            "start_iteration": self.start_iteration,
        }


def plan_training(
    config: TrainConfig,
    environ: Mapping[str, str],
    gpus: VisibleGpus,
    probe_hosts: Callable[[], Nodes] | None = None,
) -> TrainPlan:
    """Decide everything about one training. With `--hosts`, `probe_hosts` probes and plans the nodes."""
    spec = registry.resolve(config.task)
    refuse_bad_name("--run-name", config.run_name)
    rank, launcher = joined_rank(environ), launcher_of(environ)
    if rank is not None:
        _refuse_launchers_decisions(config, rank, launcher)
    gpu_ids = requested_gpus(config)
    found = probe_hosts() if probe_hosts is not None else _plan_local(config, rank, gpu_ids, environ, gpus)
    num_nodes = number_of_nodes(config.nnodes)[1] if config.nnodes and rank is None else 1
    world_size = rank.world_size if rank else num_nodes * sum(len(node.devices) for node in found.nodes)
    _refuse_useless_restarts(config, launcher, world_size)
    num_envs = _envs_per_worker(config, world_size)
    resolve_learner(config.learner).require()
    config.agent.check_samples(num_envs)
    if isinstance(config.env, MujocoConfig):
        config.env.engine_on(found.nodes[0].devices[0])
    # Rank 0 alone looks for the run and the checkpoint: other ranks may have disks of their own.
    leads = not config.node_rank if rank is None else rank.rank == 0
    continued, start, iteration, passed_over = find_start(config, spec) if leads else (None, None, 0, [])
    change = changes_since(config, start, world_size, num_envs)
    notes = (*found.notes, stale_rank_note(environ), spec.note, *spec.check_env(config.env), *passed_over, change)
    spawned = world_size > 1 or config.max_restarts or config.hosts
    plan = TrainPlan(
        # From here on files are named so that they are found from any working directory.
        config=replace(
            config, task=absolute(config.task), learner=absolute(config.learner), agent=_with_text(config.agent)
        ),
        spec=spec,
        launch_mode="joined" if rank else "elastic" if num_nodes > 1 else "spawned" if spawned else "in process",
        nodes=found.nodes,
        rendezvous=found.rendezvous,
        world_size=world_size,
        num_envs=num_envs,
        rank=rank,
        continued=continued,
        start=start,
        start_iteration=iteration,
        notes=tuple(note for note in notes if note),
    )
    _refuse_unwritable_directories(plan, environ)
    return plan


def _refuse_launchers_decisions(config: TrainConfig, rank: Rank, launcher: Launcher | None) -> None:
    """Refuse flags about what the launcher of this process has decided, and an interface that is not here."""
    if config.interface is not None:
        through(config.interface)
    flag = "--hosts" if config.hosts else "--nnodes" if config.nnodes else None
    if flag:
        raise UsageError(
            f"{flag} was passed, but {launcher} started this process, and has decided on the machines: pass {flag} "
            f"without {launcher}, or leave it out."
        )
    if config.nproc_per_node not in (None, rank.local_world_size):
        raise UsageError(
            f"--nproc-per-node {config.nproc_per_node} was asked for, but the launcher has started "
            f"{rank.local_world_size} workers on this machine: leave the flag out, or tell the launcher."
        )


def _plan_local(
    config: TrainConfig, rank: Rank | None, gpu_ids: GpuIds, environ: Mapping[str, str], gpus: VisibleGpus
) -> Nodes:
    """Return the plan of this machine's workers; in the mode *joined* the launcher has set their number."""
    number = config.nproc_per_node if rank is None else rank.local_world_size
    if number and launcher_of(environ) == "srun" and has_own_gpus(environ, len(gpus), number):
        own = plan_workers(gpu_ids, 1, gpus)
        workers = replace(own, devices=own.devices * number)
    else:
        workers = plan_workers(gpu_ids, number, gpus)
    return Nodes(nodes=(NodePlan.of(workers, gpus),), notes=workers.notes)


def requested_gpus(config: TrainConfig) -> GpuIds:
    """Return the GPUs that `--gpu-ids` requests on each node."""
    return "auto" if config.gpu_ids == ("auto",) else parse_gpu_ids(config.gpu_ids)


def _refuse_useless_restarts(config: TrainConfig, launcher: Launcher | None, world_size: int) -> None:
    """Refuse restart flags that have no effect."""
    if launcher and config.max_restarts:
        instead = {
            "torchrun": "only it can start its workers again: pass --max-restarts to torchrun, and 0 here",
            "srun": "cannot start tasks again: let the batch script requeue the job, or pass --hosts slurm alone",
        }
        raise UsageError(
            f"--max-restarts {config.max_restarts} was asked for, but {launcher} started this process, and "
            f"{instead[launcher]}."
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
    """Return the environments on each worker, into which the total has to divide."""
    total = config.num_envs_total
    if total is None:
        return config.num_envs
    if total % world_size:
        below = max(1, total // world_size) * world_size
        raise UsageError(
            f"--num-envs-total {total} does not divide evenly over {world_size} workers: "
            f"pass --num-envs-total {below} or {below + world_size}."
        )
    return total // world_size


def _refuse_unwritable_directories(plan: TrainPlan, environ: Mapping[str, str]) -> None:
    if plan.continued is None:
        refuse_unwritable("--log-root", experiment_dir(plan.config.log_root, plan.spec.experiment))
    else:
        refuse_links(plan.continued)
        refuse_unwritable("--resume", plan.continued.path)
    log_base = plan.log_base(RunDir(Path(plan.config.log_root)), environ)
    if log_base is not None:
        named = "TORCHRUNX_LOG_DIR" if "TORCHRUNX_LOG_DIR" in environ else "--torchrunx-log-dir"
        refuse_unwritable(named, log_base)


def refuse_unwritable(flag: str, directory: Path) -> None:
    """Refuse a directory, named by a flag, that cannot be made or written."""
    found = why_unwritable(directory)
    if found is not None:
        nearest, why = found
        raise UsageError(f"{flag} asks for {directory}, but {nearest} {why}: pass a directory that you can write to.")


def _with_text(agent: AgentConfig) -> AgentConfig:
    """Return the configuration with the text of rl_games' file in place of its path, which holds on one machine."""
    if not isinstance(agent, RlGamesConfig) or agent.yaml is None or "\n" in agent.yaml:
        return agent
    try:
        text = Path(agent.yaml).read_text(encoding="utf-8")
        algorithm = yaml.safe_load(text)["params"]["algo"]["name"]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UsageError(
            f"--agent.yaml {agent.yaml} is no configuration of rl_games ({type(error).__name__}: {error}): pass a "
            "file with `params` at its top."
        ) from error
    if algorithm != "a2c_continuous":
        raise UsageError(
            f"--agent.yaml {agent.yaml} asks for {algorithm}, but Shoal runs a2c_continuous alone: pass such a file."
        )
    return replace(agent, yaml=text)
