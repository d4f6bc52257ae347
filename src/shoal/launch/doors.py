"""Which door a plan goes through, and the two things that every door can do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shoal.launch.view import View
    from shoal.plan.job import Job
    from shoal.plan.training import TrainPlan
    from shoal.worker import WorkerReport


@dataclass(frozen=True, slots=True)
class Door:
    """One way to bring a job to its workers."""

    agree_on_run_dir: Callable[[Callable[[], Path]], Path]
    """Calls what makes the run directory on the one process that shall, and returns its path on every process."""
    run: Callable[[Job, View], list[WorkerReport]]
    """Runs the job and returns the reports of the ranks that this process answers for."""


def open_door(plan: TrainPlan) -> Door:
    """Return the door that `plan` names. Only that door's libraries are imported."""
    if plan.rank is not None:
        from shoal.launch.joined import open_launchers_store, run_joined, share_run_dir

        store = open_launchers_store()
        return Door(partial(share_run_dir, store, plan.rank), partial(run_joined, rank=plan.rank, store=store))
    if plan.world_size > 1:
        from shoal.launch.spawned import run_spawned

        return Door(_make_it_here, run_spawned)
    from shoal.launch.in_process import run_in_process

    return Door(_make_it_here, run_in_process)


def _make_it_here(make: Callable[[], Path]) -> Path:
    return make()
