"""Heartbeats, read back as other processes read them."""

from __future__ import annotations

import math
import os
import platform
import threading
from typing import TYPE_CHECKING

import pytest

from shoal.heartbeat import PHASES, WAITING, Heartbeat, beat_file, read_beat, slowest_phase
from shoal.procfs import started_at

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = 900, 300
"""Startup and steady [s]."""


@pytest.fixture
def beat(tmp_path: Path) -> Heartbeat:
    """The heartbeat of rank 1."""
    return Heartbeat(beat_file(tmp_path, 1), *LIMITS)


def test_a_new_rank_starts_up(tmp_path: Path, beat: Heartbeat) -> None:
    read = read_beat(tmp_path, 1)
    assert read is not None
    assert (read.rank, read.phase, read.iteration, read.limit) == (1, "startup", 0, 900)
    assert (read.pid, read.started, read.host) == (os.getpid(), started_at(os.getpid()), platform.node())
    assert read.place == beat.beat(0).place == "startup"


def test_a_phase_is_there_as_soon_as_it_is_entered(tmp_path: Path, beat: Heartbeat) -> None:
    beat.begin_iteration(7)
    for phase in PHASES:
        beat.enter(phase)
        read = read_beat(tmp_path, 1)
        assert read is not None
        assert (read.phase, read.iteration) == (phase, 7)
        assert read.waits is (phase in WAITING)
        assert read.place == f"{phase} (iteration 7)"


def test_entering_a_phase_returns_the_one_before(beat: Heartbeat) -> None:
    assert beat.enter("update") == "startup"
    assert beat.enter("collective") == "update"


def test_the_limit_is_the_long_one_until_an_iteration_is_done(tmp_path: Path, beat: Heartbeat) -> None:
    limits: list[float] = []
    for iteration in (41, 42, 43):  # A resumed run begins anywhere.
        beat.begin_iteration(iteration)
        beat.enter("rollout")
        read = read_beat(tmp_path, 1)
        assert read is not None
        limits.append(read.limit)
    assert limits == [900, 300, 300]


def test_progress_and_silence_are_told_apart(tmp_path: Path, beat: Heartbeat) -> None:
    beat.progressed -= 100  # Stuck for so long, in a process that still beats.
    before = read_beat(tmp_path, 1)
    beat.pulse()
    beat.enter("rollout")
    beat.progressed -= 100
    beat.pulse()
    after = read_beat(tmp_path, 1)
    assert before is not None
    assert after is not None
    assert after.silent < 50
    assert after.marks == before.marks + 1


def test_a_mark_is_told_with_the_next_pulse(tmp_path: Path, beat: Heartbeat) -> None:
    first = read_beat(tmp_path, 1)
    beat.mark()
    beat.pulse()
    second = read_beat(tmp_path, 1)
    assert first is not None
    assert second is not None
    assert second.marks == first.marks + 1


def test_a_device_that_waits_is_asked_only_when_the_host_is_idle(tmp_path: Path, beat: Heartbeat) -> None:
    asked: list[str] = []
    beat.waits_on_device = lambda: bool(asked.append("") or True)
    beat.enter("update")
    assert not beat.waits()
    assert asked == []
    beat.limit = 0.0
    assert beat.waits()
    beat.pulse(waits=True)
    read = read_beat(tmp_path, 1)
    assert read is not None
    assert (read.phase, read.waits) == ("collective", True)
    beat.enter("rollout")
    read = read_beat(tmp_path, 1)
    assert read is not None
    assert read.phase == "rollout"  # What was true of the phase before is not told of this one.


@pytest.mark.parametrize("content", [None, b"", b"\0" * 64, b"\0" * 256, b"\xff" * 256])
def test_what_makes_no_sense_is_no_heartbeat(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        beat_file(tmp_path, 1).write_bytes(content)
    assert read_beat(tmp_path, 1) is None


def test_a_reader_never_sees_half_a_heartbeat(tmp_path: Path, beat: Heartbeat) -> None:
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            for iteration, phase in enumerate(PHASES, start=1):
                beat.begin_iteration(iteration)
                beat.enter(phase)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        seen = {(read.phase, read.iteration) for _ in range(2000) if (read := read_beat(tmp_path, 1)) is not None}
    finally:
        ended.set()
        thread.join()
    assert seen <= {("startup", 0), *((phase, number) for number, phase in enumerate(PHASES, start=1))}
    assert len(seen) > 1


def test_a_place_that_cannot_be_written_costs_the_heartbeat_and_nothing_else(tmp_path: Path) -> None:
    beat = Heartbeat(tmp_path / "missing" / "rank_00001.beat", *LIMITS)
    beat.enter("rollout")
    beat.pulse()
    beat.close()
    assert beat.beat(0).place == "rollout"


def test_no_limit_is_asked_for_by_0() -> None:
    beat = Heartbeat(None, 0, 5)
    assert (beat.limit, beat.least_limit) == (math.inf, 5)


def test_a_place_before_the_first_iteration_is_a_phase_alone() -> None:
    beat = Heartbeat()
    beat.enter("compile")
    assert beat.beat(0).place == "compile"


@pytest.mark.parametrize(
    ("phases", "slowest"),
    [
        (["rollout", "compile", "queue"], "compile"),
        (["collective", "update"], "update"),
        (["collective", "collective"], "collective"),
        (["queue", "startup"], "startup"),
    ],
)
def test_the_slowest_phase_is_the_earliest_that_does_not_wait_for_others(phases: list[str], slowest: str) -> None:
    assert slowest_phase(phases) == slowest


def test_a_heartbeat_reports_each_phase_that_it_enters() -> None:
    beat, phases = Heartbeat(), []
    beat.on_enter = phases.append
    beat.enter("compile")
    beat.enter("rollout")
    assert phases == ["compile", "rollout"]
