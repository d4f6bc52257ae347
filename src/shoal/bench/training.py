"""Measurements of trainings from outside: by a `train` command, its metrics, and the heartbeat of its rank 0."""

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from shoal import PYTHON
from shoal.config import BenchConfig
from shoal.errors import ShoalError
from shoal.heartbeat import beat_file, read_beat
from shoal.launch.tail import Tail

Rows = Sequence[Mapping[str, float]]
"""Metrics, a row for each iteration."""

_POLL_S = 0.05
_EPISODES = 100
_RETURN = "Eval/return"

IMPORT_TORCH = "import torch"
TOTAL = "total"
_BEFORE = {"startup": "imports", "queue": "waiting for kernels", "compile": "environments, capture"}
"""Names of the parts of a start up to the environments, by the phase of rank 0."""
_AFTER = {"startup": "learner, process group", "rollout": "first rollout", "update": "first update"}
"""Names of the parts after them. Whatever else rank 0 does counts as the part before it."""
PARTS = ("command", *_BEFORE.values(), *_AFTER.values(), TOTAL, IMPORT_TORCH)


def watch_training(
    config: BenchConfig, workers: int, *flags: str, until: Callable[[Rows], bool] = lambda _: False, cold: bool = False
) -> tuple[Rows, dict[str, float]]:
    """Run a training in a scratch directory, to its end, or until the new metrics of a look satisfy `until`.

    It is looked at 20 times a second. With `cold`, its kernel cache is empty. Return its metrics, and the seconds of
    each part of its start.

    Raises:
        ShoalError: The training failed.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name, tempfile.TemporaryFile() as output:
        scratch = Path(name)
        environment = bench_environment(config) | {"TMPDIR": name}  # Spawned ranks have their heartbeats there.
        if cold:
            environment["WARP_CACHE_PATH"] = str(scratch / "kernels")
        command = [*_train_command(config, workers), "--log-root", name, *flags]
        rows: list[Mapping[str, float]] = []
        seconds, part = dict.fromkeys(PARTS, 0.0), "command"
        tails: list[Tail] = []
        beats: list[Path] = []
        has_ended = False
        started = time.monotonic()
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            while not has_ended:
                has_ended = process.poll() is not None
                tails = tails or [Tail(path) for path in scratch.glob("*/*/metrics.jsonl")]
                beats = beats or [path.parent for path in scratch.rglob(beat_file(Path(), 0).name)]
                beat = read_beat(beats[0], 0) if beats else None
                new, now = [row for tail in tails for row in tail.rows()], time.monotonic() - started
                if not rows:
                    part = next_part(part, beat.phase if beat else None)
                    seconds[part] += now - seconds[TOTAL]
                    seconds[TOTAL] = now
                rows += new
                if until(new):
                    return rows, seconds
                time.sleep(_POLL_S)
        finally:
            process.terminate()
            process.wait()  # A training ends by itself, with its workers.
        if process.returncode or not rows:
            output.seek(0)
            tail = output.read().decode(errors="replace").strip()[-2000:]
            raise ShoalError(f"`{shlex.join(command)}` failed with {process.returncode}: {tail}")
        return rows, seconds


def next_part(part: str, phase: str | None) -> str:
    """Return the part of a start that follows `part` when rank 0 is in a phase; None before its first heartbeat."""
    is_built = part in _AFTER.values() or (part == _BEFORE["compile"] and phase in _AFTER)
    return (_AFTER if is_built else _BEFORE).get(phase or "", part)


def _train_command(config: BenchConfig, workers: int) -> list[str]:
    """Return the command that trains the task, but for its length and its directory."""
    return [
        *(*PYTHON, "-m", "shoal", "train", config.task),
        *(("--learner", config.learner) if config.learner else ()),
        *(() if config.gpu_ids == ("auto",) else ("--gpu-ids", *config.gpu_ids)),
        *("--nproc-per-node", str(workers), "--num-envs", str(config.num_envs)),
        *("--agent.save-interval", str(config.save_interval), "--logger", "none", "--no-export"),
    ]


def bench_environment(config: BenchConfig) -> dict[str, str]:
    """Return the environment of a measured process, with its number of threads and without log files."""
    return os.environ | {"OMP_NUM_THREADS": str(config.threads), "TORCHRUNX_LOG_DIR": ""}


# Measurements ---------------------------------------------------------------------------------------------------------


def measure_training(config: BenchConfig, workers: int) -> dict[str, list[float]]:
    """Run one training, and return the values of a row of the report; `checkpoint_cost` has one for each checkpoint."""
    iterations = str(config.warmup + config.iterations)
    rows, start = watch_training(config, workers, "--max-iterations", iterations, "--check-replicas-every", "0")
    before, *timed = rows[config.warmup - 1 :]
    steps, seconds = (timed[-1][name] - before[name] for name in ("Train/total_steps", "Train/total_time"))
    times = [row["Perf/iteration_time"] for row in rows]
    return {
        "steps_per_second": [steps / seconds],
        "collective_part": [median(row["Perf/collective_time"] / row["Perf/iteration_time"] for row in timed)],
        "first_iteration_warm_s": [start[TOTAL]],
        "checkpoint_cost": checkpoint_costs(times, config.save_interval, config.warmup),
    }


def checkpoint_costs(seconds: list[float], save_interval: int, warmup: int) -> list[float]:
    """Return the relative slowdown of each iteration after a checkpoint, which is written meanwhile.

    Args:
        seconds: Time of each iteration, from the first.
        save_interval: Iterations between checkpoints. Below 3 no iteration has two neighbours without one.
        warmup: Number of first iterations that do not count.
    """
    beside = range(save_interval, len(seconds) - 1, save_interval) if save_interval >= 3 else ()  # noqa: PLR2004
    return [seconds[index] / ((seconds[index - 1] + seconds[index + 1]) / 2) - 1 for index in beside if index > warmup]


def measure_start(config: BenchConfig, workers: int) -> dict[str, float]:
    """Return the seconds of each part of a start, their sum, and those of a Python process that imports torch."""
    _, seconds = watch_training(config, workers, "--max-iterations", "1", until=bool)
    started = time.monotonic()
    subprocess.run([*PYTHON, "-c", IMPORT_TORCH], env=bench_environment(config), check=True)
    return seconds | {IMPORT_TORCH: time.monotonic() - started}


def train_until_return(config: BenchConfig, workers: int, seed: int, wanted: float) -> dict[str, Any]:
    """Train until the mean return of an evaluation, without noise, is `wanted`, or to the task's last iteration.

    Returns:
        The first evaluation with the return, or the last one if none has it; the environment `steps` of all workers;
        and `seconds` from the start of the command to the end of the iteration, without waits for evaluations.
    """

    def is_reached(rows: Rows) -> bool:
        return any(row.get(_RETURN, -float("inf")) >= wanted for row in rows)

    flags = ("--seed", str(seed), "--eval-interval", str(config.save_interval), "--eval-episodes", str(_EPISODES))
    rows, start = watch_training(config, workers, *flags, until=is_reached)
    evaluated = [row for row in rows if _RETURN in row]
    if not evaluated:
        raise ShoalError(
            f"{config.task} was trained for {len(rows)} iterations, and evaluated after none of them: pass a smaller "
            "--save-interval."
        )
    found = next((row for row in evaluated if is_reached([row])), evaluated[-1])
    until = [row for row in rows if row["iteration"] <= found["Eval/iteration"]]
    trained_s = until[-1]["Train/total_time"] - rows[0]["Train/total_time"]
    evaluations_s = sum(row.get("Perf/evaluation_time", 0.0) for row in until)
    return {
        "seed": seed,
        "mean_return": found[_RETURN],
        "iteration": int(found["Eval/iteration"]),
        "steps": until[-1]["Train/total_steps"],
        "seconds": start[TOTAL] + trained_s - evaluations_s,
        "is_reached": is_reached([found]),
    }
