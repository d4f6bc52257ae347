"""Launch modes: what each does with a specification, and the environment in which it runs."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shoal.errors import ShoalError
from shoal.launch.progress import ProgressReporter
from shoal.launch.rendezvous import Rendezvous
from shoal.plan.ranks import Rank
from shoal.plan.spec import WorkerSpec
from shoal.plan.training import TrainPlan
from shoal.signals import StopRequests, stop_announcement, stop_requests
from shoal.worker import WorkerReport


@dataclass(frozen=True, slots=True)
class LaunchMode:
    """One way to run a specification on its workers."""

    agree_on_run_dir: Callable[[Callable[[], Path]], Path]
    """Calls what makes the run directory in one process, and returns its path in every process."""
    listen: Callable[[ProgressReporter], AbstractContextManager[StopRequests]]
    """Counts stop signals, from before the workers run until the end is recorded."""
    run: Callable[[WorkerSpec, ProgressReporter, StopRequests], list[WorkerReport]]
    """Runs the workers, and returns the reports that this process has."""


def launch_mode_of(plan: TrainPlan, abort: Callable[[ShoalError], None]) -> LaunchMode:
    """Return the launch mode of `plan`, whose rank in this process, if any, calls `abort` when it is stuck."""
    _let_idle_threads_sleep()
    if plan.rank is not None:
        from shoal.launch.joined import end_with_parent, run_joined, share_run_dir
        from shoal.launch.rendezvous import Rendezvous, shake_hands

        end_with_parent()  # Before anything is waited for.
        rendezvous = Rendezvous.of(plan.rank, plan.config.log_root)
        store = rendezvous.open(plan.rank, plan.config.startup_timeout)
        several = plan.rank.local_world_size < plan.rank.world_size
        try:
            backend = shake_hands(store, plan.rank, plan) if several else plan.backend
        finally:
            rendezvous.forget_secret(plan.rank)
        run = partial(run_joined, rank=plan.rank, rendezvous=rendezvous, store=store, backend=backend, abort=abort)
        return LaunchMode(
            partial(share_run_dir, store, plan.rank), partial(_listen_and_close, rendezvous, plan.rank), run
        )
    if plan.launch_mode == "spawned":
        from shoal.launch.supervisor import run_spawned

        return LaunchMode(_make_here, _listen_patiently, run_spawned)
    return LaunchMode(_make_here, _listen, partial(_run_in_process, abort=abort))


def _run_in_process(
    spec: WorkerSpec, progress: ProgressReporter, stop: StopRequests, *, abort: Callable[[ShoalError], None]
) -> list[WorkerReport]:
    """Run the one worker in this process, without a process group."""
    from shoal.launch.rank import run_rank
    from shoal.launch.status_store import StatusStore
    from shoal.plan.ranks import Rank

    rank = Rank(rank=0, local_rank=0, world_size=1, local_world_size=1)
    timeouts = spec.config.startup_timeout, spec.config.stall_timeout
    return run_rank(
        lambda: spec,
        rank,
        StatusStore(spec.run, rank),
        timeouts,
        stop=stop,
        abort=abort,
        on_row=progress.on_row,
        on_phase=progress.on_phase,
    )


def _let_idle_threads_sleep() -> None:
    """Make torch's CPU threads sleep, not spin, while they wait for each other, unless the user has chosen otherwise.

    Small networks wait often, and a spinning thread takes the core from the one that it waits for as soon as anything
    else runs: on two busy cores an iteration of the cart-pole took 1.3 s so, and 3 to 10 s with OpenMP's default.
    OpenMP reads this once, when torch is loaded; spawned workers inherit it.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _make_here(make: Callable[[], Path]) -> Path:
    return make()


def _listen(progress: ProgressReporter) -> AbstractContextManager[StopRequests]:
    """Acknowledge the first signal, and let a second SIGINT end this process at once."""
    return stop_requests(insist=True, announce=lambda name: progress.on_line(stop_announcement(name)))


def _listen_patiently(_progress: ProgressReporter) -> AbstractContextManager[StopRequests]:
    """Only count signals: launchers repeat them, and torchrun sends one to every rank as soon as another has failed."""
    return stop_requests(insist=False)


@contextmanager
def _listen_and_close(rendezvous: Rendezvous, rank: Rank, progress: ProgressReporter) -> Iterator[StopRequests]:
    """Only count signals, and remove the files of the rendezvous at the end."""
    with _listen_patiently(progress) as stop:
        try:
            yield stop
        finally:
            rendezvous.close(rank)


@contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Remove environment variables during the body: libraries would believe what a launcher left over."""
    hidden = {name: os.environ.pop(name) for name in tuple(names) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
