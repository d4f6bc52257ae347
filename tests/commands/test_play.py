"""The story of playing: what is refused before a policy is looked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.documented import ROOT
from support.videos import blue, draws, frames_of

from shoal.commands.play import play, viewer_of
from shoal.config import PlayConfig
from shoal.errors import UsageError
from shoal.tasks import registry
from shoal.tasks.cartpole.config import SwingupConfig

if TYPE_CHECKING:
    from pathlib import Path

SHORT = SwingupConfig(episode_length_s=0.2)
"""Episodes of ten steps."""


def config_of(task: str) -> PlayConfig:
    """Random actions in two environments of a task."""
    spec = registry.resolve(task)
    return PlayConfig(
        task=task,
        checkpoint="random",
        episodes=2,
        gpu_ids=("None",),
        env=spec.env,
        agent=spec.agent,
        video_size=(64, 32),
    )


@pytest.mark.parametrize(
    ("flags", "in_terminal", "viewer"),
    [
        ({}, True, "web"),
        ({}, False, None),
        ({"viewer": "native"}, False, "native"),
        ({"headless": True}, True, None),
        ({"episodes": 3}, True, None),
        ({"video_path": "video.mp4"}, True, None),
    ],
)
def test_a_policy_is_shown_in_a_terminal_unless_its_episodes_are_to_be_counted(
    flags: dict[str, Any], in_terminal: bool, viewer: str | None
) -> None:
    assert viewer_of(PlayConfig(task="Cartpole-Swingup", **flags), in_terminal=in_terminal) == viewer


@pytest.mark.parametrize("gpu_ids", [("0", "1"), ("0,1",), ("all",)])
def test_a_policy_plays_on_one_device(gpu_ids: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"One device is needed, but --gpu-ids .* may name several"):
        play(PlayConfig(task="Cartpole-Swingup", gpu_ids=gpu_ids))


@draws
@pytest.mark.parametrize(("length", "frames"), [(None, 10), (4, 4), (25, 25)])
def test_a_video_is_as_long_as_an_episode_or_as_asked(length: int | None, frames: int, tmp_path: Path) -> None:
    silent = replace(config_of("Cartpole-Swingup"), env=SHORT)
    recorded = replace(silent, video_path=str(tmp_path / "video.mp4"), video_length=length)
    episodes = play(recorded)
    pictures, rate = frames_of(tmp_path / "video.mp4")
    assert (pictures.shape, rate) == ((frames, 32, 64, 3), 50)
    assert episodes == replace(play(silent), video=recorded.video_path)


def test_a_video_is_not_written_onto_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "video.mp4"
    folder.mkdir()
    with pytest.raises(UsageError, match=r"--video-path asks for .*, which is a directory: pass a file, such as"):
        play(replace(config_of("Cartpole-Swingup"), video_path=str(folder)))


@draws
def test_a_video_shows_motion(tmp_path: Path) -> None:
    config = replace(config_of("Cartpole-Swingup"), video_path=str(tmp_path / "video.mp4"), video_length=100)
    play(replace(config, video_size=(640, 360)))
    places = [blue(picture)[0] for picture in frames_of(tmp_path / "video.mp4")[0]]
    assert max(places) - min(places) > 5


@draws
def test_a_task_without_a_picture_has_no_video(tmp_path: Path) -> None:
    config = config_of(f"{ROOT}/docs/examples/pendulum.py:Pendulum")
    with pytest.raises(UsageError, match="Pendulum cannot be shown"):
        play(replace(config, video_path=str(tmp_path / "video.mp4")))
    assert list(tmp_path.iterdir()) == []


def test_what_draws_is_looked_for_before_anything_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "bogus")
    with pytest.raises(UsageError, match="MUJOCO_GL is bogus"):
        play(replace(config_of("Cartpole-Swingup"), video_path="video.mp4"))
