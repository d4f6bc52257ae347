"""What a policy observes is in its videos and on its page, pixel by pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mujoco
import numpy as np
import pytest
import torch
import viser
from support.videos import draws, frames_of

from shoal import mdp
from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.evaluation import UntrainedPolicy
from shoal.sim.render.images import Images, enlarged
from shoal.sim.render.recorder import Recorder
from shoal.sim.render.video import make_video
from shoal.tasks.cartpole.mujoco_task import SwingupDepth
from shoal.viewer.controls import ControlPanel
from shoal.viewer.playback import Playback

if TYPE_CHECKING:
    from pathlib import Path

SIZE = (640, 360)


@pytest.fixture(scope="module")
def env() -> WarpVecEnv:
    """Two cart-poles that are observed by the last three images of 48 x 24 pixels."""
    config = SwingupDepth.config.change(engine="mujoco")
    return WarpVecEnv(SwingupDepth(config, num_envs=2, device="cpu", seed=0))


def test_each_pixel_is_a_square_and_each_channel_beside_the_one_before() -> None:
    image = np.array([[[0.0, 0.2], [0.4, 0.6]], [[0.8, 1.0], [1.2, -1.0]]])
    seen = enlarged(Images(torch.zeros(0), [(0, 0, 0), (1, 1, 1)]).drawn(image), (13, 9))
    assert seen.shape == (6, 12, 3)
    assert (seen == seen[:, :, :1]).all()
    wanted = [[0, 51, 204, 255], [102, 153, 255, 0]]
    np.testing.assert_array_equal(seen[..., 0], np.kron(wanted, np.ones((3, 3))))


def test_pixels_of_an_image_that_is_too_large_are_left_out() -> None:
    image = np.arange(256, dtype=np.uint8)[None, :, None].repeat(4, axis=0).repeat(3, axis=2)
    seen = enlarged(image, (64, 64))
    assert seen.shape == (1, 64, 3)
    np.testing.assert_array_equal(seen[0, :, 0], np.arange(0, 256, 4))


BALL = """<mujoco><visual><headlight specular="0 0 0"/></visual><worldbody><body><joint name="up" type="slide"/>
  <geom name="ball" size="0.3" pos="1 0 0" rgba="0.2 0.5 1 1"/></body>
  <camera name="eye" quat="0.5 0.5 -0.5 -0.5"/>
  </worldbody><actuator><motor name="push" joint="up"/></actuator></mujoco>"""


class Seeing(mdp.TermsTask[mdp.TermsConfig]):
    """A ball before a camera."""

    config = mdp.task_config(
        mdp.TermsConfig,
        actions={"push": mdp.Action("joint_effort", actuators="push", scale=1.0)},
        sensors={"eye": mdp.Camera(camera_name="eye", width=5, height=3)},
        observations={
            "all": {
                "depth": mdp.Obs("camera_depth", sensor_name="eye", cutoff_distance=2.0, history_length=3),
                "rgb": mdp.Obs("camera_rgb", sensor_name="eye", history_length=2),
                "mask": mdp.Obs("camera_mask", sensor_name="eye", geoms="ball"),
            },
            "depth": {"depth": mdp.Obs("camera_depth", sensor_name="eye", cutoff_distance=2.0, history_length=3)},
        },
        rewards={"alive": mdp.Reward("is_alive", weight=1.0)},
        engine="mujoco",
    )

    @classmethod
    def build_spec(cls, config: mdp.TermsConfig) -> mujoco.MjSpec:  # noqa: ARG003
        return mujoco.MjSpec.from_string(BALL)


def test_colours_are_one_tile_in_colour_and_three_depths_are_three_grey_tiles() -> None:
    env = WarpVecEnv(Seeing(Seeing.config, num_envs=1, device="cpu", seed=0))
    recorder, observed = Recorder(env.picture(), 1, SIZE), env.get_observations()
    recorder.take()
    for images, name in zip(recorder.cut().images, ("all", "depth"), strict=True):
        values = np.rint(observed[name][0].numpy() * 255)
        tiles = [values[channel, ..., None].repeat(3, axis=-1) for channel in (0, 1, 2, -1)]
        colours = [np.moveaxis(values[first : first + 3], 0, -1) for first in (3, 6)]
        tiles[3:] = [*colours, tiles[3]] if name == "all" else []
        np.testing.assert_array_equal(images[0], np.concatenate(tiles, axis=1))
    described = env.deployment()["observations"]["all"]
    assert [term["shape"] for term in described] == [[3, 3, 5], [6, 3, 5], [1, 3, 5]]
    red, green, blue = observed["all"][0, 6:9, 1, 2]
    assert 0.0 < red < green < blue


@draws
def test_a_video_shows_what_the_policy_observed_in_each_step(env: WarpVecEnv, tmp_path: Path) -> None:
    recorder, observed = Recorder(env.picture(), 4, SIZE), []
    env.reset(seed=1)
    for _ in range(4):
        observed.append(env.step(torch.ones(2, 1))[0]["policy"][0].numpy().copy())
        recorder.take()
    trajectory = recorder.cut()
    grey = np.rint(np.concatenate(np.array(observed).swapaxes(0, 1), axis=2) * 255)  # The last channel on the right.
    np.testing.assert_array_equal(trajectory.images[0], grey[..., None].repeat(3, axis=3))
    make_video(trajectory, tmp_path / "video.mp4", "osmesa")
    frames, _ = frames_of(tmp_path / "video.mp4")
    corners = frames[:, : 2 * 24, : 2 * 3 * 48].astype(float)  # Not more than half as wide as the frame.
    for corner, image in zip(corners, grey, strict=True):
        wanted = np.kron(image, np.ones((2, 2)))[..., None]
        assert wanted.std() > 5
        assert np.abs(corner - wanted).mean() < 3.0  # The encoder rounds.


def test_the_page_shows_what_the_policy_observes_of_the_selected_environment(env: WarpVecEnv) -> None:
    playback = Playback(env, UntrainedPolicy((2, 1), "cpu", spread=0.0))
    server = viser.ViserServer("127.0.0.1", port=0, verbose=False)
    try:
        panel = ControlPanel(
            server.gui,
            num_envs=2,
            commands={},
            rewards=playback.rewards.names,
            metrics=(),
            limits=None,
            scans=False,
            seed=1,
            follow=False,
            images=playback.images(0),
        )
        for _ in range(3):
            playback.step()
        panel.set_images(playback.images(1))
        shown, image = panel._images["policy"].image, env.get_observations()["policy"][1]
        wanted = torch.cat([*image], dim=1).mul(255).round().to(torch.uint8).numpy()
        np.testing.assert_array_equal(shown[1::3, 1::3, 0], wanted)
    finally:
        server.stop()
