"""The *spawned* door: several workers on this machine, through `torchrunx.Launcher`.

torchrunx starts the workers, in a daemon thread; this thread keeps the signals, shows what rank 0 prints, notices
ranks that died, and decides what the launch came to from the notes that the ranks leave.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import WorkerLostError
from shoal.launch.notes import clear_notes, failure_of, first_failure, read_notes
from shoal.launch.remote import enter, life_file
from shoal.launch.signals import ERRORS, stop_requests
from shoal.launch.tail import Tail
from shoal.worker import WorkerReport

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.launch.signals import StopRequests
    from shoal.launch.view import View
    from shoal.plan.job import Job

logger = logging.getLogger(__name__)

POLL_S = 0.1
"""Time between two looks at the workers [s]."""
GRACE_S = 3.0
"""How long the other ranks get to end by themselves once one has failed [s]."""
STOP_S = 60.0
"""How long the ranks get to finish an iteration and a checkpoint after a signal [s]."""
START_S = 120.0
"""How long the workers may take to show their first sign of life [s]; importing torch on a busy disk is slow."""


def run_spawned(job: Job, view: View) -> list[WorkerReport]:
    """Run `job` on one new process for each of its devices, and wait for all of them.

    Raises:
        TrainingFailedError: A rank raised; with the traceback of the first one that did.
        WorkerLostError: A rank died without a word.
        InterruptedRunError: Ctrl-C; after a checkpoint, unless it came twice.
        TerminatedRunError: SIGTERM, after a checkpoint.
    """
    scratch = Path(tempfile.mkdtemp(prefix="shoal-"))
    try:
        job = replace(job, scratch=str(scratch), log_files=job.log_files or _scratch_logs(scratch, job))
        clear_notes(job.run)
        with stop_requests(insist=False) as stop:
            return _Launch(job, scratch, view).supervise(stop)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _scratch_logs(scratch: Path, job: Job) -> tuple[str, ...]:
    """Return where output goes when log files are off: rank 0's is shown from there, and all are removed at the end."""
    return tuple(str(scratch / f"output_{rank}.log") for rank in range(len(job.devices)))


class _Launch:
    """One launch: the torchrunx thread, and what this process knows of the ranks."""

    def __init__(self, job: Job, scratch: Path, view: View) -> None:
        self.job = job
        self.scratch = scratch
        self.view = view
        self.ranks = range(len(job.devices))
        self.seen: set[int] = set()  # Ranks that have shown a sign of life.
        self.metrics = Tail(job.run.metrics_jsonl, from_end=True)
        self.output = Tail(Path(job.log_files[0]), from_end=True)
        self.launch_error: Exception | None = None
        self.thread = threading.Thread(target=self._run_torchrunx, name="torchrunx", daemon=True)

    def _run_torchrunx(self) -> None:
        """Start the workers and wait for them. What torchrunx raises is kept without its frames, which hold sockets."""
        import torchrunx

        agent_log = self.scratch / "agent.log"
        launcher = torchrunx.Launcher(
            hostnames=["localhost"],
            workers_per_host=len(self.job.devices),
            backend=None,  # Workers open their group themselves, after their graphs are captured.
            extra_env_vars={"TMPDIR": str(self.scratch)},  # torchrunx's agent leaves a directory behind.
        )
        launcher.set_logging_handlers(lambda: [logging.FileHandler(agent_log)])
        logging.getLogger("torchrunx").setLevel(logging.WARNING)
        try:
            launcher.run(enter, self.job.to_json())
        except Exception as error:  # noqa: BLE001  The notes say what happened; this is the fallback.
            self.launch_error = error.with_traceback(None)

    def supervise(self, stop: StopRequests) -> list[WorkerReport]:
        """Watch until the launch is over, and return the reports of all ranks."""
        self.thread.start()
        started = time.monotonic()
        deadline: float | None = None  # When ranks that are still alive are killed.
        forwarded = 0
        while self.thread.is_alive():
            self._show()
            now = time.monotonic()
            alive = self._alive()
            if sum(stop.counts.values()) > forwarded:
                forwarded = sum(stop.counts.values())
                deadline = now if stop.counts["SIGINT"] > 1 else now + STOP_S
                self._pass_on(stop, alive)
            elif deadline is None and self._someone_failed(alive):
                deadline = now + GRACE_S
            elif deadline is None and not self.seen and now - started > START_S:
                deadline = now
            if deadline is not None and now >= deadline:
                _signal_all(alive.values(), signal.SIGKILL)
                break
            if deadline is not None and self.seen and not alive:
                break  # Nobody is left: no need to wait until torchrunx notices.
            self.thread.join(POLL_S)
        self._clean_up()
        self._show(last=True)
        return self._outcome(stop)

    def _show(self, *, last: bool = False) -> None:
        """Hand new metrics and new output of rank 0 to the view; a failing rank's traceback is told at the end."""
        size = self.output.size()  # Before the notes are read: what was written after a note must not be shown.
        note = read_notes(self.job.run, 1).get(0)
        if note is not None and note.log_bytes is not None:
            size = min(size, note.log_bytes)
        for line in self.output.lines(size, unfinished=last):
            self.view.on_line(line)
        for row in self.metrics.rows():
            self.view.on_row(row)

    def _alive(self) -> dict[int, int]:
        """Return the process id of each rank that lives, by rank."""
        alive: dict[int, int] = {}
        for rank in self.ranks:
            pid = _locked_by(life_file(self.scratch, rank))
            if pid is not None:
                alive[rank] = pid
                self.seen.add(rank)
        return alive

    def _someone_failed(self, alive: dict[int, int]) -> bool:
        """Whether a rank has left a note of failure, or is gone without any."""
        notes = read_notes(self.job.run, len(self.ranks))
        gone = self.seen - alive.keys() - notes.keys()
        return bool(gone) or any(note.ending == "failed" for note in notes.values())

    def _pass_on(self, stop: StopRequests, alive: dict[int, int]) -> None:
        """Tell every rank what this process was told; a terminal's Ctrl-C has reached them already, with no harm."""
        name = stop.first or "SIGTERM"
        if sum(stop.counts.values()) == 1:
            self.view.on_line(f"{name}: stopping after this iteration, with a checkpoint. Ctrl-C again stops at once.")
        _signal_all(alive.values(), signal.Signals[name])

    def _clean_up(self) -> None:
        """See torchrunx out, and end what it leaves: its agent and its log server are this process's descendants."""
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and (self.thread.is_alive() or _descendants(os.getpid())):
            self.thread.join(POLL_S)
        _signal_all(_descendants(os.getpid()), signal.SIGKILL)
        self.thread.join(GRACE_S)

    def _outcome(self, stop: StopRequests) -> list[WorkerReport]:
        """Decide from the notes what the launch came to."""
        notes = read_notes(self.job.run, len(self.ranks))
        if all(rank in notes and notes[rank].ending == "done" for rank in self.ranks):
            return [WorkerReport(**notes[rank].report) for rank in self.ranks]
        cause = first_failure(notes.values())
        if stop.first is not None and cause is None:
            message = f"{stop.first} ended the run at once; the last checkpoint stands: pass --resume to go on."
            raise ERRORS[stop.first](message)
        if cause is not None:
            raise failure_of(cause)
        lost = [rank for rank in self.ranks if rank not in notes]
        if not self.seen:
            message = f"No worker started: {self._agent_words()}"
            raise WorkerLostError(message)
        which = "rank" if len(lost) == 1 else "ranks"
        reason = str(self.launch_error or "").strip().splitlines()
        hint = f" ({reason[0]})" if reason else ""
        message = (
            f"Lost {which} {', '.join(map(str, lost)) or 'unknown'} on {os.uname().nodename}: "
            f"killed or crashed without a word{hint}. "
            "Look at the end of that rank's log file, then pass --resume to go on."
        )
        raise WorkerLostError(message)

    def _agent_words(self) -> str:
        """Return the last thing that torchrunx's agent said, for a launch that failed before any worker started."""
        log = self.scratch / "agent.log"
        said = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
        return said or repr(self.launch_error)


def _locked_by(file: Path) -> int | None:
    """Return the process id in `file` while its lock is held, else None."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 32).decode()
        return int(text) if text else None
    finally:
        os.close(descriptor)
    return None


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _descendants(pid: int) -> list[int]:
    """Return the process ids of all living children of `pid`, and of theirs."""
    living: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = [int(each) for each in children.read_text().split()]
        except OSError:  # That thread has just ended.
            continue
        living += [child for child in pids if not _is_zombie(child)]
        living += [each for child in pids for each in _descendants(child)]
    return living


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended and only waits for its parent to take notice."""
    try:
        # The state follows the name, which is in parentheses and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
