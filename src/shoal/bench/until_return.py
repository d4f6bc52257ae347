"""Time and steps until a trained policy earns a return, judged by evaluation without exploration noise."""

import bisect
import functools
import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal import PYTHON
from shoal.bench.training import bench_environment, run_training, train_command
from shoal.config import BenchConfig
from shoal.errors import ShoalError
from shoal.plan.checkpoints import Checkpoint, list_checkpoints
from shoal.plan.rundir import RunDir
from shoal.tasks.registry import TaskSpec

_EPISODES = 100
_CHECKPOINTS_MORE = 5
"""Checkpoints that are trained further where the return is reached with exploration noise only."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The first checkpoint of a training that earns the return, found by bisection; the last one if none does."""

    seed: int
    mean_return: float
    iteration: int
    steps: float
    """Environment steps of all workers."""
    seconds: float
    """From the start of the command to the end of the iteration. Evaluation is not part of it."""
    is_reached: bool


def train_until_return(config: BenchConfig, spec: TaskSpec, workers: int, seed: int, wanted: float) -> Reached:
    """Train until the mean return of an evaluation is `wanted`, or to the task's last iteration.

    A training that has reached the return with noise is ended, evaluated, and resumed if it is not enough.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as scratch:
        environment = bench_environment(config)
        experiment = Path(scratch) / spec.experiment
        command = [*train_command(config, workers, scratch), "--seed", str(seed)]
        first_s, rows = run_training(
            command, environment, experiment, lambda row: row.get("Train/mean_reward", -float("inf")) >= wanted
        )
        before_first_s = first_s - rows[0]["Train/total_time"]
        (run,) = (RunDir(path) for path in experiment.iterdir())
        mean_return = functools.cache(functools.partial(_evaluate, config, environment))
        while True:
            checkpoints = list_checkpoints(run)
            newest = checkpoints[-1]
            is_reached = mean_return(newest) >= wanted
            if is_reached or newest.iteration >= spec.max_iterations:
                break
            enough = newest.iteration + _CHECKPOINTS_MORE * config.save_interval
            resumed = [*train_command(config, workers, scratch), "--resume"]
            more = run_training(resumed, environment, experiment, lambda row, enough=enough: row["iteration"] >= enough)
            rows += more[1]
        found = newest
        if is_reached:
            earlier = bisect.bisect_left(checkpoints[:-1], x=True, key=lambda each: mean_return(each) >= wanted)
            found = checkpoints[earlier]
        row = {row["iteration"]: row for row in rows}[found.iteration]
        return Reached(
            seed=seed,
            mean_return=mean_return(found),
            iteration=found.iteration,
            steps=row["Train/total_steps"],
            seconds=before_first_s + row["Train/total_time"],
            is_reached=is_reached,
        )


def _evaluate(config: BenchConfig, environment: Mapping[str, str], checkpoint: Checkpoint) -> float:
    """Return the mean return of a checkpoint's policy.

    Raises:
        ShoalError: It could not be evaluated.
    """
    command = [
        *(*PYTHON, "-m", "shoal", "evaluate", config.task, "--checkpoint", str(checkpoint.path)),
        *("--num-episodes", str(_EPISODES), "--log-root", str(checkpoint.path.parents[3])),
        *(() if config.gpu_ids == ("auto",) else ("--gpu-ids", *config.gpu_ids)),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ShoalError(f"`{' '.join(command)}` failed with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)["summary"]["return"]["mean"]
