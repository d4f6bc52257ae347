"""The launch mode *spawned*: the supervisor of the nodes of a launch, local or of `--hosts`.

It shows rank 0's output, forwards signals, detects ranks and nodes that were lost or hang, and decides the outcome and
its first cause from the status of the nodes.
"""

import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from shoal.errors import ShoalError, WorkerLostError
from shoal.heartbeat import slowest_phase
from shoal.launch.exit_records import ExitRecord, ended_at_once, failure_of, first_failure, resume_hint, was_requested
from shoal.launch.hang_detector import PauseDetector, find_stuck_rank, stacks_of
from shoal.launch.node import LocalNode, Node, NodeStatus
from shoal.launch.rank import ProgressReporter
from shoal.launch.reaper import reaped_scratch
from shoal.launch.remote_node import remote_nodes
from shoal.plan.rundir import RunDir
from shoal.plan.spec import WorkerSpec
from shoal.signals import StopRequests, stop_announcement
from shoal.timing import FAILURE_GRACE_S, POLL_S, START_S, STOP_S
from shoal.worker import WorkerReport


def run_spawned(spec: WorkerSpec, reporter: ProgressReporter, stop: StopRequests) -> list[WorkerReport]:
    """Run one new process for each device of each node, and wait for all of them.

    Raises:
        TrainingFailedError: A rank raised; with the traceback of the first one that did.
        WorkerLostError: A rank died without an exit record, or a node was lost.
        InterruptedRunError: Ctrl-C; after a checkpoint, unless it came twice.
        TerminatedRunError: SIGTERM, SIGHUP or SIGUSR1, after a checkpoint.
    """
    with ExitStack() as stack:
        nodes: Sequence[Node]
        if spec.config.hosts:
            nodes = remote_nodes(spec)
        else:
            scratch = stack.enter_context(reaped_scratch())
            # Without log files rank 0's output is still shown, from a file that is removed with the launch.
            local = replace(spec, scratch=str(scratch), log_dir=spec.log_dir or str(scratch / "logs"))
            nodes = [LocalNode(local, local.to_json())]
        return Supervisor(spec, nodes, reporter, stop).run()


class Supervisor:
    """One launch: starts the nodes, follows their status until all have ended, and decides the outcome."""

    def __init__(
        self,
        spec: WorkerSpec,
        nodes: Sequence[Node],
        reporter: ProgressReporter,
        stop: StopRequests,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.nodes = nodes
        self.reporter = reporter
        self.stop = stop
        self.clock = clock
        self.statuses = [NodeStatus(unseen=tuple(node.ranks)) for node in nodes]
        self.ended: dict[int, str] = {}  # How each rank ended, in the order of their ends, where that is known.
        self.num_signals = 0  # Signals that were forwarded.
        self.orphaned_by: tuple[str, str] | None = None  # A node whose launcher ended before its ranks, and how.
        self.deadline = math.inf  # When ranks that still run are killed.
        self.pauses = PauseDetector()
        self.stuck: WorkerLostError | None = None
        self.has_learned = False  # Whether an iteration was done.

    def run(self) -> list[WorkerReport]:
        """Start the nodes, watch them until the launch is over, and return the reports of all ranks."""
        try:
            for node in self.nodes:
                node.start()
            self._watch()
        finally:
            self._clean_up()
        self._update(last=True)
        return self._outcome()

    def _watch(self) -> None:
        """Follow the nodes until all launchers and ranks have ended, or the deadline of those that are left."""
        start_by = self.clock() + START_S
        while self._alive or any(status.launcher is None for status in self.statuses):
            self._update()
            self._forward_signals()
            self._stop_orphans()
            if self._has_failure():
                self._end_in(FAILURE_GRACE_S)
            elif self._has_stuck_rank():
                self._end_in(0)
            if self._unseen and (self.clock() > start_by or self._cannot_start):
                self._end_in(0)
            if self.clock() >= self.deadline:
                return
            if self.deadline < math.inf and self.ended and not self._alive:
                return  # No rank is left: no need to wait until torchrunx notices.
            self.nodes[0].wait(POLL_S)

    def _end_in(self, seconds: float) -> None:
        """Kill what still runs after this time, or earlier if that was decided before."""
        self.deadline = min(self.deadline, self.clock() + seconds)

    def _update(self, *, last: bool = False) -> None:
        """Read the status of all nodes, and report new metrics and new output of rank 0."""
        self.statuses = [node.status(last=last) for node in self.nodes]
        phases = [beat.phase for status in self.statuses for beat in status.beats]
        if not self.has_learned and phases and not self._unseen:
            self.reporter.on_phase(slowest_phase(phases))
        for status in self.statuses:
            for rank, how in status.ended.items():
                self.ended.setdefault(rank, how)
            for line in status.lines:
                self.reporter.on_line(line)
            for row in status.rows:
                self.has_learned = True
                self.reporter.on_row(row)

    @property
    def _pairs(self) -> list[tuple[Node, NodeStatus]]:
        return list(zip(self.nodes, self.statuses, strict=True))

    @property
    def _alive(self) -> set[int]:
        """Ranks that run, without those of a lost node, which are not waited for."""
        return {rank for node, status in self._pairs if node.lost is None for rank in status.alive}

    @property
    def _unseen(self) -> list[int]:
        return [rank for status in self.statuses for rank in status.unseen]

    @property
    def _cannot_start(self) -> bool:
        """Whether a launcher ended before all its ranks started. torchrunx itself may still be being imported."""
        return any(status.unseen and status.launcher is not None for status in self.statuses)

    @property
    def _exit_records(self) -> dict[int, ExitRecord]:
        return {rank: record for status in self.statuses for rank, record in status.exit_records.items()}

    @property
    def _lost_node(self) -> Node | None:
        return next((node for node in self.nodes if node.lost is not None), None)

    def _signal(self, number: signal.Signals) -> None:
        for node in self.nodes:
            node.signal(number)

    def _forward_signals(self) -> None:
        """Forward this process's signals to every rank; after a terminal's Ctrl-C they get a second one, harmlessly."""
        name, count = self.stop.first, sum(self.stop.counts.values())
        if name is None or count == self.num_signals:
            return
        if self.num_signals == 0 and self.has_learned:
            self.reporter.on_line(stop_announcement(name))
        self.num_signals = count
        self._end_in(STOP_S if self.has_learned and self.stop.counts["SIGINT"] < 2 else 0)  # noqa: PLR2004
        self._signal(signal.Signals[name])

    def _stop_orphans(self) -> None:
        """Let all ranks save and end once a launcher has ended before its ranks, as when its agent was killed."""
        dead = [(node.name, each.launcher) for node, each in self._pairs if each.launcher is not None and each.alive]
        if not dead or self.orphaned_by is not None or not self._alive:
            return
        self.orphaned_by = dead[0]
        self._signal(signal.SIGTERM)  # Where torch has asked the kernel for the same, this does no harm.
        self._end_in(STOP_S)

    def _has_failure(self) -> bool:
        """Whether a rank has left an exit record of failure, or has ended without any, or a node was lost."""
        records = self._exit_records
        failed = any(record.ending == "failed" and not was_requested(record) for record in records.values())
        return failed or bool(self.ended.keys() - records.keys()) or self._lost_node is not None

    def _has_stuck_rank(self) -> bool:
        """Whether a rank hangs that cannot report it itself, or all of them wait for each other."""
        beats = [beat for status in self.statuses for beat in status.beats]
        missing = sorted({*self._alive, *self._unseen} - {beat.rank for beat in beats})
        watched = self.pauses.look()
        self.stuck = self.stuck or find_stuck_rank(self.spec.run, beats, watched, missing)
        return self.stuck is not None

    def _clean_up(self) -> None:
        """End the ranks, wait for the launchers, and end what is left of this launch, such as agents."""
        self._signal(signal.SIGKILL)
        hurry = self.stop.counts["SIGINT"] > 1 or self._cannot_start
        patience = self.clock() + (0 if hurry else FAILURE_GRACE_S)
        while any(node.is_busy() for node in self.nodes) and self.clock() < patience:
            time.sleep(POLL_S)
        for node in self.nodes:
            node.stop()
        for node in self.nodes:
            node.close()

    def _outcome(self) -> list[WorkerReport]:
        """Decide the outcome of the launch."""
        records = self._exit_records
        ranks = range(self.spec.world_size)
        if all(rank in records and records[rank].ending == "done" for rank in ranks):
            return [WorkerReport(**records[rank].report) for rank in ranks]
        # Ranks without a launcher, or without a node, were stopped by this process: that is no cause.
        by_itself = self.orphaned_by or (self._lost_node is not None and self.stop.first is None)
        cause = first_failure(record for record in records.values() if not (by_itself and was_requested(record)))
        if cause is not None:
            raise failure_of(cause)
        if self.stuck is not None:
            raise self.stuck
        if self.stop.first is not None:
            raise ended_at_once(self.stop.first, self.spec.run)
        for node, status in self._pairs:
            if node.lost is not None:
                raise self._lost_node_error(node, status)
        lost = next((rank for rank in self.ended if rank not in records), None)
        if lost is not None:
            raise self._lost_rank_error(lost)
        raise self._orphaned_error(*self.orphaned_by) if self.orphaned_by else self._start_error()

    def _lost_rank_error(self, rank: int) -> ShoalError:
        """Return the error of the first rank that ended without an exit record."""
        node, status = next(pair for pair in self._pairs if rank in pair[0].ranks)
        how = self.ended[rank] or status.launcher or "killed or crashed without a word"
        oom = status.oom if "SIGKILL" in how else ""
        run = self.spec.run
        file = f" Its last words are in {self.spec.log_file(rank)}." if self.spec.log_dir else ""
        more = f"{stacks_of(run, rank)}{file} {resume_hint(run)}"
        place = f"{status.places[rank]}{_while_saving(run)}"
        return WorkerLostError(f"Lost rank {rank} on {node.name} in {place}: {how}{oom}.{more}", rank=rank)

    def _lost_node_error(self, node: Node, status: NodeStatus) -> ShoalError:
        """Return the error of a node that is out of reach."""
        ranks = ", ".join(map(str, node.ranks))
        places = {beat.place for beat in status.beats} or {"startup"}
        message = (
            f"Lost host {node.name} (rank {ranks}) in {' and '.join(sorted(places))}: {node.lost}. "
            f"{resume_hint(self.spec.run)}"
        )
        return WorkerLostError(message, host=node.name)

    def _orphaned_error(self, name: str, how: str) -> ShoalError:
        """Return the error of ranks that were well, but whose launcher was lost."""
        message = f"Lost torchrunx's agent on {name}, which keeps the workers ({how}). {resume_hint(self.spec.run)}"
        return WorkerLostError(message)

    def _start_error(self) -> ShoalError:
        """Return the error of ranks that showed no sign of life, with the end of the agent's output."""
        unseen = [(node, status) for node, status in self._pairs if status.unseen] or self._pairs[:1]
        ranks = ", ".join(map(str, self._unseen)) or "unknown"
        names = " and ".join(node.name for node, _ in unseen)
        why = next((status.launcher for _, status in unseen if status.launcher), "it was silent")
        message = f"Rank {ranks} on {names} did not start: {why}."
        return WorkerLostError(message, details="\n".join(filter(None, (each.agent_output for _, each in unseen))))


def _while_saving(run: RunDir) -> str:
    """Return which checkpoint was being written, as a clause, or an empty string."""
    unfinished = sorted(run.checkpoints_dir.glob(run.unfinished_dir(0).name.replace("000000", "*")))
    return f" while checkpoint {unfinished[-1].name.rpartition('-')[2]} was being written" if unfinished else ""
