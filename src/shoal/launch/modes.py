"""Launch modes: what each does with a specification, and the environment in which it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import ShoalError
from shoal.plan.ranks import Rank
from shoal.plan.spec import WorkerSpec
from shoal.plan.training import TrainPlan
from shoal.signals import StopRequests, stop_announcement, stop_requests
from shoal.worker import WorkerReport

if TYPE_CHECKING:
    from shoal.launch.rank import ProgressReporter


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchMode:
    """One way to run a specification on its workers."""

    run: Callable[[WorkerSpec, ProgressReporter, StopRequests], list[WorkerReport]]
    """Runs the workers, and returns the reports that this process has."""
    agree_on_run_dir: Callable[[Callable[[], Path]], Path] = lambda make: make()
    """Calls what makes the run directory in one process, and returns its path in every process."""
    shares_signals: bool = True
    """Whether signals are only counted: launchers repeat them, and torchrun sends one to every rank as soon as another
    has failed. Otherwise the first is acknowledged, and a second SIGINT ends this process at once."""
    close: Callable[[], None] = lambda: None
    """Removes what the launch needs no more at its end."""

    @contextmanager
    def listen(self, progress: ProgressReporter) -> Iterator[StopRequests]:
        """Count stop signals, from before the workers run until the end is recorded, and close."""
        announce = None if self.shares_signals else lambda name: progress.on_line(stop_announcement(name))
        with stop_requests(insist=not self.shares_signals, announce=announce) as stop:
            try:
                yield stop
            finally:
                self.close()


def launch_mode_of(plan: TrainPlan, abort: Callable[[ShoalError], None]) -> LaunchMode:
    """Return the launch mode of `plan`, whose rank in this process, if any, calls `abort` when it is stuck."""
    # CPU threads of torch sleep while they wait for each other, unless the user has chosen otherwise. Small networks
    # wait often, and a spinning thread takes the core from the one that it waits for as soon as anything else runs: on
    # two busy cores an iteration of the cart-pole took 1.3 s so, and 3 to 10 s with OpenMP's default. OpenMP reads this
    # once, when torch is loaded; spawned workers inherit it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if plan.rank is not None:
        return _joined(plan, plan.rank, abort)
    if plan.launch_mode == "spawned":
        from shoal.launch.supervisor import run_spawned

        return LaunchMode(run=run_spawned)
    return LaunchMode(run=partial(_run_in_process, abort), shares_signals=False)


def _joined(plan: TrainPlan, rank: Rank, abort: Callable[[ShoalError], None]) -> LaunchMode:
    """Meet the other ranks, and return the mode of this one."""
    from shoal.launch.joined import end_with_parent, run_joined, share_run_dir
    from shoal.launch.rendezvous import Rendezvous, shake_hands

    end_with_parent()  # Before anything is waited for.
    rendezvous = Rendezvous.of(rank, plan.config.log_root)
    store = rendezvous.open(rank, plan.config.startup_timeout)
    try:
        several = rank.local_world_size < rank.world_size
        backend = shake_hands(store, rank, plan) if several else plan.backend
    finally:
        rendezvous.forget_secret(rank)
    return LaunchMode(
        run=partial(run_joined, rank=rank, rendezvous=rendezvous, store=store, backend=backend, abort=abort),
        agree_on_run_dir=partial(share_run_dir, store, rank),
        close=partial(rendezvous.close, rank),
    )


def _run_in_process(
    abort: Callable[[ShoalError], None], spec: WorkerSpec, progress: ProgressReporter, stop: StopRequests
) -> list[WorkerReport]:
    """Run the one worker in this process, without a process group."""
    from shoal.launch.rank import run_rank
    from shoal.launch.status_store import StatusStore

    rank = Rank(rank=0, local_rank=0, world_size=1, local_world_size=1)
    timeouts = spec.config.startup_timeout, spec.config.stall_timeout
    return run_rank(lambda: spec, StatusStore(spec.run, rank), timeouts, stop=stop, abort=abort, progress=progress)


@contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Remove environment variables during the body: libraries would believe what a launcher left over."""
    hidden = {name: os.environ.pop(name) for name in tuple(names) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
