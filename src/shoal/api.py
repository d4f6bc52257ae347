"""Shoal from Python: the commands as functions. Their public names are those of `shoal`.

Keyword arguments are the flags of a command, with underscores, and are parsed and checked as these. Errors are
`ShoalError`s. Nothing is printed; what a command would say on its way goes to the logger `shoal`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from shoal.cli.parse import parse
from shoal.commands import evaluate as evaluation
from shoal.commands import train as training
from shoal.commands.runs import collect
from shoal.config.evaluate import EvaluateConfig
from shoal.config.plain import from_plain
from shoal.errors import InterruptedRunError, ShoalError, UsageError
from shoal.launch.rank import ProgressReporter
from shoal.machine.gpus import visible_gpus
from shoal.plan.changes import words_of
from shoal.plan.job import Job
from shoal.plan.launch import Plan
from shoal.plan.nodes import one_device
from shoal.plan.rundir import RunDir
from shoal.reading import read_lines, read_plain_file
from shoal.tasks import registry

if TYPE_CHECKING:
    import torch

    from shoal.envs.vec_env import VecEnv
    from shoal.learn.episodes import Policy

os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # As the commands do; CUDA reads it when it is initialized.

PlanT = TypeVar("PlanT", bound=Plan)
T = TypeVar("T")
logger = logging.getLogger("shoal")


class Table(list[dict[str, Any]]):
    """Rows of plain values by name: a list of dicts."""

    def to_pandas(self) -> Any:  # noqa: ANN401  A package that need not be there.
        """Return the rows as a `pandas.DataFrame`."""
        import pandas as pd  # pyright: ignore[reportMissingImports]

        return pd.DataFrame(self)


def make(  # noqa: PLR0913  By name.
    task: str,
    num_envs: int | None = None,
    device: str | torch.device | None = None,
    *,
    seed: int = 1,
    env: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
) -> VecEnv:
    """Build environments of a task as rsl_rl's `VecEnv`, whose contract is that of `shoal.envs.vec_env`.

    Args:
        task: A registered name, `path/to/file.py:Class`, or one of another library, such as `gym:CartPole-v1`.
        num_envs: Number of environments. Default: the task's.
        device: `cpu`, `cuda` or `cuda:1`. Default: GPU 0 if there is one, else the CPU.
        seed: Seed of the environments; torch's random state begins with it, too.
        env: Fields of the environment by their names in `--env.*`: `{"rewards.feet_slip.weight": -0.2}`.
        config: A file with other defaults, such as `<run>/params/train.yaml`.

    Raises:
        UsageError: There is no such task, field or device, or the task cannot be built.
    """
    flags = {"num_envs": num_envs, "config": config, **_gpu_ids(device)}
    words = _words(task, {"seed": seed, **{name: value for name, value in flags.items() if value is not None}}, env=env)
    (asked,) = parse("train", words)
    spec = registry.resolve(asked.task)
    device = one_device(asked.gpu_ids, visible_gpus())
    _log(spec.check_env(asked.env))
    spec.check_build(asked.env)
    return _built(spec, asked.env, num_envs=asked.num_envs, device=device, seed=asked.seed)


def train(
    task: str,
    *,
    env: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
    on_row: Callable[[Mapping[str, float]], object] | None = None,
    **flags: Any,  # noqa: ANN401  As fields of the configuration are.
) -> Path:
    """Train a policy as `train` does, and return the directory of the run.

    SIGINT, as Ctrl-C or a notebook's interrupt button sends it, stops after the running iteration, with a checkpoint.
    One worker trains in this process, where no watchdog ends it.

    Args:
        task: The task, as for `make`.
        env: Fields of the environment, as for `make`.
        agent: Fields of the learner by their names in `--agent.*`.
        on_row: Called with the metrics of each iteration.
        flags: Other flags of `train`: `num_envs=512`, `max_iterations=300`, `resume="latest"`, `nproc_per_node=2`.

    Raises:
        ShoalError: What the command would end with.
        KeyboardInterrupt: SIGINT came. `train(task, resume="latest")` goes on.
    """
    (config,) = parse("train", _words(task, flags, env=env, agent=agent))
    return _launched(training.train, training.make_plan(config), on_row).run.path


def evaluate(
    task: str | None = None,
    *,
    env: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
    **flags: Any,  # noqa: ANN401  As fields of the configuration are.
) -> Table:
    """Evaluate policies as `evaluate` does; return a row for each job, with its statistics under `summary`.

    Args:
        task: The task, as for `make`.
        env: Fields of the environment, as for `make`. Default: those of the policy's training, without disturbances.
        agent: Fields of the learner.
        flags: Other flags of `evaluate`: `checkpoint=run`, `num_episodes=100`, `seeds=(1, 2)`, `jobs="jobs.yaml"`.

    Raises:
        ShoalError: What the command would end with.
    """
    config, overrides = parse("evaluate", _words(task, flags, env=env, agent=agent))
    rows = Table()

    def run(config: EvaluateConfig, jobs: Sequence[Job] | None = None) -> None:
        plan = evaluation.make_plan(config, overrides, jobs)
        names = {job.name for job in plan.jobs}
        _, results = _launched(evaluation.evaluate, plan)
        rows.extend(row for row in results.get("jobs", ()) if row["name"] in names)

    if config.watch is None:
        run(config)
    else:
        evaluation.watch(config, overrides, run)
    return rows


def load_policy(
    policy: str | Path,
    task: str | None = None,
    device: str | torch.device | None = None,
    *,
    env: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
    **flags: Any,  # noqa: ANN401  As fields of the configuration are.
) -> Policy:
    """Load a policy without exploration noise: it maps the observations of any number of environments to actions.

    Call its `reset(dones)` after each step: recurrent networks remember the episode.

    Args:
        policy: A run, a checkpoint, or a .pt, .onnx or .pt2 file; with `task` also `latest` or `best`.
        task: The task, as for `make`. Default: that of the run, if it is registered.
        device: Device of observations and actions, as for `make`.
        env: Fields of the environment, as for `evaluate`.
        agent: Fields of the learner, such as the networks of a file that is in no run.
        flags: Other flags of `evaluate`: `log_root="logs"`, `trust=True`.

    Raises:
        ShoalError: There is no such policy, or it does not fit the task.
    """
    task = task or _task_of(Path(policy).expanduser().absolute())
    words = _words(task, {"checkpoint": policy, **_gpu_ids(device), **flags}, env=env, agent=agent)
    config, overrides = parse("evaluate", words)
    job, *others = evaluation.find_jobs(config, overrides)
    if others:
        raise UsageError(f"load_policy was asked for {policy}, which names several policies: pass one of them.")
    spec = registry.resolve(job.task)
    device = one_device(config.gpu_ids, visible_gpus())
    built = _built(spec, from_plain(spec.env, job.env, "env"), num_envs=1, device=device, seed=job.seed)

    from shoal.jobs.policies import open_policy, policy_device

    return open_policy(job, built, policy_device(job, config.policy_device, env_device=device))


def runs(task: str | None = None, **flags: Any) -> Table:  # noqa: ANN401
    """Return a row for each run of a task, or of all, the newest first: what `shoal runs --json` prints.

    `flags` are its others: `log_root="logs"`, `sort="score"`, `limit=20`.
    """
    (config,) = parse("runs", _words(task, {"json": True, **flags}))
    if config.run is not None:
        raise UsageError(f"{config.run} is a run, and not a task: pass it to metrics() or load_policy().")
    return Table(each.to_plain() for each in collect(config).runs)


def metrics(run: str | Path) -> Table:
    """Return the metrics of a run, a row for each iteration; docs/guide/metrics.md explains the names.

    Raises:
        UsageError: There are none.
    """
    file = RunDir(Path(run)).metrics_jsonl
    if not file.is_file():
        raise UsageError(f"{run} has no metrics.jsonl: pass the directory of a run that has finished an iteration.")
    return Table(read_lines(file, {"iteration": int | float}, "pass another run"))


def _words(task: str | None, flags: Mapping[str, Any], **sections: Mapping[str, Any] | None) -> list[str]:
    """Return the words that one would type: the task, and flags, those of `env` and `agent` by names without these."""
    named = {f"{part}.{name}": value for part, of in sections.items() for name, value in (of or {}).items()}
    for name in {"help", "dry_run"} & flags.keys():
        raise UsageError(f"{name} was passed, which prints and does nothing else: leave it out, or type the command.")
    words = [] if task is None else [str(task)]
    for flag, *values in (words_of(name, value) for name, value in {**flags, **named}.items()):
        # With an equals sign no value is taken for a flag.
        words += [f"{flag}={values[0]}"] if len(values) == 1 else [flag, *values]
    return words


def _gpu_ids(device: object) -> dict[str, Any]:
    """Return the flag of a device."""
    kind, _, index = str(device).partition(":")
    return {} if device is None else {"gpu_ids": {"cpu": "None", "cuda": index or "0"}.get(kind, str(device))}


def _log(notes: Sequence[str]) -> None:
    for note in notes:
        logger.info("%s", note)


def _built(spec: registry.TaskSpec, config: Any, **settings: Any) -> VecEnv:  # noqa: ANN401
    """Build environments, which need no isolation once they are built: they launch on their own device."""
    from shoal.envs.vec_env import build_vec_env
    from shoal.sim.isolation import isolated

    with isolated(settings["device"]):
        return build_vec_env(spec, config, **settings)


class _Reporter(ProgressReporter):
    """Logs lines, and hands metrics on."""

    def __init__(self, on_row: Callable[[Mapping[str, float]], object] | None) -> None:
        self._take = on_row

    def on_row(self, row: Mapping[str, float]) -> None:
        if self._take is not None:
            self._take(row)

    def on_line(self, line: str) -> None:
        _log([line])


def _launched(
    run: Callable[[PlanT, ProgressReporter, Callable[[ShoalError], None] | None], T],
    plan: PlanT,
    on_row: Callable[[Mapping[str, float]], object] | None = None,
) -> T:
    """Run a plan. A rank of another launcher that is stuck ends this process, as its peers would wait for it."""
    _log(plan.notes)
    try:
        return run(plan, _Reporter(on_row), _end if plan.rank else None)
    except InterruptedRunError as error:
        raise KeyboardInterrupt(str(error)) from error


def _end(error: ShoalError) -> NoReturn:
    logger.error("%s", error)
    os._exit(error.exit_code)


def _task_of(policy: Path) -> str:
    """Return the task of the run that a policy is in. It may be another user's: only a registered task is imported."""
    found = (RunDir(folder) for folder in (policy, *policy.parents) if RunDir(folder).train_yaml.is_file())
    run = next(found, None)
    saved = read_plain_file("The policy's", run.train_yaml, example="<run>/params/train.yaml") if run else None
    task = str(saved["task"]) if isinstance(saved, dict) and "task" in saved else None
    if task not in registry.registered():
        what = "is in no run" if task is None else f"is of the task {task}, which is not registered"
        raise UsageError(f"The policy {policy} {what}: pass its task, load_policy(policy, task).")
    return task
