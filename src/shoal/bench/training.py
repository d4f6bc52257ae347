"""Training steps per second and time to the first iteration, read from the metrics of a `train` command."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from shoal import PYTHON
from shoal.config import BenchConfig
from shoal.errors import ShoalError
from shoal.launch.tail import Tail
from shoal.tasks.registry import TaskSpec

_POLL_S = 0.05
_TIME_LIMIT_S = 7200.0
_PATIENCE_S = 30.0
"""Time that a training gets after SIGTERM [s]."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured training."""

    steps_per_second: float
    first_s: float
    """Time from the start of the command to the end of its first iteration [s]."""
    collective_part: float
    """Fraction of an iteration in collectives, the median over all timed iterations."""
    checkpoint_costs: list[float]
    """Relative slowdown of each iteration during which a checkpoint was written."""


def measure_training(config: BenchConfig, spec: TaskSpec, workers: int, *, cold: bool) -> Run:
    """Run one training, and compute its speed from its metrics."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as scratch:
        environment = bench_environment(config)
        if cold:
            environment["WARP_CACHE_PATH"] = str(Path(scratch) / "kernels")
        command = [
            *train_command(config, workers, scratch),
            *("--max-iterations", str(1 if cold else config.warmup + config.iterations)),
            *("--check-replicas-every", "0"),
        ]
        first_s, rows = run_training(command, environment, Path(scratch) / spec.experiment)
    timed = rows[min(config.warmup, len(rows) - 1) :]
    before = rows[min(config.warmup, len(rows) - 1) - 1]
    steps = timed[-1]["Train/total_steps"] - before["Train/total_steps"]
    seconds = timed[-1]["Train/total_time"] - before["Train/total_time"]
    return Run(
        steps_per_second=steps / seconds if seconds else 0.0,
        first_s=first_s,
        collective_part=collective_part(timed),
        checkpoint_costs=checkpoint_costs(
            [row["Perf/iteration_time"] for row in rows], config.save_interval, config.warmup
        ),
    )


def collective_part(rows: Sequence[Mapping[str, float]]) -> float:
    """Return the fraction of an iteration in collectives, the median over `rows`."""
    return median(row["Perf/collective_time"] / row["Perf/iteration_time"] for row in rows)


def checkpoint_costs(seconds: list[float], save_interval: int, warmup: int) -> list[float]:
    """Return the relative slowdown of each iteration after a checkpoint, which is written meanwhile.

    Args:
        seconds: Time of each iteration, from the first.
        save_interval: Iterations between checkpoints. Below 3 no iteration has two neighbours without one.
        warmup: Number of first iterations that do not count.
    """
    beside = range(save_interval, len(seconds) - 1, save_interval) if save_interval >= 3 else ()  # noqa: PLR2004
    return [seconds[index] / ((seconds[index - 1] + seconds[index + 1]) / 2) - 1 for index in beside if index > warmup]


def train_command(config: BenchConfig, workers: int, log_root: str) -> list[str]:
    """Return the command that trains the task, but for its length."""
    return [
        *(*PYTHON, "-m", "shoal", "train", config.task),
        *(("--learner", config.learner) if config.learner else ()),
        *(() if config.gpu_ids == ("auto",) else ("--gpu-ids", *config.gpu_ids)),
        *("--nproc-per-node", str(workers), "--num-envs", str(config.num_envs)),
        *("--agent.save-interval", str(config.save_interval)),
        *("--log-root", log_root, "--logger", "none", "--no-export"),
    ]


def run_training(
    command: Sequence[str],
    environment: Mapping[str, str],
    experiment: Path,
    is_enough: Callable[[Mapping[str, float]], bool] = lambda _: False,
) -> tuple[float, list[dict[str, float]]]:
    """Run a training, or end it after the iteration whose metrics are enough.

    Returns:
        The time from the start to the end of its first iteration [s], and its metrics.

    Raises:
        ShoalError: It failed.
    """
    started = time.monotonic()
    first_s, is_ended = float("nan"), False
    rows: list[dict[str, float]] = []
    tails: list[Tail] = []
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            while process.poll() is None:
                tails = tails or [Tail(path) for path in experiment.glob("*/metrics.jsonl")]
                fresh = [row for tail in tails for row in tail.rows()]
                if fresh and not rows:
                    first_s = time.monotonic() - started
                rows += fresh
                if not is_ended and any(map(is_enough, fresh)):
                    is_ended = True
                    process.terminate()
                if time.monotonic() - started > _TIME_LIMIT_S:
                    process.kill()
                time.sleep(_POLL_S)
        finally:
            _end(process)
        rows += [row for tail in tails for row in tail.rows()]
        if not rows or process.returncode not in ((0, 128 + signal.SIGTERM) if is_ended else (0,)):
            output.seek(0)
            tail = output.read().decode(errors="replace").strip()[-2000:]
            raise ShoalError(f"`{' '.join(command)}` failed with {process.returncode}: {tail}")
    return first_s, rows


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a training with its workers, and kill it if that takes too long."""
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def bench_environment(config: BenchConfig) -> dict[str, str]:
    """Return the environment of a measured process, with its number of threads and without log files."""
    return os.environ | {"OMP_NUM_THREADS": str(config.threads), "TORCHRUNX_LOG_DIR": ""}
