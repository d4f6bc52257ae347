"""What a policy observes is in its videos and on its page, pixel by pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import viser
from support.videos import draws, frames_of

from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.evaluation import UntrainedPolicy
from shoal.sim.render.images import enlarged
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
    seen = enlarged(image, (13, 9))
    assert seen.shape == (6, 12, 3)
    assert (seen == seen[:, :, :1]).all()
    wanted = [[0, 51, 204, 255], [102, 153, 255, 0]]
    np.testing.assert_array_equal(seen[..., 0], np.kron(wanted, np.ones((3, 3))))


def test_pixels_of_an_image_that_is_too_large_are_left_out() -> None:
    image = np.linspace(0.0, 1.0, 256)[None, None].repeat(4, axis=1)
    seen = enlarged(image, (64, 64))
    assert seen.shape == (1, 64, 3)
    np.testing.assert_array_equal(seen[0, :, 0], np.arange(0, 256, 4))


@draws
def test_a_video_shows_what_the_policy_observed_in_each_step(env: WarpVecEnv, tmp_path: Path) -> None:
    recorder, observed = Recorder(env.picture(), 4, SIZE), []
    env.reset(seed=1)
    for _ in range(4):
        observed.append(env.step(torch.ones(2, 1))[0]["policy"][0].numpy().copy())
        recorder.take()
    trajectory = recorder.cut()
    np.testing.assert_array_equal(trajectory.images[0], observed)
    make_video(trajectory, tmp_path / "video.mp4", "osmesa")
    frames, _ = frames_of(tmp_path / "video.mp4")
    corners = frames[:, : 2 * 24, : 2 * 3 * 48].astype(float)  # Not more than half as wide as the frame.
    for corner, image in zip(corners, observed, strict=True):
        wanted = enlarged(image, (320, 90))
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
