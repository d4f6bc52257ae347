"""Time and steps until a trained policy earns a return, judged by evaluations during training, without noise."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.bench.training import bench_environment, run_training, train_command
from shoal.config import BenchConfig
from shoal.tasks.registry import TaskSpec

_EPISODES = 100
_RETURN = "Eval/return"


@dataclass(frozen=True, slots=True)
class Reached:
    """The first evaluation of a training with the return; the last one if none has it."""

    seed: int
    mean_return: float
    iteration: int
    steps: float
    """Environment steps of all workers."""
    seconds: float
    """From the start of the command to the end of the iteration, without evaluations."""
    is_reached: bool


def train_until_return(config: BenchConfig, spec: TaskSpec, workers: int, seed: int, wanted: float) -> Reached:
    """Train until the mean return of an evaluation is `wanted`, or to the task's last iteration."""

    def is_enough(row: Mapping[str, float]) -> bool:
        return row.get(_RETURN, -float("inf")) >= wanted

    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as scratch:
        command = [
            *(*train_command(config, workers, scratch), "--seed", str(seed)),
            *("--eval-interval", str(config.save_interval), "--eval-episodes", str(_EPISODES)),
        ]
        first_s, rows = run_training(command, bench_environment(config), Path(scratch) / spec.experiment, is_enough)
    evaluated = [row for row in rows if _RETURN in row]
    found = next(filter(is_enough, evaluated), evaluated[-1])
    evaluations_s = sum(row["Perf/evaluation_time"] for row in evaluated if row["iteration"] <= found["iteration"])
    return Reached(
        seed=seed,
        mean_return=found[_RETURN],
        iteration=int(found["iteration"]),
        steps=found["Train/total_steps"],
        seconds=first_s - rows[0]["Train/total_time"] + found["Train/total_time"] - evaluations_s,
        is_reached=is_enough(found),
    )
