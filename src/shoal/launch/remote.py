"""The far end of the *spawned* door: what torchrunx runs in each worker process.

Everything that crosses is the name of `enter` and two strings; everything heavy is imported inside it, because
torchrunx's agent imports this module before it starts its workers.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

    from shoal.plan.job import Job

logger = logging.getLogger(__name__)


def enter(job_json: str) -> None:
    """Be one rank of a spawned job, leave a note in the run directory, and come back only after success.

    A rank that failed leaves its process at once: torchrunx would keep one that raises alive until its peers' own
    time-outs, and would then blame a peer.
    """
    from shoal.launch.notes import Note, write_note
    from shoal.launch.signals import stop_requests
    from shoal.logs import configure_logging
    from shoal.plan.job import Job
    from shoal.plan.ranks import Rank
    from shoal.worker import run_worker

    # torchrunx sets these for each worker; a wrong one is a bug, not something a user typed.
    rank = Rank(
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
    )
    job = Job.from_json(job_json)

    def open_store() -> Store:
        from torch.distributed import FileStore

        return FileStore(str(scratch / "rendezvous"), rank.world_size)

    scratch = Path(str(job.scratch))
    _write_output_to(job, rank.local_rank)
    _show_sign_of_life(life_file(scratch, rank.rank))
    configure_logging(rank=rank.rank)
    with stop_requests(insist=False) as stop:
        try:
            report = run_worker(job, rank, stop=stop, store=open_store)
        except BaseException as error:  # noqa: BLE001  Whatever it is, this process ends and must have said why.
            sys.stdout.flush()
            note = Note.of_error(error, rank, log_bytes=os.fstat(1).st_size)
            write_note(job.run, note)
            sys.stderr.write(f"{note.traceback or note.error}\n")
            sys.stderr.flush()
            os._exit(note.exit_code)
    done = Note(rank=rank.rank, host=report.host, ending="done", time=time.time(), report=report.to_plain())
    write_note(job.run, done)


def life_file(scratch: Path, rank: int) -> Path:
    """Return the file that `rank` keeps locked while it lives; its process id is in it."""
    return scratch / f"rank_{rank:05d}.life"


def _show_sign_of_life(file: Path) -> None:
    """Lock `file` until this process ends, however it ends. The kernel gives the lock back."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.truncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())


def _write_output_to(job: Job, local_rank: int) -> None:
    """Point standard output and error at this rank's own file.

    torchrunx would carry both through its log stream, where one byte that is not UTF-8 fails the job.
    """
    file = Path(job.log_files[local_rank])
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
