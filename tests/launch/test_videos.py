"""Trainings with videos: the files, the learner that they must not touch, and what is left when they are killed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN, left_in, marked, run, start, wait_until
from support.videos import draws, frames_of

if TYPE_CHECKING:
    from pathlib import Path

    from support.commands import Running

pytestmark = [pytest.mark.spawn, draws]

SWINGUP = (*TRAIN, "Cartpole-Swingup", *SMALL, "--logger", "none")
SPAWNED = ("--nproc-per-node", "2")
SHORT = ("--video", "--video-length", "20", "--video-interval", "40")
LONG = ("--video", "--video-length", "200", "--video-interval", "100000", "--max-iterations", "100000")


@pytest.mark.soak
@pytest.mark.slow
def test_a_training_with_videos_learns_the_same(tmp_path: Path) -> None:
    words = (*SWINGUP, *SPAWNED, "--max-iterations", "12")
    recorded, silent = run((*words, *SHORT), tmp_path / "recorded"), run(words, tmp_path / "silent")
    assert (recorded.code, silent.code) == (0, 0), recorded.stderr + silent.stderr
    videos = {path.name: len(frames_of(path)[0]) for path in (recorded.run / "videos").iterdir()}
    # 96 steps: the last clip is cut short; the second is skipped where the first is still being made.
    assert videos.items() <= {"step_0.mp4": 20, "step_40.mp4": 20, "step_80.mp4": 16}.items()
    assert videos.keys() >= {"step_0.mp4", "step_80.mp4"} or "is skipped" in recorded.stdout + recorded.stderr
    digests = set(recorded.record["ended"]["digests"].values())
    assert len(digests) == 1
    assert digests == set(silent.record["ended"]["digests"].values())
    assert (recorded.left_processes, recorded.left_files) == ([], [])


def recording(where: Path, words: tuple[str, ...]) -> tuple[Running, Path]:
    """A training whose first video is being made, and where."""
    running = start(words, where)
    running.read_until("[1/")
    assert wait_until(lambda: any(running.log_root.glob("*/*/videos/.*")), timeout=120)
    (videos,) = running.log_root.glob("*/*/videos")
    return running, videos


@pytest.mark.soak
@pytest.mark.slow
def test_a_killed_training_takes_its_video_along(tmp_path: Path) -> None:
    running, videos = recording(tmp_path, (*SWINGUP, *LONG, *SPAWNED))
    running.signal_itself(signal.SIGKILL)
    assert wait_until(lambda: not list(marked(running.mark)), timeout=10)
    assert left_in(running.temporary) == []
    assert list(videos.iterdir()) == []


@pytest.mark.soak
def test_a_training_that_is_told_to_end_waits_for_no_video(tmp_path: Path) -> None:
    running, videos = recording(tmp_path, (*SWINGUP, *LONG))
    running.signal_itself(signal.SIGTERM)
    ended = running.end()
    assert ended.code == 143
    assert ended.seconds_after_signal < 10
    assert (ended.left_processes, ended.left_files) == ([], [])
    assert list(videos.iterdir()) == []
