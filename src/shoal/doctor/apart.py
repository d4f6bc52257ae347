"""Examination of several machines: whether they can train together, how far apart they are, and what that costs.

Nothing is simulated: a short training of the task goes through the mode through which `train --hosts` goes, and its
ranks time all_reduce first. It has a scratch directory on each machine, and leaves nothing in the log root.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NoReturn

from shoal.checks.findings import note, ok, problem
from shoal.doctor.children import START_S
from shoal.doctor.steps import GRADIENT
from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, UsageError, WorkerLostError
from shoal.launch.host_probe import probe_hosts
from shoal.launch.modes import launch_mode_of, without
from shoal.plan.devices import visible_gpus
from shoal.plan.ranks import stale_rank_variables
from shoal.plan.rundir import RunDir
from shoal.plan.training import plan_training
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shoal.checks.findings import Finding
    from shoal.config import DoctorConfig, TrainConfig
    from shoal.launch.progress import ProgressReporter
    from shoal.plan.training import TrainPlan

STAND_IN = "Cartpole-Swingup"
"""What is trained for one iteration where no task was named."""
WARM_UP = 2
"""Iterations of the short training that are not counted."""
COUNTED = 4
WORTHWHILE = 0.8
"""A predicted efficiency below this is worth a note."""


@dataclass
class _Rows:
    """Keeps the metrics of the short training, and shows nothing."""

    rows: list[Mapping[str, float]] = field(default_factory=list["Mapping[str, float]"])

    def on_phase(self, phase: str) -> None:
        del phase

    def on_row(self, row: Mapping[str, float]) -> None:
        self.rows.append(row)

    def on_line(self, line: str) -> None:
        del line

    def leave(self, error: ShoalError) -> NoReturn:
        raise error


def examine_machines(config: DoctorConfig, environ: Mapping[str, str], say: Callable[[str], None]) -> Iterator[Finding]:
    """Look at the machines of `--hosts`.

    Raises:
        UsageError: What was asked cannot be understood.
    """
    asked = _training(config)
    say(f"Asking {', '.join(config.hosts)}.")
    missing: list[ShoalError] = []
    try:
        machines = partial(probe_hosts, environ, asked, missing.append)
        plan = plan_training(asked, environ, visible_gpus(environ), machines)
    except (UsageError, WorkerLostError) as error:
        yield from (_trouble("machines", each) for each in (*missing, error))
        return
    yield from (_trouble("machines", each) for each in missing)
    for machine in plan.machines:
        way = machine.network.get("GLOO_SOCKET_IFNAME")
        told = f"reached, with the same versions and code as here; workers on {', '.join(machine.devices)}"
        yield ok(f"host {machine.host}", f"{told}, which talk through {way}" if way else told)
    yield from (note("machines", each.rstrip(".")) for each in plan.notes)
    if len(plan.machines) > 1 and not missing:
        about = f", and training {config.task} for {asked.max_iterations} iterations" if config.task else ""
        say(f"Timing all_reduce through {plan.backend} among {plan.world_size} ranks{about}.")
        try:
            yield from _measure(plan, environ, named=config.task is not None)
        except (InterruptedRunError, TerminatedRunError):
            raise
        except ShoalError as error:
            yield _trouble("between machines", error)


def _training(config: DoctorConfig) -> TrainConfig:
    """Return the short training."""
    task = config.task or STAND_IN
    usual = registry.resolve(task).defaults(task)
    patience = START_S + config.timeout
    return replace(
        usual,
        gpu_ids=config.gpu_ids,
        nproc_per_node=config.nproc_per_node,
        hosts=config.hosts,
        ssh_config=config.ssh_config,
        interface=config.interface,
        log_root=config.log_root,
        logger="none",
        torchrunx_log_dir="",
        max_iterations=WARM_UP + COUNTED if config.task else 1,
        check_replicas_every=0,
        startup_timeout=patience,
        stall_timeout=patience,
        export=False,
    )


def _trouble(topic: str, error: ShoalError) -> Finding:
    truth, _, remedy = str(error).rstrip(".").rpartition(": ")
    told = "\n".join(part for part in (error.details.strip(), truth or remedy) if part)
    return problem(topic, told, remedy if truth else "", transient=isinstance(error, WorkerLostError))


def _measure(plan: TrainPlan, environ: Mapping[str, str], *, named: bool) -> Iterator[Finding]:
    """Train for a moment, and judge what the ranks have measured."""
    kept = _Rows()
    view: ProgressReporter = kept
    mode = launch_mode_of(plan)
    with (
        tempfile.TemporaryDirectory(prefix="shoal-doctor-") as scratch,
        without(stale_rank_variables(environ)),
        mode.listen(view) as stop,
    ):
        apart = tuple(replace(machine, shares_runs=False) for machine in plan.machines)
        job = replace(plan.job(RunDir(Path(scratch))), machines=apart, probe=0 if named else GRADIENT)
        reports = mode.run(job, view, stop)
    yield from judge_distance(reports[0].distance, kept.rows[WARM_UP:] if named else ())


def judge_distance(distance: Mapping[str, float], rows: Sequence[Mapping[str, float]]) -> Iterator[Finding]:
    """Tell how far apart the ranks are, and predict what that costs.

    Args:
        distance: What `learn.distance` has measured.
        rows: Metrics of iterations that were trained there. Without any, nothing is predicted.
    """
    size, took = distance["bytes"], distance["gradient"]
    told = f"{distance['latency'] * 1e3:.2f} ms for a number, {took * 1e3:.2f} ms for {size / 1e6:.2f} MB of gradients"
    yield ok("between machines", f"{told} ({size / took / 1e6:,.1f} MB/s)")
    if not rows:
        return
    alone, together = work_and_talk(distance, rows)
    part = alone / (alone + together)
    spent = median(row["Perf/collective_time"] / row["Perf/iteration_time"] for row in rows)
    counts = f"{distance['gradients']:.0f} all_reduces of gradients and {distance['small']:.0f} small ones"
    truth = (
        f"about {part:.0%}: an iteration works for {alone * 1e3:,.0f} ms, and its {counts} take "
        f"{together * 1e3:,.0f} ms (in {len(rows)} trained iterations {spent:.0%} went into collectives, with "
        "waiting for the slower)"
    )
    if part < WORTHWHILE:
        remedy = "give each worker more to do with --num-envs, or look for a faster way between the machines"
        yield note("efficiency", truth, remedy)
    else:
        yield ok("efficiency", truth)


def work_and_talk(distance: Mapping[str, float], rows: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Return how long an iteration works, and how long its collectives take when nobody has to be waited for [s]."""
    alone = median(row["Perf/iteration_time"] - row["Perf/collective_time"] for row in rows)
    return alone, distance["gradients"] * distance["gradient"] + distance["small"] * distance["latency"]
