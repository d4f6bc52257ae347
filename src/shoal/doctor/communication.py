"""Communication checks: the time of an all_reduce among the ranks of a short training, here or on several machines.

The training is launched as `train` launches it, so the launch itself detects and names a rank that hangs or dies. All
its files are in a scratch directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from shoal.checks.findings import Finding, note, ok, problem
from shoal.config import DoctorConfig, TrainConfig
from shoal.doctor.context import DoctorContext, training_of
from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, UsageError, WorkerLostError
from shoal.launch.remote.host_probe import probe_hosts
from shoal.machine.gpus import visible_gpus
from shoal.plan.training import TrainPlan, plan_training

Timings = Mapping[str, float]
"""Result of `learn.collective_latency.measure_collective_latency`."""
Measured = tuple[Timings, Sequence[Mapping[str, float]]]
"""Timings, and the metrics of each iteration."""

GRADIENT = 440_000
"""Numbers in the gradients of an actor and a critic of usual size: 1.76 MB."""
NUM_ENVS = 16
"""Environments of each rank of a training on this machine, which only has to communicate."""
STARTUP_S = 60.0
"""Time for a rank on this machine to import its libraries and to compile, in addition to `--timeout` [s]."""
HOSTS_STARTUP_S = 180.0
"""The same on several machines, which may have cold disks [s]."""
SLOW_S = 0.02
"""An all_reduce of gradients that takes longer is worth a note [s]: an iteration has some twenty of them."""
WARM_UP, COUNTED = 2, 4
"""Iterations of the short training of a named task: the first ones are not counted."""
WORTHWHILE = 0.8
"""A predicted efficiency below this is worth a note."""


class _MetricsCollector:
    """Progress reporter that keeps the metrics of the short training, and shows nothing."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, float]] = []

    def on_row(self, row: Mapping[str, float]) -> None:
        self.rows.append(row)

    def on_phase(self, phase: str) -> None: ...
    def on_line(self, line: str) -> None: ...
    def close(self) -> None: ...


def launch_probe(plan: TrainPlan, numbers: int) -> Measured | ShoalError:
    """Launch a short training whose ranks time all_reduce first, or return why it failed. A stop signal is raised.

    The longer message has so many `numbers`; with 0 it has the size of the gradient of the task.
    """
    from shoal.launch.modes import launching

    def begin(stack: ExitStack) -> Path:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-doctor-")))

    metrics = _MetricsCollector()
    # No rank runs in this process, so none aborts it.
    with launching(plan, metrics, lambda _error: None, begin) as (run, run_workers, stop):
        nodes = tuple(replace(node, shares_runs=False) for node in plan.nodes)
        try:
            reports = run_workers(replace(plan.worker_spec(run), nodes=nodes, probe=numbers))
        except (InterruptedRunError, TerminatedRunError) as error:
            if stop.first is None:  # A rank was stopped, and this process was not.
                return WorkerLostError(str(error))
            raise type(error)(f"Ended by {stop.first}.") from None
        except ShoalError as error:
            return error
    return reports[0].distance, metrics.rows


def _short_training(config: DoctorConfig, startup_s: float, iterations: int = 1, **changes: Any) -> TrainConfig:  # noqa: ANN401  Fields of any type.
    timeout_s = startup_s + config.timeout
    return training_of(
        config,
        torchrunx_log_dir="",
        max_iterations=iterations,
        check_replicas_every=0,
        startup_timeout=timeout_s,
        stall_timeout=timeout_s,
        **changes,
    )


# This machine ---------------------------------------------------------------------------------------------------------


def gloo(context: DoctorContext) -> Iterator[Finding]:
    """Time all_reduce through gloo, at several numbers of ranks on the CPU."""
    yield from _time_backend(context, "gloo", ["None"] * len(context.devices))


def nccl(context: DoctorContext) -> Iterator[Finding]:
    """Time all_reduce through NCCL, at several numbers of GPUs."""
    wanted = [str(gpu.index) for gpu in context.gpus if f"cuda:{gpu.index}" in context.devices and not gpu.is_mig]
    yield from _time_backend(context, "nccl", wanted)


def _time_backend(context: DoctorContext, backend: str, gpu_ids: Sequence[str]) -> Iterator[Finding]:
    """Launch a short training for each number of ranks, up to one for each of `gpu_ids`."""
    if len(gpu_ids) < 2 or isinstance(context.torch, str):  # noqa: PLR2004  One rank does not communicate.
        return
    sizes = numbers_of_ranks(len(gpu_ids))
    context.log(f"Timing all_reduce through {backend} among {', '.join(map(str, sizes))} ranks.")
    for size in sizes:
        measured = _launch_here(context, tuple(dict.fromkeys(gpu_ids[:size])), size)
        if isinstance(measured, ShoalError):
            yield _failure(backend, size, measured)
            return
        topic, truth = f"{backend}, {size} ranks", _describe(measured[0])
        remedy = "expect several workers to gain little, or look for what else keeps the cores busy"
        slow = note(topic, f"all_reduce is slow: {truth}", remedy)
        yield slow if measured[0]["gradient"] > SLOW_S else ok(topic, truth)


def _launch_here(context: DoctorContext, gpu_ids: tuple[str, ...], size: int) -> Measured | ShoalError:
    """Time all_reduce among ranks of this machine."""
    config = replace(context.config, task=None, log_root=tempfile.gettempdir())
    config = _short_training(config, STARTUP_S, gpu_ids=gpu_ids, nproc_per_node=size, num_envs=NUM_ENVS)
    try:
        return launch_probe(plan_training(config, context.environ, context.gpus), GRADIENT)
    except UsageError as error:
        return error


def numbers_of_ranks(most: int) -> list[int]:
    """Return the numbers of ranks to time: the powers of two below `most`, and `most`."""
    return [*(2**exponent for exponent in range(1, most.bit_length()) if 2**exponent < most), most]


def _describe(timings: Timings) -> str:
    latency, gradient = timings["latency"] * 1e3, timings["gradient"] * 1e3
    return f"{latency:.2f} ms for a number, {gradient:.2f} ms for {timings['bytes'] / 1e6:.2f} MB of gradients"


def _failure(backend: str, size: int, error: ShoalError) -> Finding:
    """Return the finding about a launch that failed."""
    reason = str(error).partition(". ")[0].rstrip(".")  # The rest is about the run directory, which is gone.
    killed = isinstance(error, WorkerLostError) and "SIGKILL" in reason
    if killed:
        remedy = "look for what killed it, such as the kernel when memory runs out, and try again"
    elif backend == "gloo":
        remedy = "train with one worker, and look for a firewall, a stopped process, or a machine that is far too busy"
    else:
        remedy = "export NCCL_P2P_DISABLE=1 or another setting of docs/doctor.md, and look at NCCL_DEBUG=INFO"
    truth = f"all_reduce through {backend} failed among {size} ranks: {reason}"
    return problem(backend, truth, remedy, transient=killed)


# Several machines -----------------------------------------------------------------------------------------------------


def examine_hosts(config: DoctorConfig, environ: Mapping[str, str], log: Callable[[str], None]) -> Iterator[Finding]:
    """Check the machines of `--hosts`: whether they can train together, and what communication costs."""
    flags = ("gpu_ids", "nproc_per_node", "hosts", "ssh_config", "interface")
    iterations = WARM_UP + COUNTED if config.task else 1
    training = _short_training(config, HOSTS_STARTUP_S, iterations, **{name: getattr(config, name) for name in flags})
    log(f"Connecting to {', '.join(config.hosts)}.")
    missing: list[ShoalError] = []
    try:
        machines = partial(probe_hosts, environ, training, (training.task,), missing.append)
        plan = plan_training(training, environ, visible_gpus(environ), machines)
    except (UsageError, WorkerLostError) as error:
        yield from (_problem_of("machines", each) for each in (*missing, error))
        return
    yield from (_problem_of("machines", each) for each in missing)
    for machine in plan.nodes:
        interface = machine.network.get("GLOO_SOCKET_IFNAME")
        truth = f"reached, with the same versions and code as here; workers on {', '.join(machine.devices)}"
        yield ok(f"host {machine.host}", f"{truth}, which talk through {interface}" if interface else truth)
    yield from (note("machines", each.rstrip(".")) for each in plan.notes)
    if len(plan.nodes) == 1 or missing:
        return
    about = f", and training {config.task} for {iterations} iterations" if config.task else ""
    log(f"Timing all_reduce through {plan.backend} among {plan.world_size} ranks{about}.")
    measured = launch_probe(plan, 0 if config.task else GRADIENT)
    if isinstance(measured, ShoalError):
        yield _problem_of("between machines", measured)
    else:
        timings, rows = measured
        yield from judge_hosts(timings, rows[WARM_UP:] if config.task else ())


def _problem_of(topic: str, error: ShoalError) -> Finding:
    truth, _, remedy = str(error).rstrip(".").rpartition(": ")
    lines = "\n".join(part for part in (error.details.strip(), truth or remedy) if part)
    return problem(topic, lines, remedy if truth else "", transient=isinstance(error, WorkerLostError))


def judge_hosts(timings: Timings, rows: Sequence[Mapping[str, float]]) -> Iterator[Finding]:
    """Report the time of an all_reduce between machines, and predict the efficiency of a training there.

    `rows` are the metrics of iterations that were trained there. Without any, nothing is predicted.
    """
    bandwidth = timings["bytes"] / timings["gradient"]
    yield ok("between machines", f"{_describe(timings)} ({bandwidth / 1e6:,.1f} MB/s)")
    if not rows:
        return
    work = median(row["Perf/iteration_time"] - row["Perf/collective_time"] for row in rows)
    efficiency = work / (work + timings["communication"])
    spent = median(row["Perf/collective_time"] / row["Perf/iteration_time"] for row in rows)
    truth = (
        f"about {efficiency:.0%}: an iteration works for {work * 1e3:,.0f} ms, and its {timings['collectives']:.0f} "
        f"collectives take {timings['communication'] * 1e3:,.0f} ms (in {len(rows)} trained iterations {spent:.0%} "
        "went into collectives, with waiting for the slower)"
    )
    remedy = "give each worker more to do with --num-envs, or look for a faster way between the machines"
    yield note("efficiency", truth, remedy) if efficiency < WORTHWHILE else ok("efficiency", truth)
