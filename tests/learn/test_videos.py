"""Videos of a training: which steps, one at a time, and never at the cost of the training."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from support.commands import wait_until
from support.counting_task import CountingConfig, CountingTask
from support.learners import ALONE
from support.videos import draws, frames_of

from shoal.config import TrainConfig
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.learn.groups import World
from shoal.learn.videos import recording
from shoal.plan.rundir import RunDir
from shoal.tasks.cartpole import model
from shoal.tasks.cartpole.config import SwingupConfig
from shoal.tasks.cartpole.task import Swingup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONFIG = TrainConfig(task="Cartpole-Swingup", video=True, video_length=3, video_interval=10)
SCENE = model.scene  # MuJoCo is imported before a test says what it is to draw with.


@pytest.fixture
def videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the videos of a run are, which are small."""
    monkeypatch.setattr("shoal.learn.videos._SIZE", (64, 32))
    (tmp_path / "videos").mkdir()
    return tmp_path / "videos"


@contextmanager
def recorded(
    videos: Path, config: TrainConfig = CONFIG, *, world: World = ALONE, hurry: bool = False
) -> Iterator[Callable[[int], None] | None]:
    assert RunDir(videos.parent).videos_dir == videos
    env = WarpVecEnv(Swingup(SwingupConfig(), num_envs=2, device="cpu", seed=0))
    with recording(env, config, RunDir(videos.parent), world, hurry=lambda: hurry) as on_step:
        yield on_step


def names_in(videos: Path) -> list[str]:
    return sorted(path.name for path in videos.iterdir())


def steps(on_step: Callable[[int], None] | None, first: int, last: int) -> None:
    """Tell of the steps from `first` up to `last`."""
    assert on_step is not None
    for step in range(first, last + 1):
        on_step(step)


@draws
def test_clips_begin_at_multiples_of_the_interval(videos: Path) -> None:
    with recorded(videos) as on_step:
        steps(on_step, 5, 12)  # A run that goes on in the middle of an interval.
        assert wait_until((videos / "step_10.mp4").exists, timeout=60)
        steps(on_step, 13, 20)
    # The last trajectory was cut short by the end.
    assert names_in(videos) == ["step_10.mp4", "step_20.mp4"]
    assert [len(frames_of(videos / name)[0]) for name in names_in(videos)] == [3, 1]


@draws
def test_a_clip_is_skipped_while_the_last_one_is_drawn(videos: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="shoal")
    with recorded(videos) as on_step:
        steps(on_step, 0, 15)  # No video is made within microseconds.
    assert names_in(videos) == ["step_0.mp4"]
    messages = [record.getMessage() for record in caplog.records if " is skipped" in record.getMessage()]
    assert messages == ["step_10.mp4 is skipped: step_0.mp4 is still being made."]


def one_warning(caplog: pytest.LogCaptureFixture) -> str:
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return warning


def test_a_broken_renderer_costs_one_warning(
    videos: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "bogus")
    with recorded(videos) as on_step:
        steps(on_step, 0, 3)
        assert wait_until(lambda: call(on_step, 4) and bool(caplog.records), timeout=60)
        steps(on_step, 10, 12)
    assert "RuntimeError: invalid value for environment variable MUJOCO_GL: bogus" in one_warning(caplog)
    assert names_in(videos) == []


def call(on_step: Callable[[int], None] | None, step: int) -> bool:
    assert on_step is not None
    on_step(step)
    return True


@draws
def test_a_place_that_cannot_be_written_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "videos").touch()
    with recorded(tmp_path / "videos") as on_step:
        steps(on_step, 0, 3)
    assert "Error: " in one_warning(caplog)
    assert str(tmp_path / "videos") in one_warning(caplog)


def test_a_scene_that_fails_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Misdrawn(Swingup):
        def scene(self) -> None:
            message = "no such mesh"
            raise FileNotFoundError(message)

    env = WarpVecEnv(Misdrawn(SwingupConfig(), num_envs=1, device="cpu", seed=0))
    with recording(env, CONFIG, RunDir(tmp_path), ALONE, hurry=lambda: False) as on_step:
        assert on_step is None
    assert one_warning(caplog) == "A video could not be made (FileNotFoundError: no such mesh); training goes on."


def test_a_task_without_a_scene_is_refused(tmp_path: Path) -> None:
    env = WarpVecEnv(CountingTask(CountingConfig(), num_envs=1, device="cpu", seed=0))
    with (
        pytest.raises(UsageError, match="cannot be shown"),
        recording(env, CONFIG, RunDir(tmp_path), ALONE, hurry=bool),
    ):
        pass


def test_only_rank_0_videos_and_only_when_asked(videos: Path) -> None:
    with recorded(videos, world=World(rank=1, local_rank=1, size=2)) as on_step:
        assert on_step is None
    with recorded(videos, TrainConfig(task="Cartpole-Swingup")) as on_step:
        assert on_step is None


def test_a_run_that_is_ended_waits_for_no_video(videos: Path) -> None:
    with recorded(videos, hurry=True) as on_step:
        steps(on_step, 0, 2)
    assert names_in(videos) == []


def test_what_a_killed_video_left_is_swept(videos: Path) -> None:
    (videos / ".step_0.mp4.part").touch()
    with recorded(videos):
        assert names_in(videos) == [".step_0.mp4.part"]  # A resume that fails would leave it.
    assert names_in(videos) == []
