"""Checks of the machine: what `train` checks, cores, open files, names, GPUs, their links, a kernel on each device."""

import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import replace

from shoal.checks.findings import Finding, note, ok, problem, size
from shoal.checks.gpu import holders_of
from shoal.checks.launch import check_loopback
from shoal.checks.preflight import findings_of, wanted_gpus
from shoal.doctor.context import DoctorContext, training_of
from shoal.errors import UsageError
from shoal.machine import gpu_health
from shoal.machine.gpu_health import GpuState
from shoal.machine.host import cpu_name, cpu_quota, usable_cores, why_unresolved
from shoal.plan.training import plan_training

_FEW_FILES = 256
"""Open files below which a launch with sockets, logs and libraries hardly works."""


def cores(context: DoctorContext) -> Iterator[Finding]:
    """Compare workers with cores: each worker keeps one busy, on a GPU too."""
    workers, usable, quota = len(context.devices), usable_cores(), cpu_quota()
    truth = f"{usable} of {os.cpu_count() or 1} cores may be used"
    truth += f" (a container's limit: {quota:g})" if quota is not None else ""
    if workers > usable:
        yield note("cores", f"{truth}, and {workers} workers will share them", "pass fewer --nproc-per-node")
    else:
        yield ok("cores", f"{truth}; {cpu_name()}")


def open_files(_context: DoctorContext) -> Iterator[Finding]:
    """Check the limit of open files."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = note("open files", f"A process may open {soft} files only", "raise the limit, as by `ulimit -n 4096`")
    yield few if soft < _FEW_FILES else ok("open files", f"{soft} a process")


def training(context: DoctorContext) -> Iterator[Finding]:
    """Make the checks of `train`, for the named task or for what any task needs."""
    if not context.devices:
        return
    indices = tuple(dict.fromkeys(device.removeprefix("cuda:") for device in context.devices))
    gpu_ids = indices if context.uses_gpus else ("None",)
    config = training_of(context.config, gpu_ids=gpu_ids, nproc_per_node=len(context.devices))
    if context.config.task is None:
        config = replace(config, num_envs=1)
    try:
        plan = plan_training(config, context.environ, context.gpus)
    except UsageError as error:
        yield problem("task", str(error).rstrip("."), "")
        return
    if context.config.task is not None:
        workers = f"{plan.world_size} workers on {', '.join(dict.fromkeys(plan.devices))}"
        yield ok("task", f"{plan.spec.name}: {workers}, {plan.num_envs:,} environments each")
    yield from findings_of(plan, context.environ, context.gpus)


def network(_context: DoctorContext) -> Iterator[Finding]:
    """Check loopback, by which workers of one machine communicate, and this machine's name, which several need."""
    yield check_loopback()
    name = platform.node()
    reason = why_unresolved(name)
    truth = f"This machine's own name, '{name}', does not resolve ({reason}), which several machines need"
    yield note("host name", truth, "add it to /etc/hosts") if reason else ok("host name", f"{name} resolves")


def gpus(context: DoctorContext) -> Iterator[Finding]:
    """Report the devices of the workers and the visible GPUs. `train`'s own checks judge them."""
    if isinstance(context.workers, UsageError):
        yield problem("devices", str(context.workers).rstrip("."), "")
    else:
        for each in context.workers.notes:
            yield note("devices", each.rstrip("."))
        yield ok("devices", f"{len(context.devices)} workers on {', '.join(dict.fromkeys(context.devices))}")
    if not context.gpus:
        reason = context.gpus.problem or "this machine has none, or CUDA_VISIBLE_DEVICES hides it"
        yield ok("GPUs", f"none is visible ({reason})")
    for state in gpu_health.read_gpu_states(context.gpus.gpus):
        yield ok(f"GPU {state.index}", describe(state))


def describe(state: GpuState) -> str:
    """Return the state of a GPU in one line."""
    parts = [state.name]
    if state.free_bytes is not None and state.total_bytes is not None:
        parts.append(f"{size(state.free_bytes)} of {size(state.total_bytes)} free")
    if state.holders:
        parts.append(f"used by {holders_of(state)}")
    if state.temperature_c is not None:
        parts.append(f"{state.temperature_c} °C")
    if state.uncorrected_errors is not None:
        parts.append(f"{state.uncorrected_errors} uncorrected memory errors")
    if state.compute_mode not in (None, "default"):
        parts.append(f"compute mode {state.compute_mode}")
    if state.is_mig:
        parts.append("a MIG device")
    return ", ".join(parts)


def links(context: DoctorContext) -> Iterator[Finding]:
    """Check the links between the wanted GPUs: whether each has direct access to the others."""
    peers = None if isinstance(context.torch, str) else context.torch["peers"]
    for link in gpu_health.read_gpu_links(wanted_gpus(context.devices, context.gpus)):
        pair, access = f"GPUs {link.one} and {link.other}", link.peer_access
        can = peers is None or ([link.one, link.other] in peers and [link.other, link.one] in peers)
        if access == "ok" and not can:
            truth = f"{pair} have peer access by the driver, but not by torch"
            yield note("links", truth, "set NCCL_P2P_DISABLE=1 if NCCL hangs")
        elif access not in (None, "ok"):
            yield note("links", f"{pair} have no peer access ({access}): gradients go through the host's memory")
        path = link.path or "the driver does not tell the way"
        yield ok("links", f"{pair}: {path}, peer access {access or 'unknown'}")


def kernels(context: DoctorContext) -> Iterator[Finding]:
    """Report whether a kernel ran on each device, each in a process of its own."""
    for device in dict.fromkeys(context.devices):
        topic, result = f"kernel on {device}", context.probes[device].result()
        if isinstance(result, str):
            truth = f"Warp could not run a kernel on {device} ({result})"
            yield problem(topic, truth, "mend the driver, or install warp-lang anew")
        elif not result["right"]:
            yield problem(topic, f"A kernel on {device} computed something wrong", "do not trust this device")
        elif result["why_not_captured"]:
            truth = f"A step on {device} cannot be captured as a graph ({result['why_not_captured']})"
            yield problem(topic, truth, "update the driver, or train with --env.no-step-graph, which is much slower")
        else:
            yield ok(topic, f"ran, and was captured as a graph; loading it took {result['loaded_s']:.1f} s")
