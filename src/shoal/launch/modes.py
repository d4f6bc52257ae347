"""Which door a plan goes through, what every door can do, and the environment they are opened in."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shoal.launch.signals import stop_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from shoal.launch.progress import ProgressReporter
    from shoal.launch.rendezvous import Rendezvous
    from shoal.launch.signals import StopRequests
    from shoal.plan.ranks import Rank
    from shoal.plan.spec import WorkerSpec
    from shoal.plan.training import TrainPlan
    from shoal.worker import WorkerReport


@dataclass(frozen=True, slots=True)
class LaunchMode:
    """One way to bring a job to its workers."""

    agree_on_run_dir: Callable[[Callable[[], Path]], Path]
    """Calls what makes the run directory on the one process that shall, and returns its path on every process."""
    listen: Callable[[ProgressReporter], AbstractContextManager[StopRequests]]
    """Takes signals as requests to stop, from before the job runs until its end is recorded."""
    run: Callable[[WorkerSpec, ProgressReporter, StopRequests], list[WorkerReport]]
    """Runs the job and returns the reports of the ranks that this process answers for."""


def launch_mode_of(plan: TrainPlan) -> LaunchMode:
    """Return the door that `plan` names. Only that door's libraries are imported."""
    _let_idle_threads_sleep()
    if plan.rank is not None:
        from shoal.launch.handshake import arrive
        from shoal.launch.joined import run_joined, share_run_dir
        from shoal.launch.parent_death import end_with_parent
        from shoal.launch.rendezvous import Rendezvous

        end_with_parent()  # Before anything is waited for.
        meeting = Rendezvous.of(plan.rank, plan.config.log_root)
        store = meeting.open(plan.rank, plan.config.startup_timeout)
        several = plan.rank.local_world_size < plan.rank.world_size
        try:
            backend = arrive(store, plan.rank, plan) if several else plan.backend
        finally:
            meeting.forget_secret(plan.rank)
        run = partial(run_joined, rank=plan.rank, meeting=meeting, store=store, backend=backend)
        return LaunchMode(
            partial(share_run_dir, store, plan.rank), partial(_listen_until_left, meeting, plan.rank), run
        )
    if plan.launch_mode == "spawned":
        from shoal.launch.supervisor import run_spawned

        return LaunchMode(_make_it_here, _listen_patiently, run_spawned)
    from shoal.launch.in_process import listen, run_in_process

    return LaunchMode(_make_it_here, listen, run_in_process)


def _let_idle_threads_sleep() -> None:
    """Make torch's CPU threads sleep, not spin, while they wait for each other, unless the user has said otherwise.

    Small networks wait often, and a spinning thread takes the core from the one that it waits for as soon as anything
    else runs: on two busy cores an iteration of the cart-pole took 1.3 s so, and 3 to 10 s with OpenMP's default.
    OpenMP reads this once, when torch is loaded; spawned workers inherit it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _make_it_here(make: Callable[[], Path]) -> Path:
    return make()


def _listen_patiently(_view: ProgressReporter) -> AbstractContextManager[StopRequests]:
    """Only count signals: launchers repeat them, and torchrun sends one to every rank as soon as another has failed."""
    return stop_requests(insist=False)


@contextmanager
def _listen_until_left(meeting: Rendezvous, rank: Rank, _view: ProgressReporter) -> Iterator[StopRequests]:
    """Listen patiently, and remove what the ranks have met by."""
    with _listen_patiently(_view) as stop:
        try:
            yield stop
        finally:
            meeting.close(rank)


@contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Hide environment variables for the time of the body: what a launcher left over, libraries would believe."""
    hidden = {name: os.environ.pop(name) for name in tuple(names) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
