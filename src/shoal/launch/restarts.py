"""Starting again after a loss: how often, after which pause, from which checkpoint, and with which workers.

A training that loses a worker is worth another try from its newest good checkpoint, in its own run directory. Only
tries without progress are counted: a newer checkpoint makes all tries available again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, WorkerLostError
from shoal.launch.exit_records import ended_at_once
from shoal.plan.checkpoints import newest_good
from shoal.plan.devices import visible_gpus
from shoal.plan.nodes import Nodes
from shoal.plan.spec import Start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.config import TrainConfig
    from shoal.launch.progress import ProgressReporter
    from shoal.machine.visibility import VisibleGpus
    from shoal.plan.nodes import NodePlan
    from shoal.plan.rundir import RunDir
    from shoal.plan.training import TrainPlan
    from shoal.signals import StopRequests

    ProbeHosts = Callable[[TrainConfig, Callable[[ShoalError], None], Callable[[], None]], Nodes]
    Place = tuple[str, str, int]  # Host, GPU by its UUID, number among the workers there: ranks are counted anew.

LONGEST_PAUSE_S = 60.0
_POLL_S = 0.1


class Restarts:
    """The losses of one command, and what follows from each."""

    def __init__(
        self,
        plan: TrainPlan,
        look: Callable[[], VisibleGpus] = visible_gpus,
        probe_hosts: ProbeHosts | None = None,
    ) -> None:
        """Remember which GPUs the first launch has.

        Args:
            plan: The first launch.
            look: Tells which GPUs are visible.
            probe_hosts: With `--hosts`, probes the machines of a configuration, calls its second argument with each
                that cannot be reached, and polls its third.
        """
        self._plan = plan
        self._look = look
        self._probe_hosts = probe_hosts if plan.machines else None
        self._left_out: set[Place] = set()  # Of workers that were lost twice, with `--hosts`.
        self._places = [place for each in plan.machines for place in _places(each.host, each.uuids)]
        if plan.config.max_restarts and not plan.machines:
            self._places = _places("", look().uuids(plan.devices))
        self._first = self._places
        self._fruitless = 0  # Restarts in a row that have brought no newer checkpoint.
        self._lost_before: Place | None = None  # Of the worker that was lost without progress the time before.
        self._launches = self._paused = 1

    def after(self, lost: WorkerLostError, run: RunDir, view: ProgressReporter, stop: StopRequests) -> TrainPlan:
        """Return the plan of the next launch.

        Raises:
            WorkerLostError: There is none: `lost`, with the reason.
        """
        limit = self._plan.config.max_restarts
        if not limit or stop.first is not None:
            raise lost
        checkpoint, passed_over = newest_good(run)
        iteration = checkpoint.iteration if checkpoint else 0
        if iteration > self._plan.start_iteration:
            self._fruitless, self._lost_before = 0, None
        if self._fruitless == limit:
            message = f"{lost} Gave up after {_count(limit, 'restart')} without a newer checkpoint."
            raise WorkerLostError(message, details=lost.details, rank=lost.rank) from lost
        place = self._places[lost.rank] if lost.rank is not None else None
        suspect = place if place == self._lost_before else None
        devices = () if self._probe_hosts else self._devices_left(lost, suspect)
        self._fruitless += 1
        self._launches += 1
        self._lost_before = place
        origin = f"iteration {iteration}" if checkpoint else "the beginning: there is no checkpoint yet"
        tries = f"try {self._fruitless} of {limit} without a newer checkpoint"
        again = f"Starting again in {self.pause_s:.0f} s from {origin} ({tries})."
        for line in (*lost.details.splitlines(), str(lost), *passed_over, again):
            view.on_line(line)
        if self._probe_hosts:
            self.pause(run, stop)  # Before the machines are looked at, not after: one may be starting again.
            devices = self._machines_left(self._probe_hosts, lost, suspect, view, partial(_refuse_when_told, run, stop))
        if len(devices) != self._plan.world_size:
            view.on_line(self._resize(devices))
        self._plan = replace(
            self._plan,
            devices=devices,
            continued=run,
            start=Start(model=str(checkpoint.model.absolute()), mode="continue") if checkpoint else self._plan.start,
            start_iteration=iteration,
        )
        return self._plan

    @property
    def pause_s(self) -> float:
        """How long to wait before this launch: nothing before the first one, then longer with each vain try [s]."""
        return min(LONGEST_PAUSE_S, 2.0 ** (self._fruitless - 1)) if self._fruitless else 0.0

    def pause(self, run: RunDir, stop: StopRequests) -> None:
        """Wait before a launch.

        Raises:
            InterruptedRunError: Ctrl-C has come.
            TerminatedRunError: Another signal has asked for the end.
        """
        if self._paused == self._launches:
            return  # It has been waited for.
        self._paused = self._launches
        start_at = time.monotonic() + self.pause_s
        while (left := start_at - time.monotonic()) > 0:
            _refuse_when_told(run, stop)
            time.sleep(min(left, _POLL_S))

    def _devices_left(self, lost: WorkerLostError, suspect: Place | None) -> tuple[str, ...]:
        """Return the devices of the workers of the next launch.

        A GPU that is gone takes its workers along. A worker that was lost twice in a row without progress gives up its
        place, as far as `--min-workers` allows: its GPU, its share of the memory or its share of the work is at fault.

        Raises:
            WorkerLostError: Too few are left.
        """
        asked = len(self._places)
        least = self._plan.config.min_workers or asked
        now = {gpu.uuid: f"cuda:{gpu.index}" for gpu in self._look()} | {"cpu": "cpu"}
        places = [place for place in self._places if place[1] in now]
        if len(places) < least:
            message = (
                f"{lost} It was not started again: the GPUs of {len(places)} of {_count(asked, 'worker')} are "
                f"left, and --min-workers asks for {least}."
            )
            raise WorkerLostError(message, details=lost.details, rank=lost.rank) from lost
        if suspect in places and len(places) > least:
            places.remove(suspect)
        self._places = places
        return tuple(now[uuid] for _, uuid, _ in places)

    def _machines_left(
        self,
        probe_hosts: ProbeHosts,
        lost: WorkerLostError,
        suspect: Place | None,
        view: ProgressReporter,
        check: Callable[[], None],
    ) -> tuple[str, ...]:
        """Plan with the machines that are there now, and return the devices of their workers.

        A machine that is away takes its workers along, and gets them back when it has come back until a later restart.
        A worker that was lost twice in a row without progress gives up its place, as far as `--min-workers` allows.

        Raises:
            WorkerLostError: Too few are left.
        """
        least = self._plan.config.min_workers or len(self._first)
        if suspect is not None and self._plan.world_size > least:
            self._left_out.add(suspect)
        away: list[ShoalError] = []
        try:
            found = probe_hosts(self._usable(), away.append, check)
        except (InterruptedRunError, TerminatedRunError):
            raise
        except ShoalError as error:
            found = Nodes()
            away = [error]
        for error in away:
            view.on_line(str(error))
        machines: list[NodePlan] = []
        self._places = []
        for machine in found.machines:
            places = zip(_places(machine.host, machine.uuids), machine.devices, strict=True)
            kept = {place: device for place, device in places if place not in self._left_out}
            if kept:
                uuids = tuple(uuid for _, uuid, _ in kept)
                machines.append(replace(machine, devices=tuple(kept.values()), uuids=uuids))
            self._places += kept
        devices = tuple(device for machine in machines for device in machine.devices)
        if len(devices) < least or not devices:
            message = (
                f"{lost} It was not started again: {len(devices)} of {_count(len(self._first), 'worker')} are left, "
                f"and {least} are needed. {' '.join(map(str, away))}"
            )
            raise WorkerLostError(message.strip(), details=lost.details, rank=lost.rank) from lost
        self._plan = replace(
            self._plan, machines=tuple(machines), meeting=found.meeting, backend=found.backend if devices[1:] else None
        )
        return devices

    def _usable(self) -> TrainConfig:
        """Return the configuration without machines all of whose workers are left out."""
        hosts = dict.fromkeys(place[0] for place in self._first if place not in self._left_out)
        return replace(self._plan.config, hosts=tuple(hosts))

    def _resize(self, devices: tuple[str, ...]) -> str:
        """Plan with fewer workers, or again with more, and say what that means."""
        before, workers = self._plan, len(devices)
        total = before.config.num_envs_total
        self._plan = replace(
            before,
            devices=devices,
            world_size=workers,
            backend=before.backend if workers > 1 else None,
            num_envs=total // workers if total else before.num_envs,
        )
        who = (
            f"{workers} of {_count(before.world_size, 'worker')}"
            if workers < before.world_size
            else f"{workers} workers"
        )
        now, then = self._plan.num_envs * workers, before.num_envs * before.world_size
        kept = "as before" if now == then else f"{then:,} before"
        return (
            f"Going on with {who}, {self._plan.num_envs:,} environments "
            f"each: {now:,} in all, {kept}. The learning rate is not changed."
        )


def _refuse_when_told(run: RunDir, stop: StopRequests) -> None:
    """Give up when a signal has come."""
    if stop.first is not None:
        raise ended_at_once(stop.first, run)


def _places(host: str, uuids: Sequence[str]) -> list[Place]:
    return [(host, uuid, uuids[:number].count(uuid)) for number, uuid in enumerate(uuids)]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
