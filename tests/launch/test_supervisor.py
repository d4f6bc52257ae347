"""Decisions of the supervisor from scripted statuses of many nodes, without processes."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from support.stories import Listener

from shoal.errors import InterruptedRunError, ShoalError, TrainingFailedError, WorkerLostError
from shoal.heartbeat import Beat
from shoal.launch.exit_records import ExitRecord
from shoal.launch.hang_detector import PauseDetector
from shoal.launch.node import NodeStatus
from shoal.launch.supervisor import Supervisor
from shoal.plan.nodes import NodePlan
from shoal.plan.training import TrainPlan
from shoal.run_record import WorkerReport
from shoal.signals import StopRequests
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.plan.rundir import RunDir

NODES, WORKERS = 128, 8


class ScriptedNode:
    """A node in memory: well until it is told otherwise, and ended by any signal."""

    def __init__(self, number: int) -> None:
        self.name = f"n{number}"
        self.ranks = range(number * WORKERS, (number + 1) * WORKERS)
        self.lost: str | None = None
        self.records: dict[int, ExitRecord] = {}
        self.ended: dict[int, str] = {}
        self.launcher: str | None = None
        self.signals: list[int] = []
        self.on_wait: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Do nothing."""

    def status(self) -> NodeStatus:
        alive = tuple(rank for rank in self.ranks if rank not in self.ended)
        return NodeStatus(
            launcher=self.launcher,
            alive=alive,
            ended=self.ended,
            places=dict.fromkeys(self.ended, "rollout (iteration 3)"),
            beats=tuple(beat(rank, self.name) for rank in alive),
            exit_records=self.records,
        )

    def wait(self, seconds: float) -> None:
        del seconds
        self.on_wait()

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if self.lost is None:
            self.end()

    def is_busy(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """End all ranks, with an exit record for those that have none."""
        for rank in set(self.ranks) - self.ended.keys():
            self.ended[rank] = ""
            self.records.setdefault(rank, failed(rank, "gloo/transport", is_secondary=True))
        self.launcher = ""


def beat(rank: int, host: str, *, phase: str = "rollout", idle: float = 0.0) -> Beat:
    return Beat(
        rank=rank,
        phase=phase,
        iteration=3,
        marks=1,
        idle=idle,
        silent=0.0,
        limit=60.0,
        pid=1,
        started=1,
        host=host,
    )


def failed(rank: int, error: str, *, is_secondary: bool = False, at: float = 0.0) -> ExitRecord:
    return ExitRecord(
        rank=rank,
        host=f"n{rank // WORKERS}",
        ending="failed",
        time=at or time.time(),
        exit_code=1,
        place="rollout (iteration 3)",
        error=error,
        is_secondary=is_secondary,
    )


def done(rank: int) -> ExitRecord:
    report = WorkerReport(rank=rank, host="n", device="cpu", iteration=3, digest="same", last_row={})
    return ExitRecord(rank=rank, host="n", ending="done", time=0.0, report=asdict(report))


def supervise(
    run: RunDir, event: Callable[[Sequence[ScriptedNode]], None], stop: StopRequests | None = None
) -> list[WorkerReport]:
    """Supervise many nodes until the end; the event happens after the first look at them."""
    nodes = [ScriptedNode(number) for number in range(NODES)]
    nodes[0].on_wait = lambda: event(nodes)
    plans = tuple(NodePlan(host=node.name, devices=("cpu",) * WORKERS) for node in nodes)
    config = registry.resolve("Cartpole-Swingup").defaults()
    plan = TrainPlan(
        config=config,
        launch_mode="spawned",
        nodes=plans,
        world_size=NODES * WORKERS,
        backend="gloo",
        run_dir=str(run.path),
    )
    return Supervisor(plan, cast("Any", nodes), Listener(), stop or StopRequests()).run()


def error_of(run: RunDir, event: Callable[[Sequence[ScriptedNode]], None], stop: StopRequests | None = None) -> str:
    with pytest.raises(ShoalError) as raised:
        supervise(run, event, stop)
    return f"{type(raised.value).__name__}: {raised.value}"


def test_the_reports_of_all_ranks_are_returned_in_their_order(run_dir: RunDir) -> None:
    def event(nodes: Sequence[ScriptedNode]) -> None:
        for node in nodes:
            node.records = {rank: done(rank) for rank in node.ranks}
            node.end()

    reports = supervise(run_dir, event)
    assert [report.rank for report in reports] == list(range(NODES * WORKERS))


def test_the_earliest_failure_is_the_cause_and_broken_connections_are_not(run_dir: RunDir) -> None:
    def event(nodes: Sequence[ScriptedNode]) -> None:
        nodes[3].records[24] = failed(24, "gloo/transport", is_secondary=True, at=1.0)
        nodes[90].records[723] = failed(723, "ValueError: mine", at=3.0)
        nodes[91].records[728] = failed(728, "ValueError: later", at=4.0)
        for node in nodes:
            node.end()

    said = error_of(run_dir, event)
    assert said == f"{TrainingFailedError.__name__}: Rank 723 on n90 failed in rollout (iteration 3): ValueError: mine"


def test_a_lost_node_is_named_and_the_others_are_ended(run_dir: RunDir) -> None:
    nodes: list[ScriptedNode] = []

    def event(all_nodes: Sequence[ScriptedNode]) -> None:
        nodes[:] = all_nodes
        nodes[77].lost = "it was silent for 30 s"
        for node in nodes:
            if node is not nodes[77]:
                node.end()

    said = error_of(run_dir, event)
    ranks = ", ".join(map(str, range(616, 624)))
    assert said.startswith(
        f"{WorkerLostError.__name__}: Lost node n77 (rank {ranks}) in rollout (iteration 3): it was silent for 30 s."
    )
    assert all(signal.SIGKILL in node.signals for node in nodes)


def test_a_rank_that_ends_without_a_record_is_named_with_its_node(run_dir: RunDir) -> None:
    def event(nodes: Sequence[ScriptedNode]) -> None:
        nodes[5].ended[42] = "killed by SIGSEGV"
        for node in nodes:
            node.end()

    said = error_of(run_dir, event)
    assert re.search(r"Lost rank 42 on n5 in rollout \(iteration 3\): killed by SIGSEGV\.", said)


def test_ranks_whose_launcher_has_ended_are_asked_to_save(run_dir: RunDir) -> None:
    nodes: list[ScriptedNode] = []

    def event(all_nodes: Sequence[ScriptedNode]) -> None:
        nodes[:] = all_nodes
        nodes[9].launcher = "killed by SIGKILL"

    said = error_of(run_dir, event)
    assert {node.signals[0] for node in nodes} == {signal.SIGTERM}
    assert "Lost torchrunx's agent on n9, which keeps the workers (killed by SIGKILL)." in said


def test_a_signal_reaches_every_rank_and_is_the_cause(run_dir: RunDir) -> None:
    stop = StopRequests()
    nodes: list[ScriptedNode] = []

    def event(all_nodes: Sequence[ScriptedNode]) -> None:
        nodes[:] = all_nodes
        stop.counts["SIGINT"] = 1

    said = error_of(run_dir, event, stop)
    assert said.startswith(f"{InterruptedRunError.__name__}: SIGINT ended the run at once.")
    assert {node.signals[0] for node in nodes} == {signal.SIGINT}


def test_a_rank_without_a_heartbeat_that_all_others_wait_for_is_named(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PauseDetector, "look", lambda _: 1e3)
    waiting = ScriptedNode.status

    def status(node: ScriptedNode) -> NodeStatus:
        seen = waiting(node)
        alive = tuple(rank for rank in seen.alive if rank != 13)  # It was stopped while it started.
        beats = tuple(beat(rank, node.name, phase="collective", idle=70.0) for rank in alive)
        return replace(seen, alive=alive, unseen=(13,) if 13 in seen.alive else (), beats=beats)

    monkeypatch.setattr(ScriptedNode, "status", status)
    assert "Rank 13 has shown no heartbeat while the others waited for 70 s" in error_of(run_dir, lambda _: None)


def test_ranks_that_do_not_start_are_ended_after_the_time_that_was_asked_for(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not blamed on the signal by which they are ended."""
    now = [0.0]
    monkeypatch.setattr("shoal.launch.supervisor.time.monotonic", lambda: now[0])
    seen = ScriptedNode.status

    def status(node: ScriptedNode) -> NodeStatus:
        return replace(seen(node), alive=(), unseen=tuple(node.ranks), ended={}, exit_records={}, beats=())

    monkeypatch.setattr(ScriptedNode, "status", status)
    monkeypatch.setattr(ScriptedNode, "signal", lambda node, _: setattr(node, "launcher", "killed by SIGKILL"))
    monkeypatch.setattr(ScriptedNode, "wait", lambda _, seconds: now.__setitem__(0, now[0] + 10 * seconds))
    said = error_of(run_dir, lambda _: None)
    assert " did not start: no sign of life within 900 s, the --startup-timeout." in said
    assert "SIGKILL" not in said
    assert 900 < now[0] < 910
