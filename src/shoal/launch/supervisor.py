"""The *spawned* door: several workers, on this machine or on those of `--hosts`, through `torchrunx.Launcher`.

torchrunx starts the workers, in a daemon thread; this thread keeps the signals, shows what rank 0 prints, notices
ranks and machines that were lost, and decides what the launch came to from the notes that the ranks leave.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.errors import ShoalError, WorkerLostError
from shoal.heartbeat import slowest_phase
from shoal.launch.exit_records import failure_of, first_failure, resume_hint, was_requested
from shoal.launch.hang_detector import PauseDetector, find_stuck_rank, stacks_of
from shoal.launch.node import LocalNode, NodeSpec, NodeStatus
from shoal.launch.reaper import reaped_scratch
from shoal.launch.remote_node import remote_nodes
from shoal.launch.signals import STOPPING, ended_at_once, heard
from shoal.launch.torchrunx_patch import closed_run
from shoal.launch.worker_entry import enter
from shoal.worker import WorkerReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.heartbeat import Beat
    from shoal.launch.exit_records import ExitRecord
    from shoal.launch.node import Node
    from shoal.launch.progress import ProgressReporter
    from shoal.launch.signals import StopRequests
    from shoal.plan.rundir import RunDir
    from shoal.plan.spec import WorkerSpec

POLL_S = 0.1
"""Time between two looks at the workers [s]. A rank that ends is noticed at once."""
GRACE_S = 3.0
"""How long the other ranks get to end by themselves once one has failed [s]."""
STOP_S = 60.0
"""How long the ranks get to finish an iteration and a checkpoint after a signal [s]."""
START_S = 180.0
"""How long the workers may take to show their first sign of life [s]; importing torch on a busy disk is slow."""


def run_spawned(job: WorkerSpec, view: ProgressReporter, stop: StopRequests) -> list[WorkerReport]:
    """Run `job` on one new process for each of its devices, and wait for all of them.

    Raises:
        TrainingFailedError: A rank raised; with the traceback of the first one that did.
        WorkerLostError: A rank died without a word, or a machine was lost.
        InterruptedRunError: Ctrl-C; after a checkpoint, unless it came twice.
        TerminatedRunError: SIGTERM, SIGHUP or SIGUSR1, after a checkpoint.
    """
    with ExitStack() as stack:
        if job.machines:
            return _Launch(job, remote_nodes(job), view, stop).run()
        scratch = stack.enter_context(reaped_scratch())
        # Where log files are off, what rank 0 prints is still shown, from a file that ends with the launch.
        logs = job.log_files or tuple(str(scratch / f"output_{rank}.log") for rank in range(len(job.devices)))
        told = replace(job, scratch=str(scratch), log_files=logs)
        share = NodeSpec(number=0, machines=1, ranks=(0, len(job.devices)), devices=job.devices, log_files=logs)
        return _Launch(told, [LocalNode(share, job.run, scratch)], view, stop, kept_logs=job.log_files).run()


class _Launch:
    """One launch: the torchrunx thread, and what this process knows of the machines and their ranks."""

    def __init__(
        self,
        job: WorkerSpec,
        sites: Sequence[Node],
        view: ProgressReporter,
        stop: StopRequests,
        *,
        kept_logs: Sequence[str] | None = None,
    ) -> None:
        self.job = job
        self.sites = sites
        self.ranks = range(len(job.devices))
        self.kept_logs = job.log_files if kept_logs is None else kept_logs
        self.view = view
        self.stop = stop
        self.told = 0  # Signals that the ranks have been told of.
        self.orphaned = False  # Whether torchrunx gave up before the ranks did.
        self.dead_agent: tuple[str, str] | None = (
            None  # The machine whose agent ended first, before its ranks, and how.
        )
        self.deadline = math.inf  # When ranks that are still alive are killed.
        self.sights: list[NodeStatus] = [NodeStatus(unseen=tuple(site.ranks)) for site in sites]
        self.ended: dict[int, str] = {}  # How each rank ended, in the order of their ends, where that is known.
        self.lookout = PauseDetector()
        self.stuck: WorkerLostError | None = None
        self.learned = False  # Whether an iteration was done.
        self.launch_error: Exception | None = None
        self.thread = threading.Thread(target=self._run_torchrunx, name="torchrunx", daemon=True)

    def run(self) -> list[WorkerReport]:
        """Start the workers, watch them until the launch is over, and return the reports of all ranks."""
        try:
            self.thread.start()
            self._supervise()
        finally:
            self._clean_up()
        self._look(last=True)
        return self._outcome()

    def _run_torchrunx(self) -> None:
        """Start the workers and wait for them. What torchrunx raises is kept without its frames, which hold sockets."""
        # What is started here inherits the mask: a Ctrl-C must not make a half-started agent print its traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            for site in self.sites:
                site.start()
            import torchrunx

            launcher = torchrunx.Launcher(
                hostnames=[f"{number}" for number in range(len(self.sites))] if self.job.machines else ["127.0.0.1"],
                workers_per_host=[len(site.ranks) for site in self.sites],
                backend=None,  # Workers open their group themselves, after their graphs are captured.
            )
            launcher.set_logging_handlers(None)
            logging.getLogger("torchrunx").setLevel(logging.WARNING)
            if self.stop.first is not None:
                return  # It came while torch was imported, which takes seconds.
            ends = [(site.end, site.how_agent_ended) for site in self.sites]
            closed_run(ends, patience=START_S)(launcher, enter, self.job.to_json())
        except Exception as error:  # noqa: BLE001  The notes say what happened; this is the fallback.
            self.launch_error = error.with_traceback(None)
        finally:
            for site in self.sites:
                site.dismiss()

    def _supervise(self) -> None:
        """Watch until torchrunx and all ranks are through, or until those that are left have had their time."""
        start_by = time.monotonic() + START_S
        while self.thread.is_alive() or self._alive:
            self._look()
            self._pass_signals_on()
            self._look_after_orphans()
            if self._someone_failed():
                self._end_in(GRACE_S)
            elif self._someone_is_stuck():
                self._end_in(0)
            if self._unseen and (time.monotonic() > start_by or self._an_agent_is_gone()):
                self._end_in(0)
            if time.monotonic() >= self.deadline:
                return
            if self.deadline < math.inf and self.ended and not self._alive:
                return  # Nobody is left: no need to wait until torchrunx notices.
            self.sites[0].wait(POLL_S)

    def _end_in(self, seconds: float) -> None:
        """Kill what is still alive after so long, or earlier if that was decided before."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)

    def _look(self, *, last: bool = False) -> None:
        """Look at all machines, and hand new metrics and new output of rank 0 to the view."""
        self.sights = [site.look(last=last) for site in self.sites]
        phases = [beat.phase for sight in self.sights for beat in sight.beats]
        if not self.learned and len(phases) == len(self.ranks):  # Before, ranks are still being started.
            self.view.on_phase(slowest_phase(phases))
        for sight in self.sights:
            for rank, how in sight.ended.items():
                self.ended.setdefault(rank, how)
            for line in sight.lines:
                self.view.on_line(line)
            for row in sight.rows:
                self.learned = True
                self.view.on_row(row)

    @property
    def _alive(self) -> set[int]:
        """Ranks that live, as far as anybody knows: those of a machine that was lost are not waited for."""
        present = zip(self.sites, self.sights, strict=True)
        return {rank for site, sight in present if site.lost is None for rank in sight.alive}

    @property
    def _unseen(self) -> list[int]:
        return [rank for sight in self.sights for rank in sight.unseen]

    @property
    def _notes(self) -> dict[int, ExitRecord]:
        return {rank: note for sight in self.sights for rank, note in sight.notes.items()}

    @property
    def _lost_site(self) -> Node | None:
        return next((site for site in self.sites if site.lost is not None), None)

    def _site_of(self, rank: int) -> tuple[Node, NodeStatus]:
        return next(each for each in zip(self.sites, self.sights, strict=True) if rank in each[0].ranks)

    def _tell(self, number: signal.Signals) -> None:
        for site in self.sites:
            site.tell(number)

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
        self._tell(signal.Signals[name])

    def _look_after_orphans(self) -> None:
        """Let ranks that torchrunx has given up, because an agent died, save what they have learned."""
        if self.dead_agent is None:
            pairs = zip(self.sites, self.sights, strict=True)
            self.dead_agent = next(
                ((site.name, sight.agent) for site, sight in pairs if sight.agent and sight.alive), None
            )
        if self.orphaned or not self._alive or (self.thread.is_alive() and self.dead_agent is None):
            return
        self.orphaned = True
        self._tell(signal.SIGTERM)  # Where torch has asked the kernel for the same, this does no harm.
        self._end_in(STOP_S)

    def _someone_failed(self) -> bool:
        """Whether a rank has left a note of failure, or is gone without any, or a machine was lost."""
        notes = self._notes
        failed = any(note.ending == "failed" and not was_requested(note) for note in notes.values())
        return failed or bool(self.ended.keys() - notes.keys()) or self._lost_site is not None

    def _an_agent_is_gone(self) -> bool:
        """Whether an agent of torchrunx has ended. torchrunx would notice too, but may still be being imported."""
        return any(sight.agent is not None for sight in self.sights)

    def _someone_is_stuck(self) -> bool:
        """Whether a rank has got stuck that cannot say so itself, or all of them wait for each other."""
        beats: list[Beat] = [beat for sight in self.sights for beat in sight.beats]
        missing = sorted(self._alive - {beat.rank for beat in beats})
        watched = self.lookout.look()
        self.stuck = self.stuck or find_stuck_rank(self.job.run, beats, watched, missing)
        return self.stuck is not None

    def _clean_up(self) -> None:
        """End the ranks, see torchrunx out, and end what is left of this launch, such as its agents."""
        self._tell(signal.SIGKILL)
        hurried = self.stop.counts["SIGINT"] > 1 or (self._unseen and self._an_agent_is_gone())
        patience = time.monotonic() + (0 if hurried else GRACE_S)
        while (self.thread.is_alive() or any(site.is_busy() for site in self.sites)) and time.monotonic() < patience:
            self.thread.join(POLL_S)
        for site in self.sites:
            site.finish()
        for site in self.sites:
            site.close()
        if self.thread.ident is not None:
            self.thread.join(1)

    def _outcome(self) -> list[WorkerReport]:
        """Decide from the notes what the launch came to."""
        notes = self._notes
        if all(rank in notes and notes[rank].ending == "done" for rank in self.ranks):
            return [WorkerReport(**notes[rank].report) for rank in self.ranks]
        # What is left without a launcher, or without a machine, is told to save and end: that is no cause.
        unasked = self.orphaned or (self._lost_site is not None and self.stop.first is None)
        cause = first_failure(note for note in notes.values() if not (unasked and was_requested(note)))
        if cause is not None:
            raise failure_of(cause)
        if self.stuck is not None:
            raise self.stuck
        if self.stop.first is not None:
            raise ended_at_once(self.stop.first, self.job.run)
        if self._lost_site is not None:
            raise self._lost_machine(self._lost_site)
        lost = next((rank for rank in self.ended if rank not in notes), None)
        if lost is not None:
            raise self._lost(lost)
        raise self._abandoned() if self.orphaned else self._never_started()

    def _lost(self, rank: int) -> ShoalError:
        """Return the error of a rank that is gone without a note: the first of them, which took the others along."""
        site, sight = self._site_of(rank)
        how = self.ended[rank] or self._torchrunx_words() or "killed or crashed without a word"
        hint = sight.memory if "SIGKILL" in how else ""
        file = f" Its last words are in {self.kept_logs[rank]}." if self.kept_logs else ""
        more = f"{stacks_of(self.job.run, rank)}{file} {resume_hint(self.job.run)}"
        place = f"{sight.places[rank]}{_while_saving(self.job.run)}"
        message = f"Lost rank {rank} on {site.name} in {place}: {how}{hint}.{more}"
        return WorkerLostError(message, rank=rank)

    def _lost_machine(self, site: Node) -> ShoalError:
        """Return the error of a machine that is out of reach."""
        _, sight = self._site_of(site.ranks[0])
        ranks = ", ".join(map(str, site.ranks))
        places = {beat.place for beat in sight.beats} or {"startup"}
        message = (
            f"Lost host {site.name} (rank {ranks}) in {' and '.join(sorted(places))}: {site.lost}. "
            f"{resume_hint(self.job.run)}"
        )
        return WorkerLostError(message, host=site.name)

    def _abandoned(self) -> ShoalError:
        """Return the error of ranks that were well, but whose launcher was lost."""
        name, how = self.dead_agent or (self.sites[0].name, self._torchrunx_words())
        message = f"Lost torchrunx's agent on {name}, which keeps the workers ({how}). {resume_hint(self.job.run)}"
        return WorkerLostError(message)

    def _never_started(self) -> ShoalError:
        """Return the error of ranks that showed no sign of life, with the last thing that torchrunx's agent said."""
        ranks = ", ".join(map(str, self._unseen)) or "unknown"
        names = " and ".join(site.name for site, sight in zip(self.sites, self.sights, strict=True) if sight.unseen)
        said = "\n".join(sight.agent_said for sight in self.sights if sight.agent_said)
        why = self._torchrunx_words() or "it was silent"
        message = f"Rank {ranks} on {names or self.sites[0].name} did not start: {why}."
        return WorkerLostError(message, details=said)

    def _torchrunx_words(self) -> str:
        """Return the first line of what torchrunx raised, or would have: how its agent ended. Empty without either."""
        error = self.launch_error
        if error is None:
            return next((sight.agent for sight in self.sights if sight.agent is not None), "")
        lines = str(error).strip().splitlines()
        return lines[0].rstrip(".") if lines else type(error).__name__


def _while_saving(run: RunDir) -> str:
    """Say which checkpoint was being written, beside what the ranks did, if one was."""
    unfinished = sorted(run.checkpoints_dir.glob(run.unfinished_dir(0).name.replace("000000", "*")))
    return f" while checkpoint {unfinished[-1].name.rpartition('-')[2]} was being written" if unfinished else ""
