"""A launch over simulated machines in virtual time: real supervisor, node status and messages; no process, no socket.

`SimulatedLaunch` replaces the ssh connection by a queue with a delay for each node. Ranks follow a script: they
train, end, get stuck or stop. Each machine has its own clock. Virtual time passes only where the supervisor waits.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import queue
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from support.stories import Listener

from shoal.errors import ShoalError
from shoal.heartbeat import Beat
from shoal.launch import hang_detector, node, supervisor
from shoal.launch.exit_records import ExitRecord
from shoal.launch.hang_detector import stall_error
from shoal.launch.node import NodeStatus
from shoal.launch.remote import node_agent
from shoal.plan.nodes import NodePlan
from shoal.plan.ranks import Rank
from shoal.plan.training import TrainPlan
from shoal.signals import StopRequests
from shoal.tasks import registry
from shoal.timing import CHANNEL_BEAT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from shoal.plan.rundir import RunDir

EPOCH = 1.8e9
"""Time of day at the beginning [s since the epoch]."""


class Clock:
    """Virtual time, and what will happen in it."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Have something happen at a time, or now if that has passed."""
        heapq.heappush(self._events, (max(when, self.now), next(self._number), event))

    def advance(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass, with all that happens in it, or less of it as soon as `until` is true."""
        end = self.now + seconds
        while not until():
            if not self._events or self._events[0][0] > end:
                self.now = end
                return
            self.now, _, event = heapq.heappop(self._events)
            event()

    def module(self) -> Any:
        """Return what replaces the module `time`."""
        return SimpleNamespace(monotonic=lambda: self.now, time=lambda: EPOCH + self.now, sleep=self.advance)


class Machine:
    """One machine: a node agent that sends its status, and scripted ranks. It is also its connection and channel."""

    def __init__(self, launch: SimulatedLaunch, plan: TrainPlan, delay: float, clock_offset: float) -> None:
        """Start nothing yet. Messages take `delay` [s]; its clock is ahead of the head's by `clock_offset` [s]."""
        self.launch, self.clock = launch, launch.clock
        self.name, self.ranks = plan.nodes[0].host, plan.ranks
        self.delay, self.clock_offset = delay, clock_offset
        self.is_cut = False
        self.ended: dict[int, str] = {}
        self.records: dict[int, ExitRecord] = {}
        self.phases = dict.fromkeys(self.ranks, "rollout")
        self.since: dict[int, float] = {}  # Of ranks that make no progress.
        self.silent_since: dict[int, float] = {}  # Of ranks whose process does not run.
        self.limit = plan.config.stall_timeout
        self.launcher: str | None = None
        self.received_at = 0.0
        self.channel = self
        self.inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.sent, self.sent_at = NodeStatus(), -math.inf

    # The head's end of the connection

    has_greeted = True

    @property
    def silence(self) -> float:
        return self.clock.now - self.received_at

    def send(self, kind: str, data: dict[str, Any] | None = None) -> None:
        """Send a message of the head to the node agent."""
        del data
        if kind == "launch":
            self.clock.at(self.clock.now + self.delay, self.report)
        elif not self.is_cut:
            self.clock.at(self.clock.now + self.delay, lambda: self.on_message(kind))

    def how_it_ended(self) -> str:
        return "its connection ended"

    def close(self, patience: float = 0.0) -> None:
        """Do nothing."""

    # The machine

    def on_message(self, kind: str) -> None:
        if kind == "signal":
            for rank in set(self.ranks) - self.ended.keys():
                self.end(rank, "")
            self.launcher = ""
            self.look()
        elif kind == "end":
            self.from_agent("bye")

    def from_agent(self, kind: str, data: dict[str, Any] | None = None) -> None:
        """Send a message of the node agent to the head."""
        if self.is_cut:
            return
        text = json.dumps({**(data or {}), "kind": kind})
        self.launch.messages += 1
        self.launch.bytes += len(text)
        self.clock.at(self.clock.now + self.delay, lambda: self.arrive(text))

    def arrive(self, text: str) -> None:
        if not self.is_cut:
            self.received_at = self.clock.now
            self.inbox.put(json.loads(text))

    def report(self) -> None:
        """Look now, and again each second."""
        self.look()
        self.clock.at(self.clock.now + CHANNEL_BEAT_S, self.report)

    def look(self) -> None:
        """Send the status if it has changed, and once a second in any case, as a node agent does."""
        begun = time.process_time()
        status = self.status()
        if replace(status, beats=()) != replace(self.sent, beats=()) or self.clock.now > self.sent_at + 0.9:
            self.sent, self.sent_at = status, self.clock.now
            node_agent.time = SimpleNamespace(time=lambda: EPOCH + self.clock.now + self.clock_offset)
            channel: Any = SimpleNamespace(send=self.from_agent)
            node_agent._send_status(channel, status)
        self.launch.seconds -= time.process_time() - begun

    def status(self) -> NodeStatus:
        alive = [rank for rank in self.ranks if rank not in self.ended]
        return NodeStatus(
            launcher=self.launcher,
            alive=tuple(alive),
            ended=dict(self.ended),
            places=dict.fromkeys(self.ended, "rollout (iteration 3)"),
            beats=tuple(map(self.beat, alive)),
            exit_records=dict(self.records),
        )

    def beat(self, rank: int) -> Beat:
        now = self.clock.now
        return Beat(
            rank=rank,
            phase=self.phases[rank],
            iteration=3,
            marks=1,
            idle=now - self.since.get(rank, now),
            silent=now - self.silent_since.get(rank, now),
            limit=self.limit,
            pid=1,
            started=1,
            host=self.name,
        )

    # Faults

    def end(self, rank: int, how: str) -> None:
        self.ended[rank] = how

    def fail(self, rank: int, error: str | ShoalError, *, is_secondary: bool = False) -> None:
        """End a rank with an exit record, whose time is by this machine's clock."""
        place = Rank(rank=rank, local_rank=0, world_size=self.launch.world_size, local_world_size=1)
        record = ExitRecord.of_error(error if isinstance(error, ShoalError) else ValueError(error), place)
        self.records.setdefault(
            rank,
            replace(
                record,
                host=self.name,
                time=EPOCH + self.clock.now + self.clock_offset,
                place="rollout (iteration 3)",
                is_secondary=is_secondary,
                traceback="",
            ),
        )
        self.end(rank, "")

    def stall(self, rank: int) -> None:
        """Let a rank sleep for ever: its own watchdog ends it after the limit."""
        self.since[rank] = self.clock.now

        def watchdog() -> None:
            if rank not in self.ended and rank not in self.silent_since:
                self.fail(rank, stall_error(self.launch.run, self.beat(rank)))
                self.launch.break_connections(self, rank)

        self.clock.at(self.clock.now + self.limit, watchdog)

    def stop_process(self, rank: int) -> None:
        """Stop a rank's process, as by SIGSTOP."""
        self.since[rank] = self.silent_since[rank] = self.clock.now

    def wait_for_others(self) -> None:
        """Let all ranks that still make progress wait for a rank that does not."""
        for rank in set(self.ranks) - self.since.keys():
            self.phases[rank], self.since[rank] = "collective", self.clock.now


class SimulatedLaunch:
    """A launch on simulated machines."""

    def __init__(
        self,
        run: RunDir,
        monkeypatch: pytest.MonkeyPatch,
        *,
        num_nodes: int = 128,
        workers: int = 8,
        stall_timeout: float = 60.0,
        delay: Callable[[int], float] = lambda number: 0.001 + 0.2 * (number % 7 == 3),
        clock_offset: Callable[[int], float] = lambda number: 3600.0 * (number % 5 - 2),
    ) -> None:
        """Prepare `num_nodes` machines of `workers` ranks. By default clocks differ by hours; some links are slow."""
        self.run, self.clock, self.world_size = run, Clock(), num_nodes * workers
        self.messages = self.bytes = 0
        self.seconds = 0.0
        """CPU time of the head's own work [s]."""
        plans = tuple(NodePlan(host=f"n{number}", devices=("cpu",) * workers) for number in range(num_nodes))
        config = replace(registry.resolve("Cartpole-Swingup").defaults(), stall_timeout=stall_timeout)
        self.plan = TrainPlan(
            config=config,
            launch_mode="spawned",
            nodes=plans,
            world_size=self.world_size,
            backend="gloo",
            run_dir=str(run.path),
        )
        for module in (supervisor, node, hang_detector):
            monkeypatch.setattr(module, "time", self.clock.module())
        monkeypatch.setattr(node_agent, "time", self.clock.module())
        self.machines = [
            Machine(self, self.plan.of_node(number), delay(number), clock_offset(number)) for number in range(num_nodes)
        ]
        self.slow_rank = self.machines[3].ranks[-1]
        """A rank whose machine is behind a slow link."""
        by_name = {machine.name: machine for machine in self.machines}
        monkeypatch.setattr(node, "SshConnection", lambda host, _config, **_: by_name[host])

    def machine_of(self, rank: int) -> Machine:
        return next(machine for machine in self.machines if rank in machine.ranks)

    def break_connections(self, of: Machine, rank: int) -> None:
        """Let all other ranks fail because their connection to an ended rank breaks, each a little later."""
        del of
        for number, machine in enumerate(self.machines):

            def fail_all(machine: Machine = machine) -> None:
                for each in set(machine.ranks) - machine.ended.keys() - machine.silent_since.keys():
                    machine.fail(each, f"gloo/transport: Connection closed by peer {rank}", is_secondary=True)
                if not machine.silent_since.keys() - machine.ended.keys():
                    machine.launcher = ""
                machine.look()

            self.clock.at(self.clock.now + 0.01 + 0.0005 * number, fail_all)

    def supervise(
        self, fault: Callable[[SimulatedLaunch], None] = lambda _: None, *, at: float = 10.0, end: float | None = None
    ) -> tuple[float, str]:
        """Supervise until the end, with a fault at a time; stop the launch at the time `end` if there is one.

        Returns:
            The time from the fault to the error, and the error.
        """
        stop = StopRequests()
        self.clock.at(at, lambda: fault(self))
        if end is not None:
            self.clock.at(end, lambda: stop.counts.update(SIGINT=2))
        nodes = node.remote_nodes(self.plan)
        launch = supervisor.Supervisor(self.plan, nodes, Listener(), stop)
        begun = time.process_time()
        try:
            launch.run()
        except ShoalError as error:
            return self.clock.now - at, f"{type(error).__name__}: {error}"
        finally:
            self.seconds += time.process_time() - begun
        return self.clock.now - at, ""


def _lose(launch: SimulatedLaunch, rank: int, how: str) -> None:
    machine = launch.machine_of(rank)
    machine.end(rank, how)
    machine.look()
    launch.break_connections(machine, rank)


def killed(launch: SimulatedLaunch) -> None:
    """Kill a rank behind a slow link; the broken connections of all others are known earlier."""
    _lose(launch, launch.slow_rank, "killed by SIGKILL")


def raises(launch: SimulatedLaunch) -> None:
    """Let one rank raise, and 0.3 s later another one, whose machine's clock is hours behind."""
    first, later = launch.machine_of(launch.slow_rank), launch.machines[5]
    first.fail(launch.slow_rank, "mine")
    first.look()
    launch.break_connections(first, launch.slow_rank)
    rank = later.ranks[1]

    def fail_later() -> None:
        later.records.pop(rank, None)
        later.fail(rank, "later")
        later.look()

    launch.clock.at(launch.clock.now + 0.3, fail_later)


def sleeps(launch: SimulatedLaunch) -> None:
    """Let one rank sleep for ever, and all others wait for it."""
    launch.machine_of(launch.slow_rank).stall(launch.slow_rank)
    for machine in launch.machines:
        machine.wait_for_others()


def stopped(launch: SimulatedLaunch) -> None:
    """Stop the process of one rank; all others wait for it."""
    launch.machine_of(launch.slow_rank).stop_process(launch.slow_rank)
    for machine in launch.machines:
        machine.wait_for_others()


def deadlock(launch: SimulatedLaunch) -> None:
    """Let all ranks wait."""
    for machine in launch.machines:
        machine.wait_for_others()


def cut(launch: SimulatedLaunch) -> None:
    """Pull the cable of one machine; all other ranks wait for its ranks."""
    launch.machine_of(launch.slow_rank).is_cut = True
    for machine in launch.machines:
        machine.wait_for_others()
