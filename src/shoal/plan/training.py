"""The plan of a training: launch mode, nodes and devices, batch sizes, directories, and the checkpoint to start from.

What cannot be done is refused here, before a process is started or a file is written.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from shoal.config import AgentConfig, TrainConfig
from shoal.config.env import MujocoConfig
from shoal.config.learners import resolve_learner
from shoal.config.rl_games import RlGamesConfig
from shoal.errors import UsageError, did_you_mean
from shoal.machine.gpus import VisibleGpus
from shoal.plan.launch import Plan, plan_launch, refuse_unwritable
from shoal.plan.nodes import Nodes
from shoal.plan.ranks import Launcher, launcher_of
from shoal.plan.resume import Start, changes_since, find_start, with_shipped_teacher, with_teacher
from shoal.plan.rundir import RunDir, experiment_dir, refuse_bad_name, refuse_links
from shoal.reading import parse_yaml, read_bytes, refusing
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec
from shoal.text import typable
from shoal.user_code import absolute


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan(Plan):
    """What one `train` command will do. The number of environments of its configuration is that of each worker."""

    config: TrainConfig
    continued: RunDir | None = None
    """The run that is continued; None for a new one."""
    start: Start | None = None
    start_iteration: int = 0
    probe: int | None = None
    """Size of the all_reduce that the ranks time before they train; 0 for that of the learner's gradient, None for no
    measurement."""

    @property
    def spec(self) -> TaskSpec:
        """The task."""
        return registry.resolve(self.config.task)

    def summary(self) -> dict[str, Any]:
        """Return what is decided, for `run.json` and `--dry-run`."""
        config, agent = self.config, self.config.agent
        remote = {
            "nodes": [f"{node.host}: {', '.join(node.devices)}" for node in self.nodes],
            "interfaces": [f"{node.host}: {node.network.get('GLOO_SOCKET_IFNAME', '-')}" for node in self.nodes],
            "rendezvous": self.rendezvous,
        }
        physics_dt, rates = getattr(config.env, "physics_dt", None), {}
        if physics_dt is not None:
            control_hz = 1 / physics_dt / getattr(config.env, "decimation", 1)
            rates = {"physics_hz": round(1 / physics_dt, 3), "control_hz": round(control_hz, 3)}
        samples = config.num_envs * agent.num_steps_per_env
        return {
            "task": config.task,
            "learner": config.learner,
            "launch_mode": self.launch_mode,
            "devices": list(self.devices),
            **(remote if self.is_remote else {}),
            "backend": self.backend,
            "world_size": self.world_size,
            **rates,
            "num_envs": config.num_envs,
            "num_envs_total": config.num_envs * self.world_size,
            "samples_per_iteration": samples * self.world_size,
            **agent.plan_entries(config.num_envs),
            "seeds": [config.seed + rank for rank in range(self.world_size)],
            "max_iterations": config.max_iterations,
            "start": self.start.model if self.start else None,
            "start_iteration": self.start_iteration,
        }


def plan_training(
    config: TrainConfig, environ: Mapping[str, str], gpus: VisibleGpus, probe_hosts: Callable[[], Nodes] | None = None
) -> TrainPlan:
    """Decide everything about one training. With `--hosts`, `probe_hosts` probes and plans the nodes."""
    spec = registry.resolve(config.task)
    refuse_bad_name("--run-name", config.run_name)
    launch = plan_launch(config, environ, gpus, probe_hosts, spawns=bool(config.max_restarts))
    world_size = launch.world_size
    _refuse_useless_restarts(config, launcher_of(environ), world_size)
    num_envs = _envs_per_worker(config, world_size)
    resolve_learner(config.learner).require()
    config.agent.check_samples(num_envs)
    observations = getattr(config.env, "observations", None)
    if is_dataclass(observations):
        refuse_unknown_groups(config.agent, [each.name for each in fields(observations)])
    if isinstance(config.env, MujocoConfig):
        config.env.engine_on(launch.nodes[0].devices[0])
    config = with_shipped_teacher(config)
    # Rank 0 alone looks for the run and the checkpoint: other ranks may have disks of their own.
    continued, start, iteration, passed_over = find_start(config, spec) if launch.leads else (None, None, 0, [])
    if launch.leads and start is None:
        config, start = with_teacher(config)
    change = changes_since(config, start, world_size, num_envs)
    notes = (*launch.notes, spec.note, *spec.check_env(config.env), *passed_over, change)
    notes = (*notes, _wandb_note(config, continued))
    # From here on files are named so that they are found from any working directory.
    config = replace(
        config,
        task=absolute(config.task),
        learner=absolute(config.learner),
        agent=_with_text(config.agent),
        num_envs=num_envs,
    )
    plan = TrainPlan(
        **launch.shared(config=config, notes=tuple(note for note in notes if note)),
        continued=continued,
        start=start,
        start_iteration=iteration,
    )
    _refuse_unwritable_directories(plan, environ)
    return plan


def _wandb_note(config: TrainConfig, continued: RunDir | None) -> str | None:
    """Return a note if the continued run was logged to W&B, and goes on without: its own file decides no connection."""
    if continued is None or config.logger == "wandb" or not continued.wandb_run_id.exists():
        return None
    return "The run was logged to W&B before, and now it is not: pass --logger wandb to go on there."


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


def refuse_unknown_groups(agent: AgentConfig, groups: Collection[str]) -> None:
    """Refuse observation groups of the learner that are none of those that the environment has.

    Raises:
        UsageError: There is one.
    """
    for name, wanted in agent.obs_groups.items():
        unknown = next((each for each in wanted if each not in groups), None)
        if unknown is not None:
            raise UsageError(
                f"--agent.obs-groups.{name} names {unknown!r}, but the environment observes "
                f"{', '.join(groups)}.{did_you_mean(unknown, groups)} Pass other groups."
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
    path = str((plan.continued.path if plan.continued else Path(plan.config.log_root)).absolute())
    if typable(path) != path:
        raise UsageError(
            f"The run would be in {path}, which is not UTF-8, and TensorBoard and a run's configuration hold no such "
            "names: pass another --log-root, or rename it."
        )
    if plan.continued is None:
        refuse_unwritable("--log-root", experiment_dir(plan.config.log_root, plan.spec.experiment))
    else:
        refuse_links(plan.continued)
        refuse_unwritable("--resume", plan.continued.path)
    plan.refuse_unwritable_logs(environ)


def _with_text(agent: AgentConfig) -> AgentConfig:
    """Return the configuration with the text of rl_games' file in place of its path, which holds on one machine."""
    if not isinstance(agent, RlGamesConfig) or agent.yaml is None:
        return agent
    is_text = "\n" in agent.yaml
    file = Path("of the run" if is_text else agent.yaml)
    with refusing(file, "pass a configuration of rl_games, with `params` at its top", "--agent.yaml "):
        text = agent.yaml if is_text else read_bytes(file).decode()
        params = parse_yaml(text)["params"]
        algorithm, what = params["algo"]["name"], agent.unsupported(params)
    if what is not None:
        raise UsageError(f"--agent.yaml {file} asks for {what}, which this learner does not have: remove it there.")
    if algorithm != "a2c_continuous":
        raise UsageError(
            f"--agent.yaml {file} asks for {algorithm}, but Shoal runs a2c_continuous alone: pass such a file."
        )
    return replace(agent, yaml=text)
