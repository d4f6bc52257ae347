"""The launch mode *spawned*: the supervisor of the nodes of a launch, local or of `--hosts`.

It shows rank 0's output, forwards signals, detects ranks and nodes that were lost or hang, and decides the outcome and
its first cause from the status of the nodes.
"""

import math
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from shoal.errors import WorkerLostError
from shoal.heartbeat import Beat, slowest_phase
from shoal.launch.exit_records import ExitRecord, ended_at_once, failure_of, first_failure, resume_hint, was_requested
from shoal.launch.hang_detector import PauseDetector, find_stuck_rank, stacks_of
from shoal.launch.node import LocalNode, NodeStatus, RemoteNode, remote_nodes
from shoal.launch.rank import ProgressReporter
from shoal.launch.reaper import reaped_scratch
from shoal.plan.launch import Plan
from shoal.plan.received import to_json
from shoal.plan.rundir import RunDir
from shoal.run_record import WorkerReport
from shoal.signals import STOPPING_TRAINING, StopRequests
from shoal.timing import FAILURE_GRACE_S, POLL_S, STOP_S

Node = LocalNode | RemoteNode


def run_spawned(plan: Plan, reporter: ProgressReporter, stop: StopRequests) -> list[WorkerReport]:
    """Run one new process for each device of each node, and wait for all of them; raise how they ended otherwise."""
    with ExitStack() as stack:
        nodes: Sequence[Node]
        if plan.is_remote:
            nodes = remote_nodes(plan)
        else:
            scratch = stack.enter_context(reaped_scratch())
            # Without log files rank 0's output is still shown, from a file that is removed with the launch.
            local = replace(plan, scratch=str(scratch), log_dir=plan.log_dir or str(scratch / "logs"))
            nodes = [LocalNode(local, to_json(local))]
        return Supervisor(plan, nodes, reporter, stop).run()


class Supervisor:
    """One launch: starts the nodes, follows their status until all have ended, and decides the outcome."""

    def __init__(self, plan: Plan, nodes: Sequence[Node], reporter: ProgressReporter, stop: StopRequests) -> None:
        self.plan, self.nodes, self.reporter, self.stop = plan, nodes, reporter, stop
        self.statuses: list[tuple[Node, NodeStatus]] = []
        self.alive: set[int] = set()  # Ranks that run, without those of a lost node, which are not waited for.
        self.unseen: list[int] = []  # Ranks that have shown no sign of life yet.
        self.beats: list[Beat] = []
        self.records: dict[int, ExitRecord] = {}
        self.ended: dict[int, str] = {}  # How each rank ended, in the order of their ends, where that is known.
        self.lost_node: Node | None = None
        self.cannot_start = False  # A launcher ended before its ranks started. torchrunx may still be being imported.
        self.num_signals = 0  # Signals that were forwarded.
        self.orphaned_by: tuple[str, str] | None = None  # A node whose launcher ended before its ranks, and how.
        self.deadline = math.inf  # When ranks that still run are killed.
        self.pauses = PauseDetector()
        self.stuck: WorkerLostError | None = None
        self.has_learned = False  # Whether an iteration was done.
        self.is_late = False  # Whether ranks have shown no sign of life in `--startup-timeout`.

    def run(self) -> list[WorkerReport]:
        """Start the nodes, watch them until the launch is over, and return the reports of all ranks."""
        try:
            for node in self.nodes:
                node.start()
            self._watch()
        finally:
            self._clean_up()
        self._update()
        return self._outcome()

    def _watch(self) -> None:
        """Follow the nodes until all launchers and ranks have ended, or the deadline of those that are left."""
        start_by = time.monotonic() + (self.plan.config.startup_timeout or math.inf)
        while True:
            self._update()
            self._forward_signals()
            self._stop_orphans()
            if self._has_failure():
                self._end_in(FAILURE_GRACE_S)
            elif self._has_stuck_rank():
                self._end_in(0)
            self.is_late |= bool(self.unseen) and time.monotonic() > start_by
            if self.unseen and (self.is_late or self.cannot_start):
                self._end_in(0)
            if not self.alive and all(status.launcher is not None for _, status in self.statuses):
                return
            if time.monotonic() >= self.deadline:
                return
            if self.deadline < math.inf and self.ended and not self.alive:
                return  # No rank is left: no need to wait until torchrunx notices.
            self.nodes[0].wait(POLL_S)

    def _end_in(self, seconds: float) -> None:
        """Kill what still runs after this time, or earlier if that was decided before."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)

    def _update(self) -> None:
        """Read the status of all nodes, and report new metrics and new output of rank 0."""
        self.statuses = [(node, node.status()) for node in self.nodes]
        statuses = [status for _, status in self.statuses]
        self.alive = {rank for node, status in self.statuses if node.lost is None for rank in status.alive}
        self.unseen = [rank for status in statuses for rank in status.unseen]
        self.beats = [beat for status in statuses for beat in status.beats]
        self.records = {rank: record for status in statuses for rank, record in status.exit_records.items()}
        self.lost_node = next((node for node in self.nodes if node.lost is not None), None)
        self.cannot_start = any(status.unseen and status.launcher is not None for status in statuses)
        if not self.has_learned and self.beats and not self.unseen:
            self.reporter.on_phase(slowest_phase([beat.phase for beat in self.beats]))
        for status in statuses:
            for rank, how in status.ended.items():
                self.ended.setdefault(rank, how)
            for line in status.lines:
                self.reporter.on_line(line)
            for row in status.rows:
                self.has_learned = True
                self.reporter.on_row(row)

    def _signal(self, number: signal.Signals) -> None:
        for node in self.nodes:
            node.signal(number)

    def _forward_signals(self) -> None:
        """Forward this process's signals to every rank; after a terminal's Ctrl-C they get a second one, harmlessly."""
        name, count = self.stop.first, sum(self.stop.counts.values())
        if name is None or count == self.num_signals:
            return
        if self.num_signals == 0 and self.has_learned:
            self.reporter.on_line(f"{name}: {STOPPING_TRAINING}")
        self.num_signals = count
        self._end_in(STOP_S if self.has_learned and self.stop.counts["SIGINT"] < 2 else 0)  # noqa: PLR2004
        self._signal(signal.Signals[name])

    def _stop_orphans(self) -> None:
        """Let all ranks save and end once a launcher has ended before its ranks, as when its agent was killed."""
        dead = [(node.name, each.launcher) for node, each in self.statuses if each.launcher is not None and each.alive]
        if not dead or self.orphaned_by is not None or not self.alive:
            return
        self.orphaned_by = dead[0]
        self._signal(signal.SIGTERM)  # Where torch has asked the kernel for the same, this does no harm.
        self._end_in(STOP_S)

    def _has_failure(self) -> bool:
        """Whether a rank has left an exit record of failure, or has ended without any, or a node was lost."""
        failed = any(record.ending == "failed" and not was_requested(record) for record in self.records.values())
        return failed or bool(self.ended.keys() - self.records.keys()) or self.lost_node is not None

    def _has_stuck_rank(self) -> bool:
        """Whether a rank hangs that cannot report it itself, or all of them wait for each other."""
        missing = sorted({*self.alive, *self.unseen} - {beat.rank for beat in self.beats})
        watched = self.pauses.look()
        self.stuck = self.stuck or find_stuck_rank(self.plan.run, self.beats, watched, missing)
        return self.stuck is not None

    def _clean_up(self) -> None:
        """End the ranks, wait for the launchers, and end what is left of this launch, such as agents."""
        self._signal(signal.SIGKILL)
        hurry = self.stop.counts["SIGINT"] > 1 or self.cannot_start
        patience = time.monotonic() + (0 if hurry else FAILURE_GRACE_S)
        while any(node.is_busy() for node in self.nodes) and time.monotonic() < patience:
            time.sleep(POLL_S)
        for node in self.nodes:
            node.close()

    def _outcome(self) -> list[WorkerReport]:
        """Decide the outcome of the launch."""
        records = self.records
        ranks = range(self.plan.world_size)
        if all(rank in records and records[rank].ending == "done" for rank in ranks):
            return [WorkerReport(**records[rank].report) for rank in ranks]
        # Ranks without a launcher, or without a node, were stopped by this process, and those of a lost rank by
        # torchrunx: that is no cause.
        lost = self.lost_node is not None or bool(self.ended.keys() - records.keys())
        by_itself = self.orphaned_by or (lost and self.stop.first is None)
        cause = first_failure(record for record in records.values() if not (by_itself and was_requested(record)))
        if cause is not None:
            raise failure_of(cause)
        if self.stuck is not None:
            raise self.stuck
        if self.stop.first is not None:
            raise ended_at_once(self.stop.first, self.plan.run)
        raise self._loss()

    def _loss(self) -> WorkerLostError:
        """Return the error of a node, a rank, or a launcher that ended without telling why."""
        hint = resume_hint(self.plan.run)
        for node, status in self.statuses:
            if node.lost is not None:
                ranks = ", ".join(map(str, node.ranks))
                places = " and ".join(sorted({beat.place for beat in status.beats})) or "startup"
                return WorkerLostError(f"Lost node {node.name} (rank {ranks}) in {places}: {node.lost}. {hint}")
        lost = next((rank for rank in self.ended if rank not in self.records), None)
        if lost is not None:
            return self._lost_rank(lost, hint)
        if self.orphaned_by is not None:
            name, how = self.orphaned_by
            return WorkerLostError(f"Lost torchrunx's agent on {name}, which keeps the workers ({how}). {hint}")
        unseen = [(node, status) for node, status in self.statuses if status.unseen] or self.statuses[:1]
        ranks = ", ".join(map(str, self.unseen)) or "unknown"
        names = " and ".join(node.name for node, _ in unseen)
        why = next((status.launcher for _, status in unseen if status.launcher), "it was silent")
        if self.is_late:  # How the launcher ended says nothing: this process has ended it.
            limit = f"{self.plan.config.startup_timeout:.0f} s, the --startup-timeout"
            why = f"no sign of life within {limit}. See how busy that node and its disk are"
        output = "\n".join(status.agent_output for _, status in unseen if status.agent_output)
        return WorkerLostError(f"Rank {ranks} on {names} did not start: {why}.", details=output)

    def _lost_rank(self, rank: int, hint: str) -> WorkerLostError:
        """Return the error of the first rank that ended without an exit record."""
        node, status = next(pair for pair in self.statuses if rank in pair[0].ranks)
        how = self.ended[rank] or status.launcher or "killed or crashed without a word"
        oom = status.oom if "SIGKILL" in how else ""
        run = self.plan.run
        file = f" Its last words are in {self.plan.log_file(rank)}." if self.plan.log_dir else ""
        more = f"{stacks_of(run, rank)}{file} {hint}"
        place = f"{status.places[rank]}{_while_saving(run)}"
        return WorkerLostError(f"Lost rank {rank} on {node.name} in {place}: {how}{oom}.{more}", rank=rank)


def _while_saving(run: RunDir) -> str:
    """Return which checkpoint was being written, as a clause, or an empty string."""
    unfinished = sorted(run.checkpoints_dir.glob(run.unfinished_dir(0).name.replace("000000", "*")))
    return f" while checkpoint {unfinished[-1].name.rpartition('-')[2]} was being written" if unfinished else ""
