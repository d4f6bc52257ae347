"""Launch modes: in process, spawned (`shoal.launch.supervisor`), and joined, for a rank that torchrun or srun started.

Rank 0 of a joined launch makes the run directory, and sends its path and the specification through the store.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from shoal import PARENT
from shoal.errors import ShoalError, TerminatedRunError, UsageError, WorkerLostError
from shoal.files import folder_of
from shoal.launch.exit_records import ExitRecord, clear_exit_records, failure_of, resume_hint
from shoal.launch.hang_detector import is_that_process, machine_lost
from shoal.launch.rank import ProgressReporter, run_rank
from shoal.launch.rendezvous import Rendezvous, acknowledge, find_network, shake_hands
from shoal.launch.signed_store import SignedStore
from shoal.launch.status_store import StatusStore, TcpStatusStore
from shoal.launch.supervisor import run_spawned
from shoal.learn.run_json import record_end
from shoal.plan.launch import LaunchPlan
from shoal.plan.launchers import launcher_of
from shoal.plan.ranks import Rank, stale_rank_variables
from shoal.plan.rundir import RunDir
from shoal.plan.spec import WorkerSpec
from shoal.signals import STOPPING_TRAINING, StopRequests, stop_requests
from shoal.timing import (
    CAUSE_S,
    FINAL_REPORT_S,
    PARENT_POLL_S,
    PEER_FAILURE_S,
    REAPER_SAVE_S,
    STATUS_REFRESH_S,
    wait_for,
)
from shoal.worker import WorkerReport

SpecT = TypeVar("SpecT", bound=WorkerSpec)

_RUN_DIR = "shoal/run_dir"
_REPORT = "shoal/report"
_SPEC = "shoal/spec"


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
def launching(
    plan: LaunchPlan,
    progress: ProgressReporter,
    abort: Callable[[ShoalError], None],
    make_run_dir: Callable[[ExitStack], Path],
    announcement: str = STOPPING_TRAINING,
) -> Iterator[tuple[RunDir, Callable[[WorkerSpec], list[WorkerReport]], StopRequests]]:
    """Meet the other ranks, if any, and yield the run, what runs the workers, and the stop signals of the body.

    Args:
        plan: What this process does.
        progress: Shows it.
        abort: Ends this process when a rank in it is stuck.
        make_run_dir: Called in one process, with a stack that holds locks until the end.
        announcement: Acknowledges the first signal where launchers do not repeat them.
    """
    mode = _mode_of(plan, abort)
    announce = None if mode.shares_signals else lambda name: progress.on_line(f"{name}: {announcement}")
    with ExitStack() as stack:
        run = RunDir(mode.agree_on_run_dir(partial(make_run_dir, stack)))
        stack.enter_context(without(stale_rank_variables(os.environ)))
        stop = stack.enter_context(stop_requests(insist=not mode.shares_signals, announce=announce))
        stack.callback(mode.close)
        yield run, lambda spec: mode.run(spec, progress, stop), stop


def _mode_of(plan: LaunchPlan, abort: Callable[[ShoalError], None]) -> LaunchMode:
    """Return the launch mode of `plan`, whose rank in this process, if any, calls `abort` when it is stuck."""
    # torch's CPU threads sleep while they wait, and do not spin: a spinning thread takes the core from the one that it
    # waits for as soon as anything else runs. On two busy cores an iteration of the cart-pole took 1.3 s so, and 3 to
    # 10 s with OpenMP's default. OpenMP reads this once, when torch is loaded; spawned workers inherit it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if plan.rank is not None:
        return _joined(plan, plan.rank, abort)
    if plan.launch_mode == "spawned":
        return LaunchMode(run=run_spawned)
    return LaunchMode(run=partial(_run_in_process, abort), shares_signals=False)


@contextmanager
def without(names: Iterable[str]) -> Iterator[None]:
    """Remove environment variables during the body: libraries would believe what a launcher left over."""
    hidden = {name: os.environ.pop(name) for name in tuple(names) if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _run_in_process(
    abort: Callable[[ShoalError], None], spec: WorkerSpec, progress: ProgressReporter, stop: StopRequests
) -> list[WorkerReport]:
    """Run the one worker in this process, without a process group."""
    statuses = StatusStore(spec.run, Rank(rank=0, local_rank=0, world_size=1, local_world_size=1))
    timeouts = spec.config.startup_timeout, spec.config.stall_timeout
    return run_rank(lambda: spec, statuses, timeouts, stop=stop, abort=abort, progress=progress)


# Joined ---------------------------------------------------------------------------------------------------------------


def _joined(plan: LaunchPlan, rank: Rank, abort: Callable[[ShoalError], None]) -> LaunchMode:
    """Meet the other ranks, and return the mode of this one: on rank 0 it returns the reports of all."""
    _end_with_parent()  # Before anything is waited for.
    rendezvous = Rendezvous.of(rank, plan.config.log_root)
    store = rendezvous.open(rank, plan.config.startup_timeout)
    several = rank.local_world_size < rank.world_size
    try:
        backend = shake_hands(store, rank, plan) if several else plan.backend
    finally:
        rendezvous.forget_secret(rank)

    def run(own: WorkerSpec, progress: ProgressReporter, stop: StopRequests) -> list[WorkerReport]:
        spec = _share_spec(store, rank, replace(own, backend=backend))
        network = find_network(rendezvous, store, rank, own.config.interface)  # Each node's own.
        connect = partial(rendezvous.connect, store.secret)
        files = nullcontext(StatusStore(spec.run, rank))
        with closing(TcpStatusStore(spec.run, rank, connect)) if several else files as statuses:
            reports = run_rank(
                lambda: spec,
                statuses,
                (spec.config.startup_timeout, spec.config.stall_timeout),
                stop=stop,
                abort=abort,
                store=lambda: store.raw,
                progress=progress,
                network=network,
                gather=partial(_gather, store, rank),
                cause_of=partial(_first_cause, statuses, spec.launch),
            )
            if several:  # Rank 0, whose process may hold the store, stays until the exit records of all are in it.
                acknowledge(store, rank, "end", STATUS_REFRESH_S)
        return reports

    agree = partial(share_run_dir, store, rank)
    return LaunchMode(run=run, agree_on_run_dir=agree, close=partial(rendezvous.close, rank))


def _end_with_parent() -> None:
    """End this process when its parent ends, as a killed torchrun ends no rank; it has `REAPER_SAVE_S` to save."""

    def follow() -> None:
        wait_for(lambda: os.getppid() != PARENT, poll=PARENT_POLL_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(REAPER_SAVE_S)
        os._exit(TerminatedRunError.exit_code)

    threading.Thread(target=follow, name="parent-death watch", daemon=True).start()


def share_run_dir(store: SignedStore, rank: Rank, make: Callable[[], Path]) -> Path:
    """Make the run directory on rank 0, and return its path on all ranks, or raise rank 0's message on all."""
    if rank.rank == 0:
        try:
            path = make()
        except Exception as error:
            store.set(_RUN_DIR, json.dumps({"error": str(error) or repr(error)}))
            acknowledge(store, rank, "refusal")
            raise
        store.set(_RUN_DIR, json.dumps({"path": str(path)}))
        return path
    received = json.loads(store.get(_RUN_DIR))
    if "error" in received:
        acknowledge(store, rank, "refusal")
        raise UsageError(received["error"])
    run = RunDir(Path(received["path"]))
    if rank.local_rank == 0 and not run.run_json.exists():  # A disk of its own, for exit records and stack dumps.
        with suppress(OSError):
            folder_of(run.run_json).make(run.ranks_dir)
            clear_exit_records(run)
    return run.path


def _share_spec(store: SignedStore, rank: Rank, spec: SpecT) -> SpecT:
    """Return rank 0's specification, which has the configuration of a continued run, with this rank's own devices."""
    if rank.rank == 0:
        store.set(_SPEC, spec.to_json())
        return spec
    return replace(type(spec).from_json(store.get(_SPEC).decode(), own=spec), nodes=spec.nodes)


def _gather(store: SignedStore, rank: Rank, report: WorkerReport) -> list[WorkerReport]:
    """Return the reports of all ranks on rank 0, and its own on every other rank."""
    store.set(f"{_REPORT}/{rank.rank}", json.dumps(asdict(report)))
    if rank.rank != 0:
        return [report]
    keys = [f"{_REPORT}/{each}" for each in range(rank.world_size)]
    store.raw.wait(keys, timedelta(seconds=FINAL_REPORT_S))  # All ranks have trained to the end together.
    return [WorkerReport(**json.loads(store.get(key))) for key in keys]


def _first_cause(statuses: StatusStore, launch: Mapping[str, Any], record: ExitRecord) -> ShoalError:
    """Return the error of the rank that failed first, if this rank's own failure is secondary."""
    if not record.is_secondary:
        return failure_of(record)

    def look() -> ShoalError | None:
        statuses.refresh()
        first = statuses.first_failure()
        # The traceback is printed by the rank that failed.
        return failure_of(replace(first, traceback="")) if first is not None else _lost_rank(statuses, launch)

    cause = wait_for(look, CAUSE_S if statuses.watches else 2 * CAUSE_S) or WorkerLostError(
        f"Another rank was lost: killed or crashed without a word. Look at {_launcher()}'s output for which."
    )
    found = ExitRecord.of_error(cause, statuses.rank)
    if statuses.watches and statuses.first_failure() is None:
        statuses.write_exit(found)  # Ranks that do not watch the others wait for it.
    return cause


def _lost_rank(statuses: StatusStore, launch: Mapping[str, Any]) -> WorkerLostError | None:
    """Return the error of the rank that ended without an exit record, once its heartbeat has stopped."""
    rank, run = statuses.rank, statuses.run
    if statuses.silent > PEER_FAILURE_S and rank.rank != 0:
        return machine_lost(run, rank.rank, "collective", statuses.silent)
    running = set(range(rank.world_size)) - {rank.rank} - statuses.ended()
    beats = [beat for beat in statuses.beats(running) if not is_that_process(beat)]
    lost = max(beats, key=lambda beat: beat.silent, default=None)
    if lost is None or lost.silent < PEER_FAILURE_S:  # A process of another node can only be seen to be silent.
        return None
    message = (
        f"Lost rank {lost.rank} on {lost.host} in {lost.place}: killed or crashed without a word. "
        f"{_launcher()}'s output tells its signal or exit code. {resume_hint(run)}"
    )
    error = WorkerLostError(message, rank=lost.rank)
    if (lost.rank, rank.rank) == (0, 1) and run.run_json.exists():
        record_end(run, launch, error.exit_code, message)  # For rank 0, which keeps the record and was lost.
    return error


def _launcher() -> str:
    return launcher_of(os.environ) or "the launcher"
