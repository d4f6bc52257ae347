"""Communication checks: the time of an all_reduce among the ranks of a short training, here or on several nodes.

The training is launched as `train` launches it, so the launch itself detects and names a rank that hangs or dies. All
its files are in a scratch directory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from shoal.checks.findings import Finding, note, ok, problem, problem_of
from shoal.checks.preflight import wanted_gpus
from shoal.config import DoctorConfig, TrainConfig
from shoal.doctor.context import DoctorContext, training_of
from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, WorkerLostError
from shoal.launch.remote.host_probe import probe_hosts
from shoal.plan.ranks import without
from shoal.plan.training import TrainPlan, plan_training

Timings = Mapping[str, float]
"""Result of `learn.collective_latency.measure_collective_latency`."""
Rows = Sequence[Mapping[str, float]]
"""Metrics, a row for each iteration."""

GRADIENT = 440_000
"""Numbers in the gradients of an actor and a critic of usual size: 1.76 MB."""
NUM_ENVS = 16
"""Environments of each rank of a training on this machine, which only has to communicate."""
STARTUP_S = 60.0
"""Time for a rank on this machine to import its libraries and to compile, in addition to `--timeout` [s]."""
HOSTS_STARTUP_S = 180.0
"""The same on several nodes, which may have cold disks [s]."""
SLOW_S = 0.02
"""An all_reduce of gradients that takes longer is worth a note [s]: an iteration has some twenty of them."""
WARM_UP, COUNTED = 2, 4
"""Iterations of the short training of a named task: the first ones are not counted."""
WORTHWHILE = 0.8
"""A predicted efficiency below this is worth a note."""

STOPPED = (InterruptedRunError, TerminatedRunError)
"""Errors by which a stop signal ends the examination."""


def launch_probe(plan: TrainPlan, numbers: int) -> tuple[Timings, Rows]:
    """Launch a short training whose ranks time all_reduce first; return the times, and its metrics.

    The longer message has so many `numbers`; with 0 it has the size of the gradient of the task.

    Raises:
        ShoalError: It failed, or this process received a stop signal.
    """
    from shoal.launch.modes import launching
    from shoal.launch.rank import ProgressReporter

    metrics: list[Mapping[str, float]] = []

    class Collector(ProgressReporter):
        def on_row(self, row: Mapping[str, float]) -> None:
            metrics.append(row)

    def begin(stack: ExitStack) -> Path:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-doctor-")))

    # No rank runs in this process, so none aborts it.
    with (
        without(["TORCHRUNX_LOG_DIR"]),
        launching(plan, Collector(), None, begin) as (_run, run_workers, stop),
    ):
        nodes = tuple(replace(node, shares_runs=False) for node in plan.nodes)
        try:
            reports = run_workers(replace(plan, nodes=nodes, probe=numbers))
        except STOPPED as error:
            if stop.first is None:  # A rank was stopped, and this process was not.
                raise WorkerLostError(str(error)) from None
            raise type(error)(f"Ended by {stop.first}.") from None
    return reports[0].collective_latency, metrics


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
    """Time all_reduce through gloo among as many ranks on the CPU as there are workers."""
    yield from _time_backend(context, "gloo", ("None",), len(context.devices))


def nccl(context: DoctorContext) -> Iterator[Finding]:
    """Time all_reduce through NCCL among the wanted GPUs."""
    wanted = [str(gpu.index) for gpu in wanted_gpus(context.devices, context.gpus) if not gpu.is_mig]
    yield from _time_backend(context, "nccl", tuple(wanted), len(wanted))


def _time_backend(context: DoctorContext, backend: str, gpu_ids: tuple[str, ...], ranks: int) -> Iterator[Finding]:
    """Launch a short training of the cart-pole on this machine."""
    if ranks < 2 or isinstance(context.torch, str):  # noqa: PLR2004  One rank does not communicate.
        return
    context.log(f"Timing all_reduce through {backend} among {ranks} ranks.")
    config = replace(context.config, task=None, log_root=tempfile.gettempdir())
    config = _short_training(config, STARTUP_S, gpu_ids=gpu_ids, nproc_per_node=ranks, num_envs=NUM_ENVS)
    try:
        timings, _ = launch_probe(plan_training(config, context.environ, context.gpus), GRADIENT)
    except ShoalError as error:
        if isinstance(error, STOPPED):
            raise
        yield _failure(backend, ranks, error)
        return
    topic, truth = f"{backend}, {ranks} ranks", _describe(timings)
    remedy = "expect several workers to gain little, or look for what else keeps the cores busy"
    slow = note(topic, f"all_reduce is slow: {truth}", remedy)
    yield slow if timings["gradient"] > SLOW_S else ok(topic, truth)


def _describe(timings: Timings) -> str:
    latency, gradient = timings["latency"] * 1e3, timings["gradient"] * 1e3
    return f"{latency:.2f} ms for a number, {gradient:.2f} ms for {timings['bytes'] / 1e6:.2f} MB of gradients"


def _failure(backend: str, ranks: int, error: ShoalError) -> Finding:
    """Return the finding about a launch that failed."""
    reason = str(error).partition(". ")[0].rstrip(".")  # The rest is about the run directory, which is gone.
    killed = isinstance(error, WorkerLostError) and "SIGKILL" in reason
    if killed:
        remedy = "look for what killed it, such as the kernel when memory runs out, and try again"
    elif backend == "gloo":
        remedy = "train with one worker, and look for a firewall, a stopped process, or a machine that is far too busy"
    else:
        remedy = "export NCCL_P2P_DISABLE=1 or another setting of docs/doctor.md, and look at NCCL_DEBUG=INFO"
    truth = f"all_reduce through {backend} failed among {ranks} ranks: {reason}"
    return problem(backend, truth, remedy, transient=killed)


# Several nodes -----------------------------------------------------------------------------------------------------


def nodes(context: DoctorContext) -> Iterator[Finding]:
    """Check the nodes of `--hosts`: whether they can train together, and what communication costs."""
    config, environ = context.config, context.environ
    flags = ("gpu_ids", "nproc_per_node", "hosts", "ssh_config", "interface")
    iterations = WARM_UP + COUNTED if config.task else 1
    training = _short_training(config, HOSTS_STARTUP_S, iterations, **{name: getattr(config, name) for name in flags})
    context.log(f"Connecting to {', '.join(config.hosts)}.")
    missing: list[ShoalError] = []
    try:
        probe = partial(probe_hosts, environ, training, (training.task,), missing.append)
        plan = plan_training(training, environ, context.gpus, probe)
    finally:
        yield from (problem_of("nodes", each) for each in missing)
    for each in plan.nodes:
        interface = each.network.get("GLOO_SOCKET_IFNAME")
        truth = f"reached, with the same versions and code as here; workers on {', '.join(each.devices)}"
        yield ok(f"node {each.host}", f"{truth}, which talk through {interface}" if interface else truth)
    yield from (note("nodes", each.rstrip(".")) for each in plan.notes)
    if len(plan.nodes) == 1 or missing:
        return
    about = f", and training {config.task} for {iterations} iterations" if config.task else ""
    context.log(f"Timing all_reduce through {plan.backend} among {plan.world_size} ranks{about}.")
    timings, rows = launch_probe(plan, 0 if config.task else GRADIENT)
    yield from judge_hosts(timings, rows[WARM_UP:] if config.task else ())


def judge_hosts(timings: Timings, rows: Rows) -> Iterator[Finding]:
    """Report the time of an all_reduce between nodes, and predict the efficiency of a training there.

    `rows` are the metrics of iterations that were trained there. Without any, nothing is predicted.
    """
    bandwidth = timings["bytes"] / timings["gradient"]
    yield ok("between nodes", f"{_describe(timings)} ({bandwidth / 1e6:,.1f} MB/s)")
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
    remedy = "give each worker more to do with --num-envs, or look for a faster way between the nodes"
    yield note("efficiency", truth, remedy) if efficiency < WORTHWHILE else ok("efficiency", truth)
