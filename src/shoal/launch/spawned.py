"""The *spawned* door: several workers on this machine, through `torchrunx.Launcher`.

torchrunx starts the workers, in a daemon thread; this thread keeps the signals, shows what rank 0 prints, notices
ranks that died, and decides what the launch came to from the notes that the ranks leave.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from shoal.errors import ShoalError, WorkerLostError
from shoal.launch.notes import failure_of, first_failure, read_notes, was_asked_for, way_on
from shoal.launch.processes import RankWatch, descendants, signal_all
from shoal.launch.remote import USUAL_TMPDIR, enter
from shoal.launch.signals import STOPPING, ended_at_once, heard
from shoal.launch.tail import Tail
from shoal.worker import WorkerReport

if TYPE_CHECKING:
    from shoal.launch.signals import StopRequests
    from shoal.launch.view import View
    from shoal.plan.job import Job

POLL_S = 0.1
"""Time between two looks at the workers [s]. A rank that ends is noticed at once."""
GRACE_S = 3.0
"""How long the other ranks get to end by themselves once one has failed [s]."""
STOP_S = 60.0
"""How long the ranks get to finish an iteration and a checkpoint after a signal [s]."""
START_S = 180.0
"""How long the workers may take to show their first sign of life [s]; importing torch on a busy disk is slow."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run_spawned(job: Job, view: View, stop: StopRequests) -> list[WorkerReport]:
    """Run `job` on one new process for each of its devices, and wait for all of them.

    Raises:
        TrainingFailedError: A rank raised; with the traceback of the first one that did.
        WorkerLostError: A rank died without a word.
        InterruptedRunError: Ctrl-C; after a checkpoint, unless it came twice.
        TerminatedRunError: SIGTERM, after a checkpoint.
    """
    scratch = Path(tempfile.mkdtemp(prefix="shoal-"))
    try:
        return _Launch(job, scratch, view, stop).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Launch:
    """One launch: the torchrunx thread, and what this process knows of the ranks."""

    def __init__(self, job: Job, scratch: Path, view: View, stop: StopRequests) -> None:
        self.ranks = range(len(job.devices))
        self.kept_logs = job.log_files
        # Where log files are off, what rank 0 prints is still shown, from a file that ends with the launch.
        logs = job.log_files or tuple(str(scratch / f"output_{rank}.log") for rank in self.ranks)
        self.job = replace(job, scratch=str(scratch), log_files=logs)
        self.scratch = scratch
        self.view = view
        self.stop = stop
        self.told = 0  # Signals that the ranks have been told of.
        self.orphaned = False  # Whether torchrunx gave up before the ranks did.
        self.deadline = math.inf  # When ranks that are still alive are killed.
        self.watch = RankWatch(scratch, self.ranks)
        self.metrics = Tail(job.run.metrics_jsonl, from_end=True)
        self.learned = False  # Whether an iteration was done.
        self.output = Tail(Path(logs[0]), from_end=True)
        self.strangers = descendants(os.getpid())  # Processes of whoever called us.
        self.launch_error: Exception | None = None
        self.thread = threading.Thread(target=self._run_torchrunx, name="torchrunx", daemon=True)

    def run(self) -> list[WorkerReport]:
        """Start the workers, watch them until the launch is over, and return the reports of all ranks."""
        try:
            self.thread.start()
            self._supervise()
        finally:
            self._clean_up()
        self._show(last=True)
        return self._outcome()

    def _run_torchrunx(self) -> None:
        """Start the workers and wait for them. What torchrunx raises is kept without its frames, which hold sockets."""
        # What is started here inherits the mask: a Ctrl-C must not make a half-started agent print its traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        import torchrunx
        from torchrunx.utils import environment

        # The shell between us and the agent clears the mask. In a session of its own a terminal's Ctrl-C does not
        # reach it: only this process hears the person, and tells the ranks.
        popen = partial(subprocess.Popen, start_new_session=True)
        setattr(environment, "subprocess", SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE))  # noqa: B010
        agent_log = self.scratch / "agent.log"
        launcher = torchrunx.Launcher(
            hostnames=["localhost"],
            workers_per_host=len(self.ranks),
            backend=None,  # Workers open their group themselves, after their graphs are captured.
            agent_timeout=int(START_S),
            # torchrunx's agent leaves a temporary directory behind; its workers get the usual place back.
            extra_env_vars={"TMPDIR": str(self.scratch), USUAL_TMPDIR: os.environ.get("TMPDIR", "")},
        )
        launcher.set_logging_handlers(lambda: _handlers_of_log_server(agent_log))
        logging.getLogger("torchrunx").setLevel(logging.WARNING)
        if self.stop.first is not None:
            return  # It came while torch was imported, which takes seconds.
        try:
            launcher.run(enter, self.job.to_json())
        except Exception as error:  # noqa: BLE001  The notes say what happened; this is the fallback.
            self.launch_error = error.with_traceback(None)

    def _supervise(self) -> None:
        """Watch until torchrunx and all ranks are through, or until those that are left have had their time."""
        start_by = time.monotonic() + START_S
        while self.thread.is_alive() or self.watch.alive:
            self._show()
            self.watch.look()
            self._pass_signals_on()
            self._look_after_orphans()
            if self._someone_failed():
                self._end_in(GRACE_S)
            if self.watch.unseen and time.monotonic() > start_by:
                self._end_in(0)
            if time.monotonic() >= self.deadline:
                return
            if self.deadline < math.inf and self.watch.ended and not self.watch.alive:
                return  # Nobody is left: no need to wait until torchrunx notices.
            self.watch.wait(POLL_S)

    def _end_in(self, seconds: float) -> None:
        """Kill what is still alive after so long, or earlier if that was decided before."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)

    def _pass_signals_on(self) -> None:
        """Tell every rank what this process was told; a terminal's Ctrl-C has reached them already, with no harm."""
        name, count = self.stop.first, sum(self.stop.counts.values())
        if name is None or count == self.told:
            return
        if self.told == 0 and self.learned:
            self.view.on_line(heard(name))
        self.told = count
        insists = self.stop.counts["SIGINT"] > 1
        self._end_in(STOP_S if self.learned and not insists else 0)
        self.watch.tell(signal.Signals[name])

    def _look_after_orphans(self) -> None:
        """Let ranks that torchrunx has given up, because its agent died, save what they have learned."""
        if self.thread.is_alive() or self.orphaned or not self.watch.alive:
            return
        self.orphaned = True
        self.watch.tell(signal.SIGTERM)  # Where torch has asked the kernel for the same, this does no harm.
        self._end_in(STOP_S)

    def _someone_failed(self) -> bool:
        """Whether a rank has left a note of failure, or is gone without any."""
        notes = read_notes(self.job.run, len(self.ranks))
        failed = any(note.ending == "failed" and not was_asked_for(note) for note in notes.values())
        return failed or bool(self.watch.ended.keys() - notes.keys())

    def _show(self, *, last: bool = False) -> None:
        """Hand new metrics and new output of rank 0 to the view; a failing rank's traceback is told at the end."""
        size = self.output.size()  # Before the notes are read: what was written after a note must not be shown.
        note = read_notes(self.job.run, 1).get(0)
        if note is not None and note.log_bytes is not None:
            size = min(size, note.log_bytes)
        for line in self.output.lines(size, unfinished=last):
            self.view.on_line(line)
        for row in self.metrics.rows():
            self.learned = True
            self.view.on_row(row)

    def _clean_up(self) -> None:
        """End the ranks, see torchrunx out, and end what it leaves: its agent and its log server descend from us."""
        self.watch.tell(signal.SIGKILL)
        self.watch.close()
        patience = time.monotonic() + GRACE_S
        while (self.thread.is_alive() or self._left_over()) and time.monotonic() < patience:
            self.thread.join(POLL_S)
        signal_all(self._left_over(), signal.SIGKILL)
        if self.thread.ident is not None:
            self.thread.join(GRACE_S)

    def _left_over(self) -> list[int]:
        return [pid for pid in descendants(os.getpid()) if pid not in self.strangers]

    def _outcome(self) -> list[WorkerReport]:
        """Decide from the notes what the launch came to."""
        notes = read_notes(self.job.run, len(self.ranks))
        if all(rank in notes and notes[rank].ending == "done" for rank in self.ranks):
            return [WorkerReport(**notes[rank].report) for rank in self.ranks]
        cause = first_failure(note for note in notes.values() if not (self.orphaned and was_asked_for(note)))
        if cause is not None:
            raise failure_of(cause)
        if self.stop.first is not None:
            raise ended_at_once(self.stop.first, self.job.run)
        lost = next((rank for rank in self.watch.ended if rank not in notes), None)
        if lost is not None:
            raise self._lost(lost)
        raise self._abandoned() if self.orphaned else self._never_started()

    def _lost(self, rank: int) -> ShoalError:
        """Return the error of a rank that is gone without a note: the first of them, which took the others along."""
        how = self.watch.ended[rank] or self._torchrunx_words() or "killed or crashed without a word"
        hint = " (the kernel does that when memory runs out)" if "SIGKILL" in how else ""
        file = f" Its last words are in {self.kept_logs[rank]}." if self.kept_logs else ""
        message = f"Lost rank {rank} on {platform.node()}: {how}{hint}.{file} {way_on(self.job.run)}"
        return WorkerLostError(message)

    def _abandoned(self) -> ShoalError:
        """Return the error of ranks that were well, but whose launcher was lost."""
        why = self._torchrunx_words()
        message = (
            f"Lost torchrunx's agent on {platform.node()}, which keeps the workers ({why}). {way_on(self.job.run)}"
        )
        return WorkerLostError(message)

    def _never_started(self) -> ShoalError:
        """Return the error of ranks that showed no sign of life, with the last thing that torchrunx's agent said."""
        ranks = ", ".join(map(str, self.watch.unseen)) or "unknown"
        log = self.scratch / "agent.log"
        said = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
        message = f"Rank {ranks} on {platform.node()} did not start: {self._torchrunx_words() or 'it was silent'}."
        return WorkerLostError(message, details=said)

    def _torchrunx_words(self) -> str:
        """Return the first line of what torchrunx raised, if it said something."""
        error = self.launch_error
        lines = str(error).strip().splitlines() if error is not None else []
        return lines[0].rstrip(".") if lines else type(error).__name__ if error is not None else ""


def _handlers_of_log_server(file: Path) -> list[logging.Handler]:
    """Return where torchrunx's log server writes, which calls this in its own process.

    It would outlive a launching process that is killed, and hold its port for ever, so the kernel is asked to end it.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it.
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return [logging.FileHandler(file)]
