"""Starting again after a loss: how often, after which pause, from which checkpoint, and with which workers.

A training that loses a worker is worth another try from its newest good checkpoint, in its own run directory. Only
tries without progress are counted: a newer checkpoint makes all tries available again.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, WorkerLostError
from shoal.launch.signals import ended_at_once
from shoal.plan.checkpoints import newest_good
from shoal.plan.devices import visible_gpus
from shoal.plan.job import Start
from shoal.plan.machines import Machines

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.config import TrainConfig
    from shoal.launch.signals import StopRequests
    from shoal.launch.view import View
    from shoal.plan.rundir import RunDir
    from shoal.plan.training import TrainPlan
    from shoal.plan.visibility import VisibleGpus

    Survey = Callable[[TrainConfig, Callable[[ShoalError], None], Callable[[], None]], Machines]

LONGEST_PAUSE_S = 60.0
_POLL_S = 0.1


class Restarts:
    """The losses of one command, and what follows from each."""

    def __init__(
        self,
        plan: TrainPlan,
        look: Callable[[], VisibleGpus] = visible_gpus,
        survey: Survey | None = None,
    ) -> None:
        """Remember which GPUs the first launch has.

        Args:
            plan: The first launch.
            look: Tells which GPUs are visible.
            survey: With `--hosts`, finds out about the machines of a configuration, calls its second argument with each
                that is away, and its third now and then.
        """
        self._plan = plan
        self._look = look
        self._survey = survey if plan.machines else None
        self._left_out: set[tuple[str, int]] = set()  # Workers there, by local rank, that were lost twice.
        on_gpus = plan.config.max_restarts and plan.devices[0] != "cpu" and not plan.machines
        self._uuids = {f"cuda:{gpu.index}": gpu.uuid for gpu in look()} if on_gpus else {}
        self._fruitless = 0  # Restarts in a row that have brought no newer checkpoint.
        self._lost_before: int | None = None  # The rank that was lost without progress the time before.
        self._first = plan
        self._all = plan.world_size
        self._launches = self._paused = 1

    def after(self, lost: WorkerLostError, run: RunDir, view: View, stop: StopRequests) -> TrainPlan:
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
        devices = () if self._survey else self._devices_left(lost)
        suspect = lost.rank if lost.rank is not None and lost.rank == self._lost_before else None
        self._fruitless += 1
        self._launches += 1
        self._lost_before = lost.rank
        origin = f"iteration {iteration}" if checkpoint else "the beginning: there is no checkpoint yet"
        tries = f"try {self._fruitless} of {limit} without a newer checkpoint"
        again = f"Starting again in {self.pause_s:.0f} s from {origin} ({tries})."
        for line in (*lost.details.splitlines(), str(lost), *passed_over, again):
            view.on_line(line)
        if self._survey:
            self.pause(run, stop)  # Before the machines are looked at, not after: one may be starting again.
            devices = self._machines_left(self._survey, lost, suspect, view, partial(_refuse_when_told, run, stop))
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

    def _devices_left(self, lost: WorkerLostError) -> tuple[str, ...]:
        """Return the devices of the workers of the next launch.

        A GPU that is gone takes its workers along. A rank that was lost twice in a row without progress gives up its
        place, as far as `--min-workers` allows: its GPU, its share of the memory or its share of the work is at fault.

        Raises:
            WorkerLostError: Too few are left.
        """
        asked = self._plan.devices
        least = self._plan.config.min_workers or len(asked)
        places = {rank: device for rank, device in enumerate(self._where_now()) if device is not None}
        if len(places) < least:
            message = (
                f"{lost} It was not started again: the GPUs of {len(places)} of {_count(len(asked), 'worker')} are "
                f"left, and --min-workers asks for {least}."
            )
            raise WorkerLostError(message, details=lost.details, rank=lost.rank) from lost
        if lost.rank is not None and lost.rank == self._lost_before and len(places) > least:
            places.pop(lost.rank, None)
        return tuple(places.values())

    def _machines_left(
        self,
        survey: Survey,
        lost: WorkerLostError,
        suspect: int | None,
        view: View,
        check: Callable[[], None],
    ) -> tuple[str, ...]:
        """Plan with the machines that are there now, and return the devices of their workers.

        A machine that is away takes its workers along, and gets them back when it has come back until a later restart.
        A rank that was lost twice in a row without progress gives up its place, as far as `--min-workers` allows.

        Raises:
            WorkerLostError: Too few are left.
        """
        least = self._plan.config.min_workers or self._all
        if suspect is not None and self._plan.world_size > least:
            self._left_out.add(self._places()[suspect])
        away: list[ShoalError] = []
        try:
            found = survey(self._usable(), away.append, check)
        except (InterruptedRunError, TerminatedRunError):
            raise
        except ShoalError as error:
            found = Machines()
            away = [error]
        for error in away:
            view.on_line(str(error))
        machines = [
            replace(
                machine,
                devices=tuple(
                    device
                    for place, device in enumerate(machine.devices)
                    if (machine.host, place) not in self._left_out
                ),
            )
            for machine in found.machines
        ]
        devices = tuple(device for machine in machines for device in machine.devices)
        if len(devices) < least or not devices:
            message = (
                f"{lost} It was not started again: {len(devices)} of {_count(self._all, 'worker')} are left, and "
                f"{least} are needed. {' '.join(map(str, away))}"
            )
            raise WorkerLostError(message.strip(), details=lost.details, rank=lost.rank) from lost
        self._plan = replace(
            self._plan, machines=tuple(machines), meeting=found.meeting, backend=found.backend if devices[1:] else None
        )
        return devices

    def _places(self) -> list[tuple[str, int]]:
        """Return host and local rank of each worker of the last launch, as far as none before it was left out."""
        return [
            (machine.host, place)
            for machine in self._plan.machines
            for place in itertools.islice(
                (each for each in itertools.count() if (machine.host, each) not in self._left_out), len(machine.devices)
            )
        ]

    def _usable(self) -> TrainConfig:
        """Return the configuration without machines all of whose workers are left out."""
        full = {machine.host: len(machine.devices) for machine in self._first.machines}
        hosts = [host for host, size in full.items() if any((host, each) not in self._left_out for each in range(size))]
        return replace(self._plan.config, hosts=tuple(hosts))

    def _where_now(self) -> list[str | None]:
        """Return the device of each worker of the last launch as it is called now; None where it is gone."""
        if not self._uuids:
            return list(self._plan.devices)
        now = {gpu.uuid: f"cuda:{gpu.index}" for gpu in self._look()}
        where = [now.get(self._uuids[device]) for device in self._plan.devices]
        self._uuids = {device: uuid for uuid, device in now.items()}
        return where

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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
