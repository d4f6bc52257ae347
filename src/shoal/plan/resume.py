"""Resume resolution: the run that `--resume` continues, and the checkpoint that a training starts from."""

import logging
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from shoal.config import AgentConfig, TrainConfig
from shoal.config.plain import to_plain
from shoal.errors import UsageError, counted
from shoal.plan.changes import flag_words, flatten
from shoal.plan.checkpoints import (
    Checkpoint,
    best_good,
    best_of_runs,
    check_learner,
    checkpoint_at,
    newest_good,
    run_of,
)
from shoal.plan.rundir import RunDir, experiment_dir, find_run, list_runs
from shoal.plan.saved_config import read_plain_file
from shoal.plan.spec import Start
from shoal.tasks.registry import TaskSpec

logger = logging.getLogger(__name__)

_OF_NETWORKS = {
    *("class_name", "activation", "separate", "std_type", "num_atoms", "num_outputs"),
    *("hidden_dims", "actor_hidden_dims", "critic_hidden_dims", "predictor_hidden_dims", "target_hidden_dims"),
    *("rnn_type", "rnn_hidden_dim", "rnn_num_layers"),
    *("obs_normalization", "state_normalization", "reward_normalization"),
    *("normalize_observations", "normalize_values", "normalize_input", "normalize_value"),
}
"""Fields of learners that networks and normalisers follow from, besides observation groups."""


def find_start(config: TrainConfig, spec: TaskSpec) -> tuple[RunDir | None, Start | None, int, list[str]]:
    """Return the run to continue, the checkpoint to start from, its iteration, and notes about damaged ones."""
    if config.resume is not None:
        run, damaged = run_to_continue(config, spec)
        checkpoint, passed_over = newest_good(run)
        if checkpoint is None:
            reasons = " ".join(passed_over) or "It has none yet."
            message = f"The run {run.path} has no checkpoint to go on from. {reasons} Leave --resume out to start anew."
            raise UsageError(message)
        if checkpoint.iteration >= config.max_iterations:
            raise UsageError(
                f"The run {run.path} is finished: {checkpoint.iteration} of {config.max_iterations} iterations done. "
                f"Pass --max-iterations {checkpoint.iteration * 2} to train it further."
            )
        refuse_other_networks(run, config.agent)
        start = Start(model=str(checkpoint.model.absolute()), mode="continue")
        return run, start, checkpoint.iteration, [*damaged, *passed_over]
    if config.checkpoint is not None:
        model = find_model(config.log_root, spec, config.checkpoint)
        manifest = Checkpoint(model.parent).manifest()
        if "learner" in manifest:
            check_learner(manifest, config.learner)
        refuse_other_networks(run_of(model), config.agent)
        return None, Start(model=str(model.absolute()), mode="weights"), 0, []
    return None, None, 0, []


def saved_section(run: RunDir, name: str) -> Mapping[str, Any]:
    """Return a section of a run's configuration as plain values, without making it; empty where there is none."""
    if not run.train_yaml.is_file():
        return {}
    plain = read_plain_file("--resume", run.train_yaml, example="<run>/params/train.yaml")
    section = cast("dict[str, object]", plain).get(name) if isinstance(plain, dict) else None
    return cast("dict[str, Any]", section) if isinstance(section, dict) else {}


def refuse_other_networks(run: RunDir | None, agent: AgentConfig) -> None:
    """Refuse networks that the weights of a run do not fit, as far as its configuration and this one tell."""
    then = _networks(saved_section(run, "agent") if run else {})
    now = {name: value for name, value in _networks(to_plain(agent)).items() if not _fits(value, then.get(name))}
    if run and now:
        raise UsageError(
            f"{flag_words(now)} was asked for, but the networks of the run {run.path} were trained with "
            f"{flag_words({name: then[name] for name in now})}, and their weights fit no others: leave it out, or "
            "train other networks in a new run, without the checkpoint."
        )


def _networks(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a learner that its networks follow from, by dotted names."""
    flat = flatten(agent, "agent.")
    of_rnd = flat.get("agent.algorithm.rnd.enabled")
    return {
        name: value
        for name, value in flat.items()
        if name.startswith("agent.obs_groups.") or name.rpartition(".")[2] in _OF_NETWORKS
        if not name.startswith("agent.algorithm.") or (of_rnd and ".rnd." in name)
    }


def _fits(value: object, then: object) -> bool:
    """Whether two values may mean the same network: None is a default, and a class of one's own may have moved."""
    if isinstance(value, str) and isinstance(then, str):
        return Path(value).name == Path(then).name
    return value is None or then is None or value == then


def new_run_words(config: TrainConfig, model: str) -> str:
    """Return the command that starts a new run from the weights of a run's checkpoint."""
    checkpoint = Path(model).parent
    file = RunDir(checkpoint.parent.parent).train_yaml
    return shlex.join(["train", config.task, "--config", str(file), "--checkpoint", str(checkpoint)])


def changes_since(config: TrainConfig, start: Start | None, world_size: int, num_envs: int) -> str | None:
    """Return a note if the number of ranks or environments differs from that of the checkpoint to continue."""
    if start is None or start.mode != "continue":
        return None
    checkpoint = Checkpoint(Path(start.model).parent)
    manifest = checkpoint.manifest()
    workers, each = manifest.get("world_size"), manifest.get("num_envs")
    if workers is None or each is None or (workers, each) == (world_size, num_envs) or not checkpoint.has_rank_files:
        return None
    then, now = int(workers) * int(each), world_size * num_envs
    steps = config.agent.num_steps_per_env
    effect = "all of them go on"
    if then != now:
        effect = f"{now - then:,} of them are new" if now > then else f"the last {then - now:,} are left out"
    return (
        f"The checkpoint is of {_workers(workers, each)}, and this is {_workers(world_size, num_envs)}: {now:,} "
        f"environments in all, {effect}; {now * steps:,} samples an iteration, {then * steps:,} before; other random "
        "actions. The learning rate is not changed."
    )


def _workers(number: int, num_envs: int) -> str:
    return f"{counted(number, 'worker')} with {counted(num_envs, 'environment')}{'' if number == 1 else ' each'}"


def run_to_continue(config: TrainConfig, spec: TaskSpec) -> tuple[RunDir, list[str]]:
    """Return the run of `--resume`, else the newest with a valid checkpoint; and notes about damaged, newer ones."""
    if config.resume:
        experiment = experiment_dir(config.log_root, spec.experiment)
        return find_run(experiment, list_runs(experiment), config.resume[0]), []
    return _newest_run_with_checkpoint(config.log_root, spec)


def find_model(log_root: str, spec: TaskSpec, checkpoint: str) -> Path:
    """Return the model file of a checkpoint or run by path, or of `latest`, `best` or `best-of-runs`."""
    if checkpoint == "best":
        run, _ = _newest_run_with_checkpoint(log_root, spec)
        found = best_good(run)
        if found is not None and found.score is None:
            _warn_of_no_score(run)
    elif checkpoint == "best-of-runs":
        newest, _ = _newest_run_with_checkpoint(log_root, spec)
        runs = list_runs(newest.path.parent)
        found = best_of_runs(runs)
        if found is not None:
            which = "newest, since no scores can be compared"
            if found.score is not None:
                which = f"best, whose {found.metric} is {found.score:.2f}"
            logger.warning("Of %s %s is taken, the %s.", counted(len(runs), "run"), found.path, which)
    elif checkpoint == "latest":
        found, _passed_over = newest_good(_newest_run_with_checkpoint(log_root, spec)[0])
    elif RunDir(Path(checkpoint)).checkpoints_dir.is_dir():
        found, _passed_over = newest_good(RunDir(Path(checkpoint)))
        if found is None:
            raise UsageError(f"The run {checkpoint} has no whole checkpoint: pass another one, or train it further.")
    else:
        return checkpoint_at(Path(checkpoint))
    if found is None:  # Removed by another process meanwhile.
        raise UsageError(f"The newest checkpoint below {log_root} is gone: try again.")
    return found.model


@cache
def _warn_of_no_score(run: RunDir) -> None:
    """Warn, once for each run, that `best` is `latest`."""
    logger.warning("No score of %s can be compared: its best checkpoint is the last one.", run.path)


def _newest_run_with_checkpoint(log_root: str, spec: TaskSpec) -> tuple[RunDir, list[str]]:
    experiment = experiment_dir(Path(log_root), spec.experiment)
    passed_over: list[str] = []
    for run in reversed(list_runs(experiment)):
        newest, damaged = newest_good(run)
        if newest is not None:
            return run, passed_over
        passed_over += damaged
    if passed_over:
        raise UsageError(
            f"No run in {experiment.absolute()} has a whole checkpoint. {' '.join(passed_over)} Pass a path, or train "
            "anew without this flag."
        )
    raise UsageError(f"There is no run with a checkpoint in {experiment.absolute()}: train first, or pass a path.")
