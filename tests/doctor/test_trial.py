"""Trials with real ranks, of which one is stopped or killed: an end in bounded time, and the right rank named."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psutil
import pytest
from support.commands import wait_until

from shoal.doctor.children import Child
from shoal.doctor.steps import JOINING, READY, TINY, grouping, reducing
from shoal.doctor.trial import Limits, Ranks, Trial, _Watch, run_trial
from shoal.procfs import is_stopped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

THREE = Ranks(devices=("cpu",) * 3, backend="gloo", sizes=(2, 3))
PATIENCE_S = 3.0


def trial_with(number: signal.Signals, monkeypatch: pytest.MonkeyPatch, where: Path) -> tuple[Trial, float]:
    """A trial of three ranks, of which the last gets a signal when all are about to join; and how long it took then."""
    monkeypatch.setenv("TMPDIR", str(where))
    monkeypatch.setattr("tempfile.tempdir", None)
    began = 0.0

    def disturb(pids: Sequence[int]) -> None:
        nonlocal began
        os.kill(pids[2], number)
        began = time.monotonic()

    here_before = psutil.Process().children(recursive=True)  # such as multiprocessing's tracker
    trial = run_trial(THREE, Limits(progress_s=PATIENCE_S), on_ready=disturb)
    assert set(psutil.Process().children(recursive=True)) <= set(here_before)
    assert list(where.iterdir()) == []
    return trial, time.monotonic() - began


@pytest.mark.spawn
@pytest.mark.slow
def test_a_stopped_rank_is_found_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trial, seconds = trial_with(signal.SIGSTOP, monkeypatch, tmp_path)
    assert trial.failure == "rank 2 of 3 (stopped by a signal) made no progress for 3 s while about to join the others"
    assert not trial.killed
    assert PATIENCE_S <= seconds < PATIENCE_S + 15


@pytest.mark.spawn
@pytest.mark.slow
def test_a_killed_rank_is_named_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trial, seconds = trial_with(signal.SIGKILL, monkeypatch, tmp_path)
    assert trial.failure == "rank 2 of 3 failed while about to join the others (killed by SIGKILL)"
    assert trial.killed
    assert seconds < 10


@pytest.fixture
def sleepers() -> Iterator[list[Child]]:
    """Three processes that say nothing, as ranks that hang."""
    with ExitStack() as stack:
        children: list[Child] = []
        for _ in THREE.devices:
            process = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            child = Child(process, stack.enter_context(tempfile.TemporaryFile("w+")))
            stack.callback(child.end)
            children.append(child)
        yield children


@pytest.mark.parametrize(
    ("steps", "stopped", "said"),
    [
        (
            [JOINING, JOINING, JOINING],
            1,
            "rank 1 of 3 (stopped by a signal) made no progress for 3 s while joining the others",
        ),
        ([JOINING, JOINING, READY], None, "rank 2 of 3 made no progress for 3 s while about to join the others"),
        # The third waits for its group, and has come further than the two that are still in theirs.
        (
            [reducing(TINY, 2), reducing(TINY, 2), grouping(3)],
            None,
            "ranks 0, 1 of 3 made no progress for 3 s while in an all_reduce of 4 bytes among 2",
        ),
        ([], None, "ranks 0, 1, 2 of 3 made no progress for 3 s while starting"),
    ],
)
def test_who_lags_behind_is_told_from_the_steps(
    sleepers: list[Child], steps: list[str], stopped: int | None, said: str
) -> None:
    watch = _Watch(sleepers, THREE.sizes, Limits())
    for done, step in zip(watch.steps, steps, strict=False):
        done.append(step)
    if stopped is not None:
        sleepers[stopped].process.send_signal(signal.SIGSTOP)
        assert wait_until(lambda: is_stopped(sleepers[stopped].process.pid), timeout=10)
    assert watch._who_hangs(3) == said
    watch.selector.close()


@pytest.mark.spawn
@pytest.mark.gpu(count=2, real="NCCL itself is tried")
def test_two_gpus_talk_through_nccl() -> None:
    trial = run_trial(Ranks(devices=("cuda:0", "cuda:1"), backend="nccl", sizes=(2,)), Limits(progress_s=60))
    assert trial.failure is None
    assert len(trial.timings) == 2
