"""Resume resolution: the run that `--resume` continues, and the checkpoint that a training starts from."""

import logging
from functools import cache
from pathlib import Path

from shoal.config import TrainConfig
from shoal.errors import UsageError, counted
from shoal.plan.checkpoints import (
    Checkpoint,
    best_good,
    best_of_runs,
    check_learner,
    checkpoint_at,
    newest_good,
)
from shoal.plan.rundir import RunDir, experiment_dir, find_run, list_runs
from shoal.plan.spec import Start
from shoal.tasks.registry import TaskSpec

logger = logging.getLogger(__name__)


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
        start = Start(model=str(checkpoint.model.absolute()), mode="continue")
        return run, start, checkpoint.iteration, [*damaged, *passed_over]
    if config.checkpoint is not None:
        model = find_model(config.log_root, spec, config.checkpoint)
        manifest = Checkpoint(model.parent).manifest()
        if "learner" in manifest:
            check_learner(manifest, config.learner)
        return None, Start(model=str(model.absolute()), mode="weights"), 0, []
    return None, None, 0, []


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
