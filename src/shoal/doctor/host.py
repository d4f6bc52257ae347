"""Checks of the host: cores, open files, and what `train` checks: storage, memory, loopback, names."""

import os
import platform
import resource
from collections.abc import Iterator

from shoal.checks.findings import Finding, note, ok, problem
from shoal.checks.launch import check_loopback
from shoal.checks.preflight import findings_of
from shoal.doctor.context import DoctorContext, training_of
from shoal.errors import UsageError
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
    if soft < _FEW_FILES:
        yield note("open files", f"A process may open {soft} files only", "raise the limit, as by `ulimit -n 4096`")
    else:
        yield ok("open files", f"{soft} a process")


def training(context: DoctorContext) -> Iterator[Finding]:
    """Make the checks of `train`, for the named task or for what any task needs."""
    if not context.devices:
        return
    gpu_ids = tuple(dict.fromkeys(device.removeprefix("cuda:") for device in context.devices))
    changes = {} if context.config.task else {"num_envs": 1}
    config = training_of(
        context.config,
        gpu_ids=gpu_ids if context.uses_gpus else ("None",),
        nproc_per_node=len(context.devices),
        **changes,
    )
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
    if reason is None:
        yield ok("host name", f"{name} resolves")
    else:
        truth = f"This machine's own name, '{name}', does not resolve ({reason}), which several machines need"
        yield note("host name", truth, "add it to /etc/hosts")
