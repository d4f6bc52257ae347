"""`shoal bench`: environment steps and training steps per second, and the time to the first iteration.

Measurements are repeated in turns, because other processes disturb them. Results are medians; efficiencies are medians
of ratios within a turn.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from shoal.bench.environments import measure_environments
from shoal.bench.training import PARTS, TOTAL, measure_start, measure_training, train_until_return, watch_training
from shoal.config import BenchConfig
from shoal.config.learners import resolve_learner
from shoal.errors import refusing_os_errors
from shoal.files import folder_of
from shoal.machine.gpus import visible_gpus
from shoal.machine.host import cpu_name
from shoal.plan.launch import refuse_unwritable_file
from shoal.plan.nodes import parse_gpu_ids, plan_workers
from shoal.provenance import versions
from shoal.tasks import registry

_FIRST_SEED = 42


@dataclass(slots=True)
class BenchReport:
    """The results, and the machine."""

    task: str
    machine: dict[str, Any]
    num_envs: int
    threads: int
    env_steps_per_second: dict[str, float] = field(default_factory=dict)
    """Environment steps without a policy, on one worker, by engine."""
    training: list[dict[str, float]] = field(default_factory=list)
    """A row for each number of workers: steps per second, efficiency relative to the first row, the fraction of an
    iteration in collectives, cost of a checkpoint."""
    until_return: list[dict[str, Any]] = field(default_factory=list)
    """With `--until-return`: a row for each seed."""
    startup: dict[int, dict[str, float]] = field(default_factory=dict)
    """With `--startup`: seconds of each part, by number of workers."""


def bench(config: BenchConfig, log: Callable[[str], None]) -> BenchReport:
    """Measure a task; `log` takes a line about each measurement.

    Raises:
        UsageError: The configuration is impossible on this machine.
        ShoalError: A measured command failed.
    """
    spec, gpu_ids, gpus = registry.resolve(config.task), parse_gpu_ids(config.gpu_ids), visible_gpus()
    devices = [plan_workers(gpu_ids, workers, gpus).devices[0] for workers in config.nproc_per_node]
    if config.learner:
        resolve_learner(config.learner).require()
    if config.json is not None:
        refuse_unwritable_file("--json", Path(config.json), "bench.json")
    machine = {"cpu": cpu_name(), "cores": os.cpu_count(), "gpus": [gpu.name for gpu in gpus], "versions": versions()}
    report = BenchReport(task=spec.name, machine=machine, num_envs=config.num_envs, threads=config.threads)
    if config.until_return is not None:
        _measure_until_return(config, config.until_return, report, log)
    elif config.startup:
        _measure_startup(config, report, log)
    else:
        _measure_steps(config, devices[0], report, log)
    if config.json is not None:
        file = Path(config.json)
        with refusing_os_errors(f"The results cannot be written to {file}", "pass another --json"):
            folder_of(file).write(file, json.dumps(asdict(report), indent=2) + "\n")
    return report


def _measure_until_return(config: BenchConfig, wanted: float, report: BenchReport, log: Callable[[str], None]) -> None:
    """Train with one seed after another."""
    for turn in range(config.repeats):
        row = train_until_return(config, config.nproc_per_node[0], _FIRST_SEED + turn, wanted)
        report.until_return.append(row)
        took = f"iteration {row['iteration']}, {row['steps']:,.0f} steps, {row['seconds']:.0f} s"
        log(f"[{turn + 1}/{config.repeats}] seed {row['seed']}: return {row['mean_return']:.1f} after {took}")


def _measure_startup(config: BenchConfig, report: BenchReport, log: Callable[[str], None]) -> None:
    """Measure the parts of starts with each number of workers, in turns."""
    starts: dict[int, list[dict[str, float]]] = {workers: [] for workers in config.nproc_per_node}
    for turn, workers in product(range(config.repeats), starts):
        seconds = measure_start(config, workers)
        starts[workers].append(seconds)
        log(f"[{turn + 1}/{config.repeats}] {workers} worker(s): first iteration after {seconds[TOTAL]:.1f} s")
    for workers, measured in starts.items():
        report.startup[workers] = {part: median(seconds[part] for seconds in measured) for part in PARTS}


def _measure_steps(config: BenchConfig, device: str, report: BenchReport, log: Callable[[str], None]) -> None:
    """Measure environment steps, and training steps with each number of workers, in turns."""
    rates: dict[str, list[float]] = {}
    runs: dict[int, dict[str, list[float]]] = {workers: {} for workers in config.nproc_per_node}
    for turn in range(config.repeats):
        for engine, rate in measure_environments(config, device).items():
            log(f"[{turn + 1}/{config.repeats}] {engine}: {rate:,.0f} environment steps per second")
            rates.setdefault(engine, []).append(rate)
        for workers, values in runs.items():
            for name, new in measure_training(config, workers).items():
                values.setdefault(name, []).extend(new)
            rate, first_s = values["steps_per_second"][-1], values["first_iteration_warm_s"][-1]
            speed = f"{rate:,.0f} training steps per second, first after {first_s:.1f} s"
            log(f"[{turn + 1}/{config.repeats}] {workers} worker(s): {speed}")
    report.env_steps_per_second = {engine: median(values) for engine, values in rates.items()}
    base, firsts = next((workers, values["steps_per_second"]) for workers, values in runs.items())
    for workers, values in runs.items():
        pairs = zip(values["steps_per_second"], firsts, strict=True)
        values["efficiency"] = [rate / workers / (first / base) for rate, first in pairs]
        if config.cold:
            _, start = watch_training(config, workers, "--max-iterations", "1", cold=True)
            values["first_iteration_cold_s"] = [start[TOTAL]]
        row = {name: median(measured) for name, measured in values.items() if measured}
        report.training.append({"workers": workers, **row, "checkpoints": len(values["checkpoint_cost"])})
