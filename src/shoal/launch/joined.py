"""The launch mode *joined*: a rank that torchrun or srun started meets the others, agrees with them, and runs.

Before anything is made, each rank publishes in the store what its node runs and was asked, or why it refuses. A node
with another version, another command or no GPU ends all ranks at once with the same message; a late rank is named.
Rank 0 makes the run directory, and sends its path and the specification.
"""

import json
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from shoal import PARENT
from shoal.config.plain import to_plain
from shoal.config.train import NOT_REPEATED
from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, UsageError, WorkerLostError
from shoal.files import folder_of
from shoal.launch.exit_records import ExitRecord, failure_of, resume_hint
from shoal.launch.hang_detector import is_that_process, machine_lost
from shoal.launch.rank import ProgressReporter, run_rank
from shoal.launch.rendezvous import Rendezvous, SignedStore
from shoal.launch.status_store import StatusStore, TcpStatusStore
from shoal.learn.run_json import record_end
from shoal.machine.network import route_to, through
from shoal.plan import received
from shoal.plan.changes import flatten
from shoal.plan.environment_parity import Fingerprint, code_of, fingerprint, refuse_differences
from shoal.plan.launch import Plan
from shoal.plan.nodes import choose_backend
from shoal.plan.ranks import Rank, joined_rank, launcher_of
from shoal.plan.rundir import RunDir
from shoal.run_record import WorkerReport, clear_exit_records
from shoal.signals import StopRequests
from shoal.timing import (
    ACKNOWLEDGE_S,
    CAUSE_S,
    FINAL_REPORT_S,
    PEER_FAILURE_S,
    REAPER_SAVE_S,
    REFUSAL_S,
    STATUS_LINGER_S,
    STATUS_REFRESH_S,
    wait_for,
)

PlanT = TypeVar("PlanT", bound=Plan)

_HANDSHAKE = "shoal/handshake"
_VERDICT = "shoal/verdict"
"""Key of rank 0's result of the handshake: each rank reads it alone, not what all others have published."""
_RUN_DIR = "shoal/run_dir"
_REPORT = "shoal/report"
_PLAN = "shoal/plan"
_MAY_DIFFER = {"gpu_ids", "nproc_per_node", "log_root", "torchrunx_log_dir", *NOT_REPEATED}
"""Fields that each node may be asked in its own way."""
_OF_RANK_0 = ("resume", "teacher")
"""Flags whose configuration rank 0 alone reads."""


@contextmanager
def joined(
    plan: Plan, rank: Rank, abort: Callable[[ShoalError], None]
) -> Generator[
    tuple[Callable[[Callable[[], Path]], Path], Callable[[Plan, ProgressReporter, StopRequests], list[WorkerReport]]]
]:
    """Meet the other ranks; yield what agrees on the run directory, and what runs this rank.

    Rank 0 makes the directory, and gets the reports of all. A rank that is stuck calls `abort`.
    """
    _end_with_parent()  # Before anything is waited for.
    rendezvous = Rendezvous.of(rank, plan.config.log_root)
    store = rendezvous.open(rank, plan.config.startup_timeout)
    try:
        try:
            backend, remote_address = shake_hands(rendezvous, store, rank, plan)
        finally:
            rendezvous.forget_secret(rank)

        def run(own: Plan, progress: ProgressReporter, stop: StopRequests) -> list[WorkerReport]:
            shared = _share_plan(store, rank, replace(own, backend=backend if own.backend else None))
            network = find_network(rendezvous, remote_address, rank, own.config.interface)  # Each node's own.
            shared = replace(shared, nodes=(replace(shared.nodes[0], network=network),))
            several = rank.local_world_size < rank.world_size
            connect = partial(rendezvous.connect, store.secret)
            statuses = TcpStatusStore(shared.run, rank, connect) if several else StatusStore(shared.run, rank)
            with _recording_for_torchrun(), closing(statuses):
                reports = run_rank(
                    lambda: shared,
                    statuses,
                    (shared.config.startup_timeout, shared.config.stall_timeout),
                    stop=stop,
                    abort=abort,
                    store=lambda: store.raw,
                    progress=progress,
                    gather=partial(_gather, store, rank),
                    cause_of=partial(_first_cause, statuses, shared.launch),
                )
                if several:  # Rank 0, whose process may hold the store, stays until the exit records of all are in it.
                    acknowledge(store, rank, "end", STATUS_REFRESH_S)
            return reports

        yield partial(share_run_dir, store, rank, plan.config.startup_timeout), run
    finally:
        rendezvous.close(rank)


@contextmanager
def _recording_for_torchrun() -> Generator[None]:
    """Write the error that ends the body where torchrun looks for it, which prints the first of its workers."""
    try:
        yield
    except ShoalError as error:
        file = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if file and not isinstance(error, InterruptedRunError | TerminatedRunError):
            # Without a traceback, which torch's own function adds: the rank has printed it.
            content = {"message": f"{type(error).__name__}: {error}", "timestamp": int(time.time())}
            with suppress(OSError):
                folder_of(Path(file)).write(Path(file), json.dumps(content))
        raise


def _end_with_parent() -> None:
    """End this process when its parent ends, as a killed torchrun ends no rank; it has `REAPER_SAVE_S` to save."""

    def follow() -> None:
        wait_for(lambda: os.getppid() != PARENT)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(REAPER_SAVE_S)
        os._exit(TerminatedRunError.exit_code)

    threading.Thread(target=follow, name="parent-death watch", daemon=True).start()


def share_run_dir(store: SignedStore, rank: Rank, timeout: float, make: Callable[[], Path]) -> Path:
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
    made = json.loads(receive(store, _RUN_DIR, timeout, "the run directory"))
    if "error" in made:
        acknowledge(store, rank, "refusal")
        raise UsageError(made["error"])
    run = RunDir(Path(made["path"]))
    if rank.local_rank == 0 and not run.run_json.exists():  # A disk of its own, for exit records and stack dumps.
        with suppress(OSError):
            folder_of(run.run_json).make(run.ranks_dir)
            clear_exit_records(run)
    return run.path


def _share_plan(store: SignedStore, rank: Rank, own: PlanT) -> PlanT:
    """Return rank 0's plan, which has the configuration of a continued run, with this rank's own devices."""
    if rank.rank == 0:
        store.set(_PLAN, received.to_json(own))
        return own
    plan = received.from_json(receive(store, _PLAN, own.config.startup_timeout, "its plan"), own)
    return replace(plan, nodes=own.nodes, rank=rank)


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


# The handshake --------------------------------------------------------------------------------------------------------


def acknowledge(store: SignedStore, rank: Rank, what: str, timeout: float = ACKNOWLEDGE_S) -> None:
    """Write that this rank has read `what`, which may end all. Rank 0, which may hold the store, waits for all."""
    ranks = range(rank.world_size) if rank.rank == 0 else [rank.rank]
    with suppress(RuntimeError):  # A rank that has ended needs to read no more.
        store.set(f"shoal/read/{what}/{rank.rank}", "")
        store.raw.wait(
            [f"shoal/read/{what}/{each}" for each in ranks], timedelta(seconds=timeout)
        )  # `set` awaits no answer.


def shake_hands(
    rendezvous: Rendezvous, store: SignedStore, rank: Rank, plan: Plan
) -> tuple[Literal["nccl", "gloo"] | None, str | None]:
    """Publish what this rank would do, compare with all ranks, and return what all have in common.

    That is the backend, `gloo` if one rank has no NCCL and None for a single rank, and an address of a node that does
    not hold the store, None where all ranks are on one machine.
    """
    config, route = plan.config, route_to(rendezvous.host)
    packages, files = code_of(plan.tasks)
    own = {
        "host": platform.node(),
        "backend": plan.backend,
        "address": route.source if route and not route.is_local else None,
        # A continued run has its configuration where rank 0 is, and so has a teacher its network.
        "config": None
        if any(getattr(config, name, None) is not None for name in _OF_RANK_0)
        else flatten(to_plain(config), left_out=_MAY_DIFFER),
        "code": asdict(fingerprint(platform.node(), packages, files)) if rank.local_rank == 0 else None,
    }
    store.set(f"{_HANDSHAKE}/{rank.rank}", json.dumps(own))
    if rank.rank == 0:
        store.set(_VERDICT, json.dumps(_compare(store, rank, config.startup_timeout)))
    _wait_for_ranks([_VERDICT], store, rank, config.startup_timeout)
    verdict = json.loads(store.get(_VERDICT))
    is_late = verdict.get("exit_code") == WorkerLostError.exit_code  # Ranks that have not arrived do not answer.
    acknowledge(store, rank, "handshake", STATUS_LINGER_S if is_late else ACKNOWLEDGE_S)
    _raise_from(verdict)
    return verdict["backend"], verdict["address"]


def _compare(store: SignedStore, rank: Rank, timeout: float) -> dict[str, Any]:
    """Wait for all ranks and compare them; return the backend, or the error of all ranks."""
    keys = [f"{_HANDSHAKE}/{number}" for number in range(rank.world_size)]
    try:
        _wait_for_ranks(keys, store, rank, timeout)
        published = [json.loads(store.get(key)) for key in keys]
        for each in published:
            _raise_from(each)
        _refuse_other_commands(published)
        first, *others = [Fingerprint(**each["code"]) for each in published if each["code"]]
        refuse_differences(first, others)
    except (UsageError, WorkerLostError) as error:
        return _to_plain(error)
    backend = choose_backend((each["backend"] == "nccl" for each in published), rank.world_size)
    return {"backend": backend, "address": next((each["address"] for each in published if each["address"]), None)}


def receive(store: SignedStore, key: str, timeout: float, what: str) -> str:
    """Return what rank 0 writes within `timeout` seconds; without a limit if that is 0. `what` is that in words."""
    try:
        if not wait_for(lambda: store.raw.check([key]), timeout or math.inf):
            raise WorkerLostError(
                f"Rank 0 has not sent {what} within {timeout:.0f} s: see its own output. "
                "--startup-timeout waits longer."
            )
        return store.get(key).decode()
    except RuntimeError as error:  # Its process held the store.
        raise WorkerLostError(f"Rank 0 has ended before it had sent {what}: see its own output.") from error


def _wait_for_ranks(keys: list[str], store: SignedStore, rank: Rank, timeout: float) -> None:
    """Wait for keys that ranks write when they have arrived; name those that have not."""
    if not wait_for(lambda: store.raw.check(keys), timeout or math.inf):
        late = [str(number) for number in range(rank.world_size) if not store.raw.check([f"{_HANDSHAKE}/{number}"])]
        raise WorkerLostError(
            f"Rank {', '.join(late) or 0} of {rank.world_size} has not arrived within {timeout:.0f} s: see whether its "
            "node is there and was started, and start all of them again. --startup-timeout waits longer."
        )


def _to_plain(error: ShoalError) -> dict[str, Any]:
    return {"error": str(error), "details": error.details, "exit_code": error.exit_code}


def _raise_from(published: Mapping[str, Any]) -> None:
    """Raise what a rank has published, if it is an error."""
    if "error" in published:
        kind = WorkerLostError if published["exit_code"] == WorkerLostError.exit_code else UsageError
        raise kind(published["error"], details=published["details"])


def publish_refusal(log_root: str, error: ShoalError) -> None:
    """Publish why this rank refuses, if it has peers that would wait for it: torchrun ends those of its own node."""
    rank = joined_rank()
    if rank is not None and (rank.local_world_size < rank.world_size or launcher_of(os.environ) == "srun"):
        message = f"Rank {rank.rank} on {platform.node()} refuses: {error}"
        refusal = type(error)(message, details=error.details)
        with suppress(ShoalError, RuntimeError):  # No other rank has come yet.
            rendezvous = Rendezvous.of(rank, log_root)
            store = rendezvous.open(rank, REFUSAL_S)
            store.set(f"{_HANDSHAKE}/{rank.rank}" if rank.rank else _VERDICT, json.dumps(_to_plain(refusal)))
            acknowledge(store, rank, "handshake")
            rendezvous.forget_secret(rank)
            rendezvous.close(rank)


def _refuse_other_commands(published: Sequence[Mapping[str, Any]]) -> None:
    """Refuse ranks whose configuration is not rank 0's, with the name and both values of each difference."""
    first = published[0]["config"]
    for number, each in enumerate(published if first else ()):
        other = each["config"] or first
        names = [name for name in first | other if first.get(name) != other.get(name)]
        if names:
            details = "\n".join(f"{name}: {other.get(name)!r} there, {first.get(name)!r} on rank 0" for name in names)
            message = (
                f"Rank {number} on {each['host']} has another configuration than rank 0 on {published[0]['host']}, as "
                "listed above: type the same command on all nodes."
            )
            raise UsageError(message, details=details)


def find_network(
    rendezvous: Rendezvous, remote_address: str | None, rank: Rank, interface: str | None
) -> dict[str, str]:
    """Return the variables by which gloo and NCCL reach the other nodes; none for one node.

    Ranks on other nodes than the store's take the interface that leads to the store. Those beside it, which may know
    it by a loopback address, take the one that leads to another node, if there is one: several containers or agents
    may be nodes of one machine. `interface` is the user's choice.
    """
    if rank.local_world_size == rank.world_size:
        return {}
    if interface is not None:
        return through(interface)
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return {}  # The user's own choice.
    address = rendezvous.host
    route = route_to(address)
    if route is not None and route.is_local and remote_address is not None:
        address = remote_address
        route = route_to(address)
    if route is None:
        raise WorkerLostError(
            f"No network interface of this machine leads to {address}, where other workers are: pass --interface with "
            "the one that does, or mend the network."
        )
    return route.environment()
