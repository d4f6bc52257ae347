"""Depth images as observations, by MuJoCo's own rays from the same camera."""

# ruff: noqa: ARG003

from __future__ import annotations

import runpy
from copy import copy
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import pytest
import torch
from support.documented import ROOT

from shoal import mdp
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL = """<mujoco><asset><mesh name="wedge" vertex="0 0 0 0.4 0 0 0 0.4 0 0 0 0.4"/></asset><worldbody>
  <geom name="floor" type="plane" size="0 0 1"/><camera name="fixed" pos="-1.2 0.2 0.6" xyaxes="0 -1 0 0.4 0 1"/>
  <body name="cart" pos="0 0 0.3"><joint name="slide" type="slide" axis="1 0 0"/>
    <joint name="turn" axis="0 0 1" damping="1"/><geom type="box" size="0.1 0.05 0.1" mass="1"/>
    <body name="head" pos="0 0 0.2"><joint name="nod" axis="0 1 0" damping="1"/>
      <geom size="0.02" mass="0.1" group="3" contype="0"/></body></body>
  <geom name="ball" type="sphere" size="0.2" pos="0.9 0.2 0.4"/><geom type="capsule" size="0.1 0.2" pos="1 -0.3 0.3"/>
  <geom type="cylinder" size="0.1 0.2" pos="1.2 0.6 0.2"/><geom type="mesh" mesh="wedge" pos="0.7 -0.7 0.1"/>
  <geom type="box" size="0.1 0.1 0.1" pos="0.6 0 0.05" group="4"/>
</worldbody><actuator><motor name="turn" joint="turn"/></actuator></mujoco>"""

EYES = {
    "eye": mdp.Camera(
        parent_body="head", pos=(0.03, 0.0, 0.0), quat=(0.5, 0.5, -0.5, -0.5), fovy=70, width=12, height=9
    ),
    "watch": mdp.Camera(camera_name="fixed", width=8, height=8, enabled_geom_groups=(0, 4)),
}
FAR = 4.0


def depth(name: str, **more: Any) -> Any:
    return mdp.Obs("camera_depth", sensor_name=name, cutoff_distance=FAR, **more)


CONFIG = mdp.task_config(
    mdp.TermsConfig,
    decimation=3,
    episode_length_s=0.03,
    actions={"turn": mdp.Action("joint_effort", actuators="turn", scale=3.0)},
    sensors=EYES,
    observations={
        "policy": {"position": mdp.Obs("joint_pos", joints=".*")},
        "image": {"now": depth("eye"), "last": depth("eye", history_length=2)},
        "watch": {"depth": depth("watch")},
    },
    events={
        "start": mdp.Event("reset_joints_by_offset", "reset", joints=".*", position=(-0.3, 0.3), velocity=(-1, 1)),
        "lens": mdp.Event("cam_fovy", "startup", cameras="eye", ranges=(0.7, 1.2), operation="scale"),
        "mount": mdp.Event("cam_pos", "startup", cameras="eye", ranges=(-0.05, 0.05), operation="add"),
        "size": mdp.Event("geom_size", "startup", geoms="ball", ranges=(0.5, 1.5), operation="scale"),
    },
    rewards={"alive": mdp.Reward("is_alive", weight=1.0)},
    fresh_observations=True,
)


class Looking(mdp.TermsTask[mdp.TermsConfig]):
    """A cart with a turning head, among shapes."""

    config = CONFIG

    @classmethod
    def build_spec(cls, config: mdp.TermsConfig) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(MODEL)


ENVS = 3


@pytest.fixture(scope="module", params=["mujoco", "mjwarp"])
def env(request: pytest.FixtureRequest) -> WarpVecEnv:
    return WarpVecEnv(Looking(CONFIG.change(engine=request.param), num_envs=ENVS, device="cpu", seed=0))


def seen(task: Looking, env: int, camera: str, term: Any) -> np.ndarray:
    """Return the depth of each pixel by MuJoCo's rays, 0 where they hit nothing [m]. Shape (height, width)."""
    model = copy(task.model)
    for name in ("cam_fovy", "cam_pos", "geom_size"):
        getattr(model, name)[:] = task.parameter(name).numpy()[env].reshape(getattr(model, name).shape)
    data = mujoco.MjData(model)
    data.qpos[:] = task.qpos.numpy()[env]
    mujoco.mj_forward(model, data)
    up = np.tan(np.deg2rad(model.camera(camera).fovy[0]) / 2)
    rows, columns = np.mgrid[: term.height, : term.width]
    x = ((columns + 0.5) / term.width * 2 - 1) * up * term.width / term.height
    y = (1 - (rows + 0.5) / term.height * 2) * up
    rays = np.stack([x, y, -np.ones_like(x)], axis=-1).reshape(-1, 3)
    lengths = np.linalg.norm(rays, axis=1)
    world = (rays / lengths[:, None]) @ data.camera(camera).xmat.reshape(3, 3).T
    groups = np.array([group in term.enabled_geom_groups for group in range(6)], dtype=np.uint8)
    distances = np.empty(len(rays))
    for at, ray in enumerate(world):
        hit = np.zeros(1, dtype=np.int32)
        distances[at] = mujoco.mj_ray(model, data, data.camera(camera).xpos, ray, groups, 1, -1, hit)
    return np.where(distances < 0.0, 0.0, distances / lengths).reshape(term.height, term.width)


def compare(env: WarpVecEnv, observations: Mapping[str, torch.Tensor]) -> None:
    """Compare the present images of all environments with those of their present positions, to 1e-5 m."""
    images: list[Any] = [observations["image"][:, 0], observations["image"][:, 2], observations["watch"][:, 0]]
    task: Any = env.task
    for row in range(ENVS):
        eye, watch = seen(task, row, "eye", EYES["eye"]), seen(task, row, "fixed", EYES["watch"])
        assert eye.std() > 0.2  # There is something to see.
        for image, truth in zip(images, (eye, eye, watch), strict=True):
            np.testing.assert_allclose(image[row] * FAR, np.clip(truth, 0.01, FAR), rtol=0, atol=1e-5)


def test_images_are_the_depths_that_mujocos_rays_have_from_the_same_camera(env: WarpVecEnv) -> None:
    observations = env.reset(seed=1)
    assert observations["image"].shape == (ENVS, 3, 9, 12)
    assert observations["watch"].shape == (ENVS, 1, 8, 8)
    for at in range(8):  # Episodes of five steps begin anew.
        compare(env, observations)
        before = observations["image"][:, 2].clone()
        observations, _, dones, _ = env.step(torch.full((ENVS, 1), 1.0))
        assert dones.all() == (at == 4)
        if not dones.any():  # The stack has the image before, and then the present one.
            torch.testing.assert_close(observations["image"][:, 1], before, rtol=0, atol=0)
            assert (observations["image"][:, 2] != before).any()


def test_the_last_image_of_an_episode_is_that_before_the_reset() -> None:
    task = Looking(CONFIG.change(engine="mujoco"), num_envs=ENVS, device="cpu", seed=0)
    env = WarpVecEnv(task)
    env.keep_final_observations()
    env.reset(seed=1)
    for _ in range(4):
        env.step(torch.zeros(ENVS, 1))
    observations, _, dones, extras = env.step(torch.zeros(ENVS, 1))
    assert dones.all()
    final = extras["final_observation"]
    assert final["image"].shape == observations["image"].shape
    assert (final["image"][:, 0] != observations["image"][:, 0]).any()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a camera that does not exist": (
        {"sensors": {"eye": mdp.Camera(camera_name="fixd")}, "events": {"lens": None, "mount": None}},
        r"sensors.eye.camera_name is 'fixd', which matches no camera of the model. Did you mean 'fixed'\?",
    ),
    "a body that does not exist": (
        {"sensors": {"eye": mdp.Camera(parent_body="haed")}},
        r"sensors.eye.parent_body is 'haed', which matches no body of the model. Did you mean 'head'\?",
    ),
    "several bodies": (
        {"sensors": {"eye": mdp.Camera(parent_body="cart|head")}},
        r"which matches more than one body \(cart, head\): name one.",
    ),
    "a place of a camera that the model has": (
        {"sensors": {"eye": mdp.Camera(camera_name="fixed", fovy=60.0)}},
        "sensors.eye has camera_name, and fovy of a new camera: give one of them.",
    ),
    "a parameter that no camera has": (
        {"sensors": {"eye": mdp.Camera(fov=60.0)}},
        r"sensors.eye.fov is given, but a camera has no such parameter. Did you mean 'fovy'\?",
    ),
    "a width of 0": ({"sensors": {"eye": {"width": 0}}}, "sensors.eye.width is 0, but must be at least 1."),
    "a flat angle": ({"sensors": {"eye": {"fovy": 180}}}, "sensors.eye.fovy is 180, but must be above 0 and below"),
    "a sensor that is no camera": (
        {"observations": {"image": {"now": depth("ear")}}},
        "observations.image.now.sensor_name is 'ear', but the task does not declare a camera of that name.",
    ),
    "images of two sizes in a group": (
        {"observations": {"image": {"now": depth("watch")}}},
        "observations.image has the image 'now' and 'last', which is none of its size: give images of one size a group",
    ),
    "a number beside an image": (
        {"observations": {"image": {"speed": mdp.Obs("joint_vel_rel", joints="turn")}}},
        "observations.image has the image 'now' and 'speed', which is none of its size",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_camera_is_refused_in_one_sentence_when_the_task_is_built(wrong: str) -> None:
    change, message = WRONG[wrong]
    with pytest.raises(ShoalError, match=message):
        Looking(CONFIG.change(engine="mujoco", **change), num_envs=1, device="cpu", seed=0)


def test_the_camera_of_the_guide_looks_ahead_and_down() -> None:
    example = runpy.run_path(str(ROOT / "docs" / "examples" / "camera.py"))
    task = example["Seeing"](example["Seeing"].config.change(engine="mujoco"), num_envs=1, device="cpu", seed=0)
    env = WarpVecEnv(task)
    image = env.reset(seed=0)["image"][0, 0]
    assert image.shape == (16, 24)
    # The ground is nearer in lower rows, and level from left to right.
    rows = image.median(dim=1).values
    assert (rows[8:].diff() < 0.0).all()
    ahead = task.model.cam_quat[task.model.camera("eye").id]
    direction = np.empty(3)
    mujoco.mju_rotVecQuat(direction, np.array([0.0, 0.0, -1.0]), ahead)
    np.testing.assert_allclose(direction, [np.cos(np.pi / 6), 0.0, -0.5], atol=0.01)
