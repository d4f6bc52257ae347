"""Collectives as phases of the heartbeat: torch's functions are replaced during the body, and restored."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist

from shoal.heartbeat import Heartbeat
from shoal.learn.collectives import _COLLECTIVES, CollectiveTimer, _Events, _instrumented, instrumented_collectives

if TYPE_CHECKING:
    from collections.abc import Iterator


class RecordedHeartbeat(Heartbeat):
    """Remembers every phase."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        super().__init__()

    def enter(self, phase: str) -> str:
        """Remember it."""
        self.entered.append(phase)
        return super().enter(phase)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def beat() -> RecordedHeartbeat:
    beat = RecordedHeartbeat()
    beat.enter("update")
    beat.entered.clear()
    return beat


@pytest.mark.usefixtures("alone")
def test_each_collective_is_a_phase_and_its_caller_goes_on_where_it_was(beat: RecordedHeartbeat) -> None:
    gathered: list[object] = [None]
    with instrumented_collectives(beat, CollectiveTimer(), "cpu"):
        torch.distributed.all_reduce(torch.ones(2), op=torch.distributed.ReduceOp.SUM)
        dist.broadcast(torch.ones(2), src=0)
        dist.all_gather_object(gathered, "word")
    assert beat.entered == ["collective", "update"] * 3
    assert gathered == ["word"]


def test_the_time_in_collectives_is_counted_and_taken_once(beat: RecordedHeartbeat) -> None:
    timer, before = CollectiveTimer(), time.perf_counter()
    slow = _instrumented(time.sleep, beat, timer, None)
    slow(0.02)
    slow(0.01)
    took = time.perf_counter() - before
    assert 0.03 <= timer.take() <= took
    assert timer.take() == 0


@pytest.mark.usefixtures("alone")
def test_the_time_of_torchs_own_collectives_is_counted(beat: RecordedHeartbeat) -> None:
    timer = CollectiveTimer()
    with instrumented_collectives(beat, timer, "cpu"):
        dist.barrier()
        assert timer.take() > 0


def test_a_collective_that_fails_leaves_its_phase(beat: RecordedHeartbeat) -> None:
    with (
        instrumented_collectives(beat, CollectiveTimer(), "cpu"),
        pytest.raises(ValueError, match="process group has not been initialized"),
    ):
        dist.all_reduce(torch.ones(2))
    assert beat.phase == "collective"


def test_torchs_own_functions_are_put_back(beat: RecordedHeartbeat) -> None:
    before = {name: getattr(dist, name) for name in _COLLECTIVES}
    with instrumented_collectives(beat, CollectiveTimer(), "cpu"):
        assert all(getattr(dist, name) is not function for name, function in before.items())
    with (
        pytest.raises(ValueError, match="not been initialized"),
        instrumented_collectives(beat, CollectiveTimer(), "cpu"),
    ):
        dist.barrier()
    assert {name: getattr(dist, name) for name in _COLLECTIVES} == before


@pytest.mark.gpu(real="work has to queue up")
def test_what_the_device_waits_for_is_told_from_another_thread() -> None:
    events, waiting = _Events("cuda:0"), list[bool]()

    def ask() -> None:
        waiting.append(events.is_waiting())

    def ask_in_thread() -> None:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    ask_in_thread()  # Before any collective.
    torch.cuda._sleep(500_000_000)  # Its own work, a fraction of a second of it.
    events.before.record()
    torch.cuda._sleep(2_000_000_000)  # What stands for the collective.
    events.after.record()
    ask_in_thread()  # The device has not come to the collective.
    events.before.synchronize()
    ask_in_thread()  # It is in the collective.
    torch.cuda.synchronize()
    ask_in_thread()
    assert waiting == [False, False, True, False]


@pytest.mark.gpu(real="its time is measured")
@pytest.mark.usefixtures("alone")
def test_the_time_of_a_collective_on_the_device_is_counted_when_it_is_done(beat: RecordedHeartbeat) -> None:
    timer, events = CollectiveTimer(), _Events("cuda:0")
    slow = _instrumented(torch.cuda._sleep, beat, timer, events)
    slow(2_000_000_000)  # What stands for a collective: the host goes on, the device is busy for a second or so.
    assert timer.take() == 0
    slow(2_000_000_000)
    torch.cuda.synchronize()
    assert timer.take() > 0.5
    assert timer.take() == 0
