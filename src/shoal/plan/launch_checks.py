"""What a launch needs beside its workers: loopback, semaphores."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.plan.findings import Finding, problem
from shoal.plan.network import LOOPBACK, addresses_by_interface

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.plan.training import TrainPlan

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  The kernel's own directory.


def judge_launch(plan: TrainPlan) -> Iterator[Finding]:
    """Look for what keeps the workers of a plan from starting, or from finding each other on this machine."""
    if plan.door == "spawned":
        yield from _judge_semaphores()
    if len(plan.devices) > 1 and not plan.machines and not addresses_by_interface().get(LOOPBACK):
        yield problem(
            "loopback",
            f"The network interface {LOOPBACK} is down, or has no address, and workers of one machine need it",
            f"run `ip link set {LOOPBACK} up` as root",
        )


def _judge_semaphores() -> Iterator[Finding]:
    """Make a semaphore without a name, as torchrunx and the pools of its agent do."""
    try:
        multiprocessing.get_context("fork").Lock()
    except OSError as error:
        yield problem(
            "shared memory",
            f"No semaphore can be made in {SHARED_MEMORY} ({error.strerror}), and a launch needs some",
            "make room there, or mount it writable (docker run --shm-size 1g)",
        )
