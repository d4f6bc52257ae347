"""Checks of the host: cores, memory, disks, shared memory, loopback and names."""

from __future__ import annotations

import os
import platform
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.checks.findings import note, ok, problem, size
from shoal.checks.preflight import (
    SHARED_MEMORY,
    findings_of,
    judge_disk,
    judge_kernel_cache,
    judge_memory,
    judge_shared_memory,
    judge_temporary,
)
from shoal.config import AgentConfig
from shoal.errors import UsageError
from shoal.machine import host
from shoal.plan.ranks import cpu_quota, usable_cores
from shoal.plan.sizes import checkpoint_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.checks.findings import Finding
    from shoal.doctor.ask import Ask

LOOPBACK = "127.0.0.1"
_LOOPBACK_S = 2.0
_WORD = b"shoal"
_FEW_FILES = 256
"""Open files below which a launch with sockets, logs and libraries hardly works."""


def cores(ask: Ask) -> Iterator[Finding]:
    """Look at the cores that may be used."""
    yield judge_cores(len(ask.devices), os.cpu_count() or 1, usable_cores(), cpu_quota(), _cpu_name())


def judge_cores(workers: int, there: int, usable: int, quota: float | None, name: str) -> Finding:
    """Compare workers with cores: each worker keeps one busy, on a GPU too."""
    told = f"{usable} of {there} cores may be used"
    told += f" (a container's limit: {quota:g})" if quota is not None else ""
    if workers > usable:
        return note("cores", f"{told}, and {workers} workers will share them", "pass fewer --nproc-per-node")
    return ok("cores", f"{told}; {name}")


def _cpu_name() -> str:
    lines = host.read_text(Path("/proc/cpuinfo")).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def open_files(_ask: Ask) -> Iterator[Finding]:
    """Look at how many files a process may open."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FEW_FILES:
        yield note("open files", f"A process may open {soft} files only", "raise the limit, as by `ulimit -n 4096`")
    else:
        yield ok("open files", f"{soft} a process")


def storage(ask: Ask) -> Iterator[Finding]:
    """Look at directories, disks and memory: for the training of the task that was asked, or for any."""
    plan = ask.plan
    if isinstance(plan, UsageError):
        yield problem("task", str(plan).rstrip("."), "")
    elif plan is not None:
        told = f"{plan.spec.name}: {plan.world_size} workers on {', '.join(dict.fromkeys(plan.devices))}"
        yield ok("task", f"{told}, {plan.num_envs:,} environments each")
        yield from findings_of(plan, ask.environ, ask.gpus)
    if plan is None or isinstance(plan, UsageError):
        yield from _any_training(ask)
    cache = host.kernel_cache(ask.environ)
    yield ok("kernel cache", f"{size(_bytes_below(cache))} of compiled kernels")


def _any_training(ask: Ask) -> Iterator[Finding]:
    """Hold the machine against a training with default networks, without experience."""
    yield judge_kernel_cache(host.kernel_cache(ask.environ))
    yield judge_temporary(ask.environ)
    yield judge_memory(host.memory(), len(ask.devices), 0)
    if len(set(ask.devices)) > 1:
        yield judge_shared_memory(host.disk(SHARED_MEMORY), len(ask.devices))
    root = Path(ask.config.log_root)
    trouble = host.why_unwritable(root)
    if trouble is not None:
        truth = f"--log-root asks for {root}, but {trouble[0]} {trouble[1]}"
        yield problem("disk", truth, "pass a directory that you can write to")
        return
    wanted = checkpoint_bytes(AgentConfig())
    yield judge_disk(host.nearest_existing(root), host.disk(root), wanted, 1, exactly=False)


def _bytes_below(directory: Path) -> int:
    """Return the size of all files below a directory. What vanishes meanwhile does not count."""
    total = 0
    for path, _directories, files in os.walk(directory):
        for name in files:
            try:
                total += (Path(path) / name).lstat().st_size
            except OSError:
                continue
    return total


def loopback(_ask: Ask) -> Iterator[Finding]:
    """Let a socket of this process reach another over loopback, as ranks of one machine do."""
    try:
        heard = _echo()
    except OSError as error:
        yield problem(
            "loopback", f"{LOOPBACK} cannot be reached ({error.strerror or error})", "bring it up: ip link set lo up"
        )
        return
    if heard == _WORD:
        yield ok("loopback", f"{LOOPBACK} answers")
    else:
        yield problem("loopback", f"{LOOPBACK} garbles what is sent to it", "look for a proxy or a firewall")


def _echo() -> bytes:
    """Return what comes of a word that is sent over loopback."""
    with (
        socket.create_server((LOOPBACK, 0)) as server,
        socket.create_connection(server.getsockname(), timeout=_LOOPBACK_S) as near,
    ):
        server.settimeout(_LOOPBACK_S)
        far, _ = server.accept()
        with far:
            far.settimeout(_LOOPBACK_S)
            near.sendall(_WORD)
            return far.recv(len(_WORD))


def names(_ask: Ask) -> Iterator[Finding]:
    """Look whether this machine knows its own name, which only several machines need."""
    name = platform.node()
    why_not = host.resolves(name)
    if why_not is None:
        yield ok("host name", f"{name} resolves")
    else:
        yield note(
            "host name",
            f"This machine's own name, '{name}', does not resolve ({why_not}), which several machines need",
            "add it to /etc/hosts",
        )
