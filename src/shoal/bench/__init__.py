"""`shoal bench`: environment steps and training steps per second, and the time to the first iteration.

Measurements are repeated in turns, because other processes disturb them. Results are medians; efficiencies are medians
of ratios within a turn.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from shoal.bench.environments import measure_environments
from shoal.bench.training import Run, measure_training
from shoal.bench.until_return import Reached, train_until_return
from shoal.config import BenchConfig
from shoal.files import folder_of
from shoal.machine.gpus import visible_gpus
from shoal.machine.host import cpu_name
from shoal.plan.devices import parse_gpu_ids, plan_workers
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
    until_return: list[Reached] = field(default_factory=list)
    """With `--until-return`: a row for each seed."""


def bench(config: BenchConfig, log: Callable[[str], None]) -> BenchReport:
    """Measure a task; `log` takes a line about each measurement.

    Raises:
        UsageError: The configuration is impossible on this machine.
        ShoalError: A measured command failed.
    """
    spec = registry.resolve(config.task)
    gpu_ids = parse_gpu_ids(config.gpu_ids)
    devices = {n: plan_workers(gpu_ids, n, visible_gpus()).devices for n in config.nproc_per_node}
    device = devices[config.nproc_per_node[0]][0]
    report = BenchReport(task=spec.name, machine=_machine(), num_envs=config.num_envs, threads=config.threads)
    if config.until_return is not None:
        for seed in range(_FIRST_SEED, _FIRST_SEED + config.repeats):
            workers = config.nproc_per_node[0]
            report.until_return.append(train_until_return(config, spec, workers, seed, config.until_return))
            log(f"[{seed - _FIRST_SEED + 1}/{config.repeats}] {report.until_return[-1]}")
        return _written(report, config)
    rates: dict[str, list[float]] = {}
    runs: dict[int, list[Run]] = {n: [] for n in config.nproc_per_node}
    for turn in range(config.repeats):
        for engine, rate in measure_environments(config, device).items():
            log(f"[{turn + 1}/{config.repeats}] {engine}: {rate:,.0f} environment steps per second")
            rates.setdefault(engine, []).append(rate)
        for workers, measured in runs.items():
            measured.append(measure_training(config, spec, workers, cold=False))
            rate = f"{measured[-1].steps_per_second:,.0f} training steps per second"
            log(f"[{turn + 1}/{config.repeats}] {workers} worker(s): {rate}, first after {measured[-1].first_s:.1f} s")
    report.env_steps_per_second = {engine: median(values) for engine, values in rates.items()}
    report.training = [_summary(workers, measured, runs) for workers, measured in runs.items()]
    if config.cold:
        for row in report.training:
            row["first_iteration_cold_s"] = measure_training(config, spec, int(row["workers"]), cold=True).first_s
    return _written(report, config)


def _written(report: BenchReport, config: BenchConfig) -> BenchReport:
    """Return the report, after it was written to `--json`."""
    if config.json is not None:
        file = Path(config.json)
        folder_of(file).write(file, json.dumps(asdict(report), indent=2) + "\n")
    return report


def _summary(workers: int, measured: list[Run], runs: dict[int, list[Run]]) -> dict[str, float]:
    """Return the row of one number of workers."""
    base = next(iter(runs))
    efficiencies = [
        run.steps_per_second / workers / (first.steps_per_second / base)
        for run, first in zip(measured, runs[base], strict=True)
    ]
    row = {
        "workers": workers,
        "steps_per_second": median(run.steps_per_second for run in measured),
        "efficiency": median(efficiencies),
        "collective_part": median(run.collective_part for run in measured),
        "first_iteration_warm_s": median(run.first_s for run in measured),
    }
    costs = [cost for run in measured for cost in run.checkpoint_costs]
    return row | ({"checkpoint_cost": median(costs), "checkpoints": len(costs)} if costs else {})


def _machine() -> dict[str, Any]:
    """Describe the machine and the versions that results depend on."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "gpus": [gpu.name for gpu in visible_gpus()],
        "versions": versions(),
    }
