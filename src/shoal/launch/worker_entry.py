"""The far end of the *spawned* door: what torchrunx runs in each worker process.

Everything that crosses is the name of `enter` and one string; everything heavy is imported inside it, because
torchrunx's agent imports this module before it starts its workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from torch.distributed import Store

    from shoal.plan.ranks import Rank
    from shoal.plan.rundir import RunDir


USUAL_TMPDIR = "SHOAL_USUAL_TMPDIR"
"""Carries the user's own TMPDIR, which may be empty, past torchrunx's agent."""


def enter(worker_spec: str) -> None:
    """Be one rank of a spawned job, leave a note in the run directory, and come back only after success.

    A rank that failed leaves its process at once: torchrunx would keep one that raises alive until its peers' own
    time-outs, and would then blame a peer.
    """
    from shoal.heartbeat import Limits
    from shoal.launch.exit_records import ExitRecord, write_exit_record
    from shoal.launch.processes import show_sign_of_life
    from shoal.launch.signals import STOPPING, stop_requests
    from shoal.launch.tcp_rendezvous import open_tcp_rendezvous
    from shoal.launch.watchdog import watched
    from shoal.logs import configure_logging
    from shoal.plan.ranks import Rank
    from shoal.plan.spec import NodeSpec, WorkerSpec
    from shoal.worker import run_worker

    # Read as plain data first: to make a `WorkerSpec` of it imports the task, which may be a user's file that fails.
    plain = json.loads(worker_spec)
    node = NodeSpec.from_plain(plain)
    local_rank = int(os.environ["LOCAL_RANK"])  # Set by torchrunx, whose launcher knows this node only.
    rank = Rank(
        rank=node.ranks[local_rank],
        local_rank=local_rank,
        world_size=node.world_size,
        local_world_size=len(node.ranks),
    )
    os.environ |= {"RANK": str(rank.rank), "WORLD_SIZE": str(rank.world_size)}
    run, scratch = node.run, Path(node.scratch or "")
    limits = Limits.of(plain["config"]["startup_timeout"], plain["config"]["stall_timeout"])
    place = "startup"

    def open_store() -> Store:
        from torch.distributed import FileStore

        if node.rendezvous is not None:
            return open_tcp_rendezvous(scratch, rank, node.rendezvous)
        return FileStore(str(scratch / "rendezvous"), rank.world_size)

    with stop_requests(insist=False) as stop:
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, STOPPING
        )  # The launching process has blocked them for all it starts.
        try:
            _restore_tmpdir()
            _write_output_to(node.log_file(rank.rank))
            show_sign_of_life(scratch, rank)
            configure_logging(rank=rank.rank)
            # Its heartbeat is read by the launching process, which is on this machine as the scratch directory is.
            with watched(
                run, rank, limits, give_up=lambda error: _leave(error, rank, run, scratch, ""), scratch=scratch
            ) as beat:
                try:
                    spec, network = WorkerSpec.from_json(worker_spec), node.nodes[0].network
                    done = run_worker(spec, rank, stop=stop, store=open_store, beat=beat, network=network)
                finally:
                    place = beat.place()
                report = done.report
                note = ExitRecord(
                    rank=rank.rank, host=report.host, ending="done", time=time.time(), report=report.to_plain()
                )
                write_exit_record(run, note, spare=scratch)
            done.export()
        except BaseException as error:  # noqa: BLE001  Whatever it is, this process ends and must have said why.
            _leave(error, rank, run, scratch, place)


def _leave(error: BaseException, rank: Rank, run: RunDir, scratch: Path, place: str) -> NoReturn:
    """Say what went wrong, in a note and in this rank's own file, and end this process."""
    from shoal.launch.exit_records import ExitRecord, write_exit_record

    exit_code = 1
    try:
        with contextlib.suppress(OSError):  # The disk may be full of it.
            sys.stdout.flush()
        note = ExitRecord.of_error(error, rank, place=place, log_bytes=os.fstat(1).st_size)
        exit_code = note.exit_code
        write_exit_record(
            run, note, spare=scratch
        )  # First: the launching process shows nothing of what follows the note.
        sys.stderr.write(f"{note.traceback or note.error}\n")
        sys.stderr.flush()
    finally:
        os._exit(exit_code)


def _restore_tmpdir() -> None:
    """Let temporary files go where the user wants them: among them are caches that outlive a launch."""
    usual = os.environ.pop(USUAL_TMPDIR, "")
    if usual:
        os.environ["TMPDIR"] = usual
    else:
        os.environ.pop("TMPDIR", None)
    tempfile.tempdir = None  # Python remembers the first answer.


def _write_output_to(file: Path) -> None:
    """Point standard output and error at this rank's own file.

    torchrunx would carry both through its log stream, where one byte that is not UTF-8 fails the job.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
