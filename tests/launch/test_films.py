"""Trainings that are filmed: the films, the learner that they must not touch, and what is left when they are killed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN, left_in, marked, run, start, wait_until
from support.films import draws, frames_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.commands import Running

pytestmark = [pytest.mark.spawn, draws]

SWINGUP = (*TRAIN, "Cartpole-Swingup", *SMALL, "--logger", "none")
SPAWNED = ("--nproc-per-node", "2")
SHORT = ("--video", "--video-length", "20", "--video-interval", "40", "--video-size", "64", "32")
LONG = ("--video", "--video-length", "200", "--video-interval", "100000", "--max-iterations", "100000")


@pytest.mark.soak
@pytest.mark.slow
def test_a_filmed_training_learns_the_same(tmp_path: Path) -> None:
    words = (*SWINGUP, *SPAWNED, "--max-iterations", "12")
    filmed, silent = run((*words, *SHORT), tmp_path / "filmed"), run(words, tmp_path / "silent")
    assert (filmed.code, silent.code) == (0, 0), filmed.stderr + silent.stderr
    films = {path.name: len(frames_of(path)[0]) for path in (filmed.run / "videos").iterdir()}
    # 96 steps: the last clip is cut short; the second is skipped where the first is still being made.
    assert films.items() <= {"step_0.mp4": 20, "step_40.mp4": 20, "step_80.mp4": 16}.items()
    assert films.keys() >= {"step_0.mp4", "step_80.mp4"} or "is skipped" in filmed.stdout + filmed.stderr
    digests = set(filmed.record["ended"]["digests"].values())
    assert len(digests) == 1
    assert digests == set(silent.record["ended"]["digests"].values())
    assert (filmed.left_processes, filmed.left_files) == ([], [])


def filming(where: Path, words: tuple[str, ...]) -> tuple[Running, Path]:
    """A training whose first film is being made, and where."""
    running = start(words, where)
    running.read_until("[1/")
    assert wait_until(lambda: any(running.log_root.glob("*/*/videos/.*")), timeout=120)
    (videos,) = running.log_root.glob("*/*/videos")
    return running, videos


@pytest.mark.soak
@pytest.mark.slow
def test_a_killed_training_takes_its_film_along(tmp_path: Path) -> None:
    running, videos = filming(tmp_path, (*SWINGUP, *LONG, *SPAWNED))
    running.signal_itself(signal.SIGKILL)
    assert wait_until(lambda: not list(marked(running.mark)), timeout=10)
    assert left_in(running.temporary) == []
    assert list(videos.iterdir()) == []


@pytest.mark.soak
def test_a_training_that_is_told_to_end_waits_for_no_film(tmp_path: Path) -> None:
    running, videos = filming(tmp_path, (*SWINGUP, *LONG))
    running.signal_itself(signal.SIGTERM)
    ended = running.end()
    assert ended.code == 143
    assert ended.seconds_after_signal < 10
    assert (ended.left_processes, ended.left_files) == ([], [])
    assert list(videos.iterdir()) == []
