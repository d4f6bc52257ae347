"""Restarts after a loss: how often, after which pause, from which checkpoint, and with which workers.

A training that loses a worker is started again from its newest good checkpoint, in its own run directory. Only restarts
without progress are counted: a newer checkpoint makes all of them available again.
"""

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from shoal.checks.preflight import wait_for_memory
from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, UsageError, WorkerLostError, counted
from shoal.launch.exit_records import ended_at_once
from shoal.launch.rank import ProgressReporter
from shoal.launch.remote.host_probe import probe_hosts
from shoal.machine.gpus import visible_gpus
from shoal.plan.checkpoints import newest_good
from shoal.plan.nodes import NodePlan, Nodes
from shoal.plan.resume import Start
from shoal.plan.rundir import RunDir
from shoal.plan.training import TrainPlan
from shoal.signals import StopRequests
from shoal.timing import LONGEST_PAUSE_S, wait_for

Slot = tuple[str, str, int]  # Host, UUID of the GPU, number among the workers of that GPU: ranks may change.


class Restarts:
    """The losses of one command, and the plan of the launch after each."""

    def __init__(self, plan: TrainPlan) -> None:
        self._plan = self._first = plan
        self._least = plan.config.min_workers or plan.world_size
        self._slots = _slots(plan.nodes)  # By rank.
        self._dropped: set[Slot] = set()  # Of workers that were lost twice.
        self._fruitless = 0  # Restarts in a row without a newer checkpoint.
        self._lost_before: Slot | None = None  # Of the worker that was lost without progress the time before.
        self._has_paused = True  # Before the next launch.

    def after(self, lost: WorkerLostError, run: RunDir, reporter: ProgressReporter, stop: StopRequests) -> TrainPlan:
        """Return the plan of the next launch, or raise `lost` with the reason why there is none."""
        limit = self._plan.config.max_restarts
        if not limit or stop.first is not None:
            raise lost
        checkpoint, passed_over = newest_good(run)
        iteration = checkpoint.iteration if checkpoint else 0
        if iteration > self._plan.start_iteration:
            self._fruitless, self._lost_before = 0, None
        if self._fruitless == limit:
            message = f"{lost} Gave up after {limit} restart{'s' * (limit > 1)} without a newer checkpoint."
            raise WorkerLostError(message, details=lost.details, rank=lost.rank) from lost
        slot = self._slots[lost.rank] if lost.rank is not None else None
        suspect = slot if slot == self._lost_before else None
        self._lost_before = slot
        self._fruitless += 1
        self._has_paused = False
        origin = f"iteration {iteration}" if checkpoint else "the beginning: there is no checkpoint yet"
        tries = f"try {self._fruitless} of {limit} without a newer checkpoint"
        again = f"Starting again in {self.pause_s:.0f} s from {origin} ({tries})."
        if suspect is not None and self._plan.world_size > self._least:
            self._dropped.add(suspect)
        found = None if self._plan.is_remote else self._nodes_left(lost, suspect, self._probe_local())
        for line in (*lost.details.splitlines(), str(lost), *passed_over, again):
            reporter.on_line(line)
        if found is None:
            self.pause(run, stop)  # Before the probe: a host may be starting again.
            nodes, missing = self._probe_remote(run, stop)
            for error in missing:
                reporter.on_line(str(error))
            found = self._nodes_left(lost, suspect, nodes, missing)
        self._resize(lost, found, reporter)
        start = Start(model=str(checkpoint.model.absolute()), mode="continue") if checkpoint else self._plan.start
        self._plan = replace(self._plan, continued=run, start=start, start_iteration=iteration)
        return self._plan

    @property
    def pause_s(self) -> float:
        """Pause before this launch: none before the first one, then longer with each restart without progress [s]."""
        return min(LONGEST_PAUSE_S, 2.0 ** (self._fruitless - 1)) if self._fruitless else 0.0

    def pause(self, run: RunDir, stop: StopRequests) -> None:
        """Wait once before a launch, also for the memory of the lost worker; a stop signal raises its error."""
        if not self._has_paused:
            self._has_paused = True
            refuse = partial(_refuse_after_signal, run, stop)
            wait_for(refuse, self.pause_s)
            wait_for_memory(self._plan, visible_gpus(), refuse)

    def _probe_local(self) -> Nodes:
        """Return this machine with the workers of the first launch whose GPUs are visible now."""
        (node,) = self._first.nodes
        devices = {gpu.uuid: f"cuda:{gpu.index}" for gpu in visible_gpus()} | {"cpu": "cpu"}
        uuids = tuple(uuid for uuid in node.uuids if uuid in devices)
        return Nodes(nodes=(replace(node, devices=tuple(devices[uuid] for uuid in uuids), uuids=uuids),))

    def _probe_remote(self, run: RunDir, stop: StopRequests) -> tuple[Nodes, list[ShoalError]]:
        """Probe the hosts, but those whose workers are all dropped; return also why some are missing."""
        hosts = dict.fromkeys(slot[0] for slot in _slots(self._first.nodes) if slot not in self._dropped)
        config, missing = replace(self._plan.config, hosts=tuple(hosts)), list[ShoalError]()
        try:
            nodes = probe_hosts(
                os.environ, config, self._plan.tasks, missing.append, partial(_refuse_after_signal, run, stop)
            )
        except (InterruptedRunError, TerminatedRunError):
            raise
        except ShoalError as error:
            return Nodes(), [error]
        return nodes, missing

    def _nodes_left(
        self, lost: WorkerLostError, suspect: Slot | None, found: Nodes, missing: Iterable[ShoalError] = ()
    ) -> Nodes:
        """Return the nodes of the next launch, of those that were found; raise `lost` if too few are left.

        A GPU or a host that is away takes its workers along until it is back at a later restart. A worker that was
        lost twice in a row without progress is dropped, as far as `--min-workers` allows: its GPU, its part of the
        memory or its part of the work is at fault.
        """
        slots = _slots(found.nodes)
        if suspect is not None and len(set(slots) - self._dropped) < self._least:
            self._dropped.discard(suspect)
        self._slots = [slot for slot in slots if slot not in self._dropped]
        left, first = len(self._slots), self._first.world_size
        if left < self._least or not left:
            message = (
                f"{lost} It was not started again: {left} of {first} worker{'s' * (first > 1)} are left, "
                f"and {self._least} are needed. {' '.join(map(str, missing))}"
            )
            raise WorkerLostError(message.strip(), details=lost.details, rank=lost.rank) from lost
        return replace(found, nodes=_without(found.nodes, self._dropped))

    def _resize(self, lost: WorkerLostError, found: Nodes, reporter: ProgressReporter) -> None:
        """Plan with these nodes, and report another number of workers; raise `lost` if the learner cannot use it."""
        before, workers = self._plan, len(self._slots)
        total, is_same = before.config.num_envs_total, workers == before.world_size
        num_envs = before.config.num_envs if is_same or not total else total // workers
        try:
            before.config.agent.check_samples(num_envs)
        except UsageError as error:
            message = f"{lost} It was not started again: with {counted(workers, 'worker')}, {error}"
            raise WorkerLostError(message, details=lost.details, rank=lost.rank) from lost
        self._plan = before.on_nodes(found, config=replace(before.config, num_envs=num_envs))
        if is_same:
            return
        of = "" if workers > before.world_size else f" of {before.world_size}"
        now, then = num_envs * workers, before.config.num_envs * before.world_size
        kept = "as before" if now == then else f"{then:,} before"
        reporter.on_line(
            f"Going on with {workers}{of} workers, {num_envs:,} environments each: {now:,} in all, {kept}. "
            "The learning rate is not changed."
        )


def _refuse_after_signal(run: RunDir, stop: StopRequests) -> None:
    if stop.first is not None:
        raise ended_at_once(stop.first, run)


def _slots(nodes: Iterable[NodePlan]) -> list[Slot]:
    """Return the slot of each worker, by rank."""
    return [(node.host, uuid, node.uuids[:rank].count(uuid)) for node in nodes for rank, uuid in enumerate(node.uuids)]


def _without(nodes: Iterable[NodePlan], dropped: set[Slot]) -> tuple[NodePlan, ...]:
    """Return the nodes without these workers, and without nodes that have no other."""
    left: list[NodePlan] = []
    for node in nodes:
        workers = zip(_slots([node]), node.uuids, node.devices, strict=True)
        kept = [(uuid, device) for slot, uuid, device in workers if slot not in dropped]
        if kept:
            uuids, devices = zip(*kept, strict=True)
            left.append(replace(node, uuids=uuids, devices=devices))
    return tuple(left)
