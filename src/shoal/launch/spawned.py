"""The *spawned* door: several workers on this machine, through `torchrunx.Launcher`.

torchrunx starts the workers, in a daemon thread; this thread keeps the signals, shows what rank 0 prints, notices
ranks that died, and decides what the launch came to from the notes that the ranks leave.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import signal
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import ShoalError, WorkerLostError
from shoal.heartbeat import place_of, read_beat
from shoal.launch.closed import Agent, closed_launcher
from shoal.launch.guard import MARK, guarded_scratch, marked, signal_all
from shoal.launch.memory import MemoryWatch
from shoal.launch.notes import failure_of, first_failure, read_notes, was_asked_for, way_on
from shoal.launch.processes import RankWatch
from shoal.launch.remote import USUAL_TMPDIR, enter
from shoal.launch.signals import STOPPING, ended_at_once, heard
from shoal.launch.stalls import Lookout, drop_empty_stacks, read_beats, stacks_of, who_is_stuck
from shoal.launch.tail import Tail
from shoal.worker import WorkerReport

if TYPE_CHECKING:
    from shoal.launch.notes import Note
    from shoal.launch.signals import StopRequests
    from shoal.launch.view import View
    from shoal.plan.job import Job
    from shoal.plan.rundir import RunDir

POLL_S = 0.1
"""Time between two looks at the workers [s]. A rank that ends is noticed at once."""
GRACE_S = 3.0
"""How long the other ranks get to end by themselves once one has failed [s]."""
STOP_S = 60.0
"""How long the ranks get to finish an iteration and a checkpoint after a signal [s]."""
START_S = 180.0
"""How long the workers may take to show their first sign of life [s]; importing torch on a busy disk is slow."""
AGENT_LOG = "agent.log"
"""What torchrunx's agent says, in the scratch directory."""


def run_spawned(job: Job, view: View, stop: StopRequests) -> list[WorkerReport]:
    """Run `job` on one new process for each of its devices, and wait for all of them.

    Raises:
        TrainingFailedError: A rank raised; with the traceback of the first one that did.
        WorkerLostError: A rank died without a word.
        InterruptedRunError: Ctrl-C; after a checkpoint, unless it came twice.
        TerminatedRunError: SIGTERM, SIGHUP or SIGUSR1, after a checkpoint.
    """
    with guarded_scratch() as scratch:
        return _Launch(job, scratch, view, stop).run()


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
        self.lookout = Lookout()
        self.memory = MemoryWatch()
        self.stuck: WorkerLostError | None = None
        self.metrics = Tail(job.run.metrics_jsonl, from_end=True)
        self.learned = False  # Whether an iteration was done.
        self.output = Tail(Path(logs[0]), from_end=True)
        self.agent: Agent | None = None
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
        # torchrunx's agent leaves a temporary directory behind; its workers get the usual place back.
        environ = {
            "TMPDIR": str(self.scratch),
            USUAL_TMPDIR: os.environ.get("TMPDIR", ""),
            MARK: str(self.scratch),
        }
        forks = set(self.job.devices) == {"cpu"}
        try:
            with closing(Agent(self.scratch / AGENT_LOG, environ, forks=forks)) as self.agent:
                import torchrunx

                launcher = torchrunx.Launcher(
                    hostnames=["127.0.0.1"],
                    workers_per_host=len(self.ranks),
                    backend=None,  # Workers open their group themselves, after their graphs are captured.
                )
                launcher.set_logging_handlers(None)
                logging.getLogger("torchrunx").setLevel(logging.WARNING)
                if self.stop.first is not None:
                    return  # It came while torch was imported, which takes seconds.
                with closed_launcher(self.agent, patience=START_S):
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
            elif self._someone_is_stuck():
                self._end_in(0)
            if self.watch.unseen and (time.monotonic() > start_by or self._agent_is_gone()):
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

    def _notes(self) -> dict[int, Note]:
        return read_notes(self.job.run, len(self.ranks), spare=self.scratch)

    def _someone_failed(self) -> bool:
        """Whether a rank has left a note of failure, or is gone without any."""
        notes = self._notes()
        failed = any(note.ending == "failed" and not was_asked_for(note) for note in notes.values())
        return failed or bool(self.watch.ended.keys() - notes.keys())

    def _agent_is_gone(self) -> bool:
        """Whether torchrunx's agent has ended. torchrunx would notice too, but may itself still be being imported."""
        return self.agent is not None and self.agent.has_ended()

    def _someone_is_stuck(self) -> bool:
        """Whether a rank has got stuck that cannot say so itself, or all of them wait for each other."""
        beats = read_beats(self.scratch, self.watch.alive)
        missing = sorted(self.watch.alive.keys() - {beat.rank for beat in beats})
        watched = self.lookout.look()
        self.stuck = self.stuck or who_is_stuck(self.job.run, beats, watched, missing)
        return self.stuck is not None

    def _show(self, *, last: bool = False) -> None:
        """Hand new metrics and new output of rank 0 to the view; a failing rank's traceback is told at the end."""
        size = self.output.size()  # Before the notes are read: what was written after a note must not be shown.
        note = self._notes().get(0)
        if note is not None and note.log_bytes is not None:
            size = min(size, note.log_bytes)
        for line in self.output.lines(size, unfinished=last):
            self.view.on_line(line)
        for row in self.metrics.rows():
            self.learned = True
            self.view.on_row(row)

    def _clean_up(self) -> None:
        """End the ranks, see torchrunx out, and end what is left with the mark of this launch, such as its agent."""
        self.watch.tell(signal.SIGKILL)
        self.watch.close()
        hurried = self.stop.counts["SIGINT"] > 1 or (self.watch.unseen and self._agent_is_gone())
        patience = time.monotonic() + (0 if hurried else GRACE_S)
        while (self.thread.is_alive() or marked(self.scratch)) and time.monotonic() < patience:
            self.thread.join(POLL_S)
        signal_all(marked(self.scratch), signal.SIGKILL)
        drop_empty_stacks(self.job.run, self.ranks)
        if self.thread.ident is not None:
            self.thread.join(1)

    def _outcome(self) -> list[WorkerReport]:
        """Decide from the notes what the launch came to."""
        notes = self._notes()
        if all(rank in notes and notes[rank].ending == "done" for rank in self.ranks):
            return [WorkerReport(**notes[rank].report) for rank in self.ranks]
        cause = first_failure(note for note in notes.values() if not (self.orphaned and was_asked_for(note)))
        if cause is not None:
            raise failure_of(cause)
        if self.stuck is not None:
            raise self.stuck
        if self.stop.first is not None:
            raise ended_at_once(self.stop.first, self.job.run)
        lost = next((rank for rank in self.watch.ended if rank not in notes), None)
        if lost is not None:
            raise self._lost(lost)
        raise self._abandoned() if self.orphaned else self._never_started()

    def _lost(self, rank: int) -> ShoalError:
        """Return the error of a rank that is gone without a note: the first of them, which took the others along."""
        how = self.watch.ended[rank] or self._torchrunx_words() or "killed or crashed without a word"
        hint = self.memory.verdict() if "SIGKILL" in how else ""
        beat = read_beat(self.scratch, rank)
        place = beat.place if beat else place_of("startup", 0)
        file = f" Its last words are in {self.kept_logs[rank]}." if self.kept_logs else ""
        more = f"{stacks_of(self.job.run, rank)}{file} {way_on(self.job.run)}"
        message = f"Lost rank {rank} on {platform.node()} in {place}{_while_saving(self.job.run)}: {how}{hint}.{more}"
        return WorkerLostError(message, rank=rank)

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
        log = self.scratch / AGENT_LOG
        said = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
        message = f"Rank {ranks} on {platform.node()} did not start: {self._torchrunx_words() or 'it was silent'}."
        return WorkerLostError(message, details=said)

    def _torchrunx_words(self) -> str:
        """Return the first line of what torchrunx raised, or would have: how its agent ended. Empty without either."""
        error = self.launch_error
        if error is None:
            return self.agent.how_it_ended() if self.agent is not None and self.agent.has_ended() else ""
        lines = str(error).strip().splitlines()
        return lines[0].rstrip(".") if lines else type(error).__name__


def _while_saving(run: RunDir) -> str:
    """Say which checkpoint was being written, beside what the ranks did, if one was."""
    unfinished = sorted(run.checkpoints_dir.glob(run.unfinished_dir(0).name.replace("000000", "*")))
    return f" while checkpoint {unfinished[-1].name.rpartition('-')[2]} was being written" if unfinished else ""
