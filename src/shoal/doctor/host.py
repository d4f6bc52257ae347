"""Checks of the host: cores, open files, and what `train` checks: storage, memory, loopback, names."""

import os
import platform
import resource
from collections.abc import Iterator

from shoal.checks.findings import Finding, note, ok, problem
from shoal.checks.launch import check_loopback
from shoal.checks.preflight import findings_of
from shoal.doctor.context import DoctorContext
from shoal.errors import UsageError
from shoal.machine.host import cpu_name, cpu_quota, usable_cores, why_unresolved

_FEW_FILES = 256
"""Open files below which a launch with sockets, logs and libraries hardly works."""


def cores(context: DoctorContext) -> Iterator[Finding]:
    """Check the usable cores."""
    yield check_cores(len(context.devices), os.cpu_count() or 1, usable_cores(), cpu_quota())


def check_cores(workers: int, there: int, usable: int, quota: float | None) -> Finding:
    """Compare workers with cores: each worker keeps one busy, on a GPU too."""
    truth = f"{usable} of {there} cores may be used"
    truth += f" (a container's limit: {quota:g})" if quota is not None else ""
    if workers > usable:
        return note("cores", f"{truth}, and {workers} workers will share them", "pass fewer --nproc-per-node")
    return ok("cores", f"{truth}; {cpu_name()}")


def open_files(_context: DoctorContext) -> Iterator[Finding]:
    """Check the limit of open files."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FEW_FILES:
        yield note("open files", f"A process may open {soft} files only", "raise the limit, as by `ulimit -n 4096`")
    else:
        yield ok("open files", f"{soft} a process")


def training(context: DoctorContext) -> Iterator[Finding]:
    """Make the checks of `train`, for the named task or for any."""
    plan = context.plan
    if isinstance(plan, UsageError):
        yield problem("task", str(plan).rstrip("."), "")
    elif plan is not None:
        if context.config.task is not None:
            workers = f"{plan.world_size} workers on {', '.join(dict.fromkeys(plan.devices))}"
            yield ok("task", f"{plan.spec.name}: {workers}, {plan.num_envs:,} environments each")
        yield from findings_of(plan, context.environ, context.gpus)


def loopback(_context: DoctorContext) -> Iterator[Finding]:
    """Check the network interface by which the workers of one machine communicate."""
    yield check_loopback()


def names(_context: DoctorContext) -> Iterator[Finding]:
    """Check that this machine's own name resolves, which only several machines need."""
    name = platform.node()
    reason = why_unresolved(name)
    if reason is None:
        yield ok("host name", f"{name} resolves")
    else:
        yield note(
            "host name",
            f"This machine's own name, '{name}', does not resolve ({reason}), which several machines need",
            "add it to /etc/hosts",
        )
