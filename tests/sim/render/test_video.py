"""Trajectories become videos: as large, as long and as fast as they should be, and what moves is where it should be."""

from __future__ import annotations

import math
import os
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import mujoco
import numpy as np
import pytest
from support.commands import wait_until
from support.mounts import tiny_disk
from support.videos import blue, draws, frames_of, orange

from shoal.errors import ShoalError
from shoal.sim.render.marks import Arrow, Ghost, Sphere
from shoal.sim.render.trajectory import Trajectory, save_scene
from shoal.sim.render.video import VideoProcess, make_video, unfinished
from shoal.tasks.cartpole import model
from shoal.tasks.cartpole.config import SwingupConfig

if TYPE_CHECKING:
    from pathlib import Path

WIDTH, HEIGHT = 320, 180
CONFIG = SwingupConfig()


def clip_of(positions: np.ndarray, scene: mujoco.MjModel | None = None, step_dt: float = 0.02) -> Trajectory:
    """A trajectory of the cart-pole, or of another scene."""
    saved = save_scene(scene or model.scene(CONFIG))
    return Trajectory(scene=saved, positions=positions, step_dt=step_dt, size=(WIDTH, HEIGHT))


def still(steps: int) -> Trajectory:
    """A trajectory in which nothing moves."""
    return clip_of(np.zeros((steps, 2)))


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The cart goes from left to right, with its pole up; in the second half the pole hangs."""
    places = np.linspace(-2.0, 2.0, 20)
    angles = np.where(places < 0, 0.0, math.pi)
    target = tmp_path_factory.mktemp("videos") / "not" / "there" / "cartpole.mp4"
    make_video(clip_of(np.stack([places, angles], axis=1)), target, "osmesa")
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    frames, rate = frames_of(target)
    assert rate == 50
    return frames


@draws
def test_each_step_is_a_frame_of_the_size_that_was_asked_for(video: np.ndarray) -> None:
    assert video.shape == (20, HEIGHT, WIDTH, 3)


@draws
def test_the_cart_is_where_its_position_says(video: np.ndarray) -> None:
    # The camera stands 2.2 half rails away and opens 45 degrees upwards and downwards together.
    pixels_a_metre = HEIGHT / 2 / (2.2 * CONFIG.rail_half_length * math.tan(math.radians(22.5)))
    seen = [blue(picture) for picture in video]
    meant = WIDTH / 2 + np.linspace(-2.0, 2.0, 20) * pixels_a_metre
    # The cart's front is 8 cm nearer to the camera, which moves its edges by 1.5 % of 82 pixels.
    assert [x for x, _ in seen] == pytest.approx(list(meant), abs=3)
    assert [y for _, y in seen] == pytest.approx([HEIGHT / 2] * 20, abs=3)


@draws
def test_the_sky_is_light(video: np.ndarray) -> None:
    assert video[:, :10].min() > 150


@draws
def test_marks_are_drawn_in_the_step_that_they_belong_to(tmp_path: Path) -> None:
    marks = [[], [Arrow([1.0, 0, 1], [0.8, 0, 0])], [Sphere([-1.0, 0, 1], 0.2)], [Ghost([-2.0, 0.0])]]
    make_video(replace(clip_of(np.zeros((4, 2))), marks=marks), tmp_path / "marks.mp4", "osmesa")
    frames, _ = frames_of(tmp_path / "marks.mp4")
    red, green, other = frames.astype(int).transpose(3, 0, 1, 2)
    columns = [np.flatnonzero((each > 20).any(axis=0)) for each in green - np.maximum(red, other)]
    assert len(columns[0]) == 0
    assert columns[1].min() > WIDTH / 2
    assert columns[2].max() < WIDTH / 2
    assert columns[3].max() < WIDTH / 2


@draws
def test_up_is_up(video: np.ndarray) -> None:
    heights = [orange(picture)[1] for picture in video]
    assert max(heights[:10]) < HEIGHT / 2 - 10
    assert min(heights[10:]) > HEIGHT / 2 + 10


@draws
def test_a_model_without_a_camera_of_its_own_is_followed(tmp_path: Path) -> None:
    ball = """<mujoco><worldbody><light pos="0 0 9" dir="0 0 -1" type="directional"/><geom type="plane" size="0 0 .1"/>
      <body pos="0 0 .5"><freejoint/><geom type="sphere" size=".3" rgba=".1 .2 .9 1"/></body></worldbody></mujoco>"""
    positions = np.zeros((5, 7))
    positions[:, 0] = np.linspace(0, 100, 5)
    positions[:, 2:4] = 0.5, 1.0
    make_video(clip_of(positions, mujoco.MjModel.from_xml_string(ball)), tmp_path / "ball.mp4", "osmesa")
    frames, _ = frames_of(tmp_path / "ball.mp4")
    assert [blue(picture)[0] for picture in frames] == pytest.approx([WIDTH / 2] * 5, abs=3)


@draws
def test_a_model_is_followed_up_a_hill_and_not_up_in_the_air(tmp_path: Path) -> None:
    hill = """<mujoco><asset><hfield name="hill" nrow="2" ncol="101" size="100 5 10 1"/></asset><worldbody>
      <light pos="0 0 99" dir="0 0 -1" type="directional"/><geom type="hfield" hfield="hill"/>
      <body pos="0 0 .5"><freejoint/><geom type="sphere" size=".3" rgba=".1 .2 .9 1"/></body></worldbody>
      <statistic center="0 0 .5" extent="2"/></mujoco>"""
    scene = mujoco.MjModel.from_xml_string(hill)
    scene.hfield_data[:] = np.tile(np.linspace(0.0, 1.0, 101), 2)  # From 0 to 10 m, over 200 m.
    positions = np.zeros((30, 7))
    positions[:, 0] = 0.2 * np.arange(-15, 15)
    positions[:, 2] = (positions[:, 0] + 100.0) * 0.05 + 0.5
    positions[29, 2] += 0.5
    positions[:, 3] = 1.0
    make_video(clip_of(positions, scene), tmp_path / "ball.mp4", "osmesa")
    frames, _ = frames_of(tmp_path / "ball.mp4")
    heights = [blue(picture)[1] for picture in frames]
    assert heights[:29] == pytest.approx([HEIGHT / 2] * 29, abs=10)  # 1 cm with each picture, so it is 9 cm behind.
    assert heights[29] < heights[28] - 20


@pytest.mark.parametrize(
    ("step_dt", "stride", "rate"),
    [(0.1, 1, 10), (0.04, 1, 25), (0.02, 1, 50), (1 / 60, 1, 60), (0.01, 2, 50), (0.005, 4, 50), (0.002, 9, 500 / 9)],
)
def test_a_video_is_in_real_time_and_no_faster_than_a_screen(step_dt: float, stride: int, rate: float) -> None:
    trajectory = clip_of(np.zeros((1, 2)), step_dt=step_dt)
    assert trajectory.stride == stride
    assert trajectory.frames_a_second == pytest.approx(rate)


@draws
def test_steps_that_are_too_many_are_left_out(tmp_path: Path) -> None:
    make_video(clip_of(np.zeros((21, 2)), step_dt=0.01), tmp_path / "video.mp4", "osmesa")
    frames, rate = frames_of(tmp_path / "video.mp4")
    assert (len(frames), rate) == (11, 50)


def test_a_renderer_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=r"video\.mp4 could not be made \(RuntimeError: .*MUJOCO_GL: bogus\)\."):
        make_video(still(1), tmp_path / "video.mp4", "bogus")
    assert list(tmp_path.iterdir()) == []


@draws
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShoalError, match=r"could not be made \(\w+Error: .*/file"):
        make_video(still(1), tmp_path / "file" / "video.mp4", "osmesa")


@draws
def test_a_video_that_does_not_fit_on_the_disk_is_no_video(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=4k") as disk:
        (disk / "other").write_bytes(bytes(4096))
        with pytest.raises(ShoalError, match=r"could not be made \(OSError: ffmpeg failed \(.*No space left on device"):
            make_video(still(5), disk / "video.mp4", "osmesa")
        assert [each.name for each in disk.iterdir()] == ["other"]


@draws
def test_a_video_is_not_encoded_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "video.mp4"
    unfinished(target).symlink_to("/dev/full")
    with pytest.raises(ShoalError, match=r"could not be made \(UnsafePathError: .*video\.mp4\.part is a link"):
        make_video(still(5), target, "osmesa")
    assert list(tmp_path.iterdir()) == []


@draws
@pytest.mark.spawn
def test_a_video_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    process = VideoProcess(still(100_000), tmp_path / "video.mp4", "osmesa", nice=19)
    try:
        assert wait_until(unfinished(process.target).exists, timeout=60)
        assert os.getpriority(os.PRIO_PROCESS, process._process.pid) == 19
        assert not process.is_done
    finally:
        process.end()
    assert list(tmp_path.iterdir()) == []


@draws
@pytest.mark.spawn
def test_a_video_ends_with_whoever_has_started_it(tmp_path: Path) -> None:
    started: list[VideoProcess] = []
    done = threading.Event()

    def work() -> None:
        started.append(VideoProcess(still(100_000), tmp_path / "video.mp4", "osmesa"))
        done.wait()

    parent = threading.Thread(target=work)
    parent.start()
    try:
        assert wait_until(unfinished(tmp_path / "video.mp4").exists, timeout=60)
        done.set()
        parent.join()
        assert wait_until(lambda: started[0].is_done, timeout=10)
        assert list(tmp_path.iterdir()) == []
    finally:
        done.set()
        parent.join()
        started[0].end()


@draws
@pytest.mark.spawn
def test_an_interrupt_of_the_terminal_is_not_for_it(tmp_path: Path) -> None:
    process = VideoProcess(still(1), tmp_path / "video.mp4", "osmesa")
    try:
        assert os.getpgid(process._process.pid) != os.getpgid(0)
        assert os.getsid(process._process.pid) == os.getsid(0)
    finally:
        process.end()
    assert process._process.returncode in {0, 1, -signal.SIGTERM}
