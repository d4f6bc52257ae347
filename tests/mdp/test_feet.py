"""Feet of all shapes, by MuJoCo's own distance of two geoms; and contacts of an episode that follows one with NaN."""

# ruff: noqa: ARG003

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.errors import UsageError
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Contact, Event, Obs, Reward

SHAPES = {
    "sphere": 'type="sphere" size="0.03"',
    "capsule": 'type="capsule" size="0.02 0.05"',
    "cylinder": 'type="cylinder" size="0.04 0.02"',
    "ellipsoid": 'type="ellipsoid" size="0.02 0.04 0.06"',
    "box": 'type="box" size="0.1 0.05 0.01"',
    "mesh": 'type="mesh" mesh="wedge"',
}
FEET = "".join(
    f'<body name="{name}" pos="{at} 0 0.3"><freejoint/><geom name="{name}_foot" {shape} mass="1"/></body>'
    for at, (name, shape) in enumerate(SHAPES.items())
)
MODEL = f"""
<mujoco>
  <option gravity="0 0 0"/>
  <asset><mesh name="wedge" vertex="0 0 0  0.1 0 0  0.1 0.06 0  0 0.06 0  0 0 0.04  0 0.06 0.02"/></asset>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1" contype="0" conaffinity="0"/>
    <body name="crank" pos="0 0 1"><joint name="crank"/><geom size="0.01" contype="0" conaffinity="0" mass="1"/></body>
    {FEET}
  </worldbody>
  <actuator><motor name="crank" joint="crank"/></actuator>
</mujoco>
"""
NEAR = Contact("near_ground", geoms=".*_foot", tolerance=0.001)
CONFIG = task_config(
    TermsConfig,
    engine="mujoco",
    decimation=1,
    actions={"crank": Action("joint_effort", actuators="crank", scale=1.0)},
    contacts={"feet": NEAR},
    observations={
        "policy": {"touch": Obs("foot_contact", contact="feet"), "height": Obs("foot_height", contact="feet")}
    },
    rewards={"alive": Reward("is_alive", weight=1.0)},
)


class Feet(TermsTask[TermsConfig]):
    """Feet that float."""

    config = CONFIG

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(MODEL)


@pytest.fixture(scope="module")
def feet() -> Feet:
    """Feet in 64 environments."""
    return Feet(CONFIG, num_envs=64, device="cpu", seed=0)


def test_feet_of_all_shapes_are_as_far_from_the_ground_as_mujoco_has_them(feet: Feet) -> None:
    """Each foot is turned at random, and put 0.5 mm nearer or further than the tolerance of 1 mm."""
    model, data, rng = feet.model, mujoco.MjData(feet.model), np.random.default_rng(0)
    qpos = np.tile(model.qpos0, (feet.num_envs, 1))
    qpos[:, 1:].reshape(feet.num_envs, -1, 7)[:, :, 3:] = rng.normal(size=(feet.num_envs, len(SHAPES), 4))
    above = rng.choice([0.0005, 0.0015], size=(feet.num_envs, len(SHAPES)))
    for env in range(feet.num_envs):
        data.qpos[:] = qpos[env]
        mujoco.mj_normalizeQuat(model, data.qpos)
        mujoco.mj_kinematics(model, data)
        for foot, name in enumerate(SHAPES):
            distance = mujoco.mj_geomDistance(
                model, data, model.geom("floor").id, model.geom(f"{name}_foot").id, 10.0, None
            )
            data.qpos[1 + 7 * foot + 2] += above[env, foot] - distance
        qpos[env] = data.qpos
    feet.qpos.assign(qpos.astype(np.float32))
    feet.moved.fill_(value=True)
    feet.engine.forward(feet.done, feet.moved)
    feet.run("reward")
    found = feet.arrays["contacts/feet/found"].numpy()
    for foot, name in enumerate(SHAPES):
        np.testing.assert_array_equal(found[:, foot], above[:, foot] < 0.001, err_msg=name)


def test_a_foot_without_a_shape_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^contacts\.feet\.geoms selects floor, which is a plane: select spheres"):
        Feet(CONFIG.change(contacts={"feet": Contact("near_ground", geoms=".*", tolerance=0.0)}), **SMALL)


SMALL: dict[str, Any] = {"num_envs": 2, "device": "cpu", "seed": 0}


def test_an_episode_after_nan_begins_where_the_feet_are_and_with_feet_at_rest() -> None:
    task = Feet(CONFIG, **SMALL)
    heights = task.obs["policy"].numpy()[:, len(SHAPES) :].copy()
    np.testing.assert_allclose(heights, 0.3, atol=0.05)  # Before the first step, too.
    task.qpos.fill_(np.nan)
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    task.step()
    assert task.done.numpy().all()
    for _ in range(2):
        np.testing.assert_allclose(task.obs["policy"].numpy()[:, len(SHAPES) :], heights, atol=1e-6)
        for name in ("position", "velocity"):
            assert np.isfinite(task.arrays[f"contacts/feet/{name}"].numpy()).all(), name
        assert (task.arrays["contacts/feet/velocity"].numpy() == 0.0).all()
        task.step()
    assert not task.done.numpy().any()


@wp.func
def lift(state: Any, env: int) -> None:
    """Begin higher."""
    for foot in range(6):
        state.qpos[env, 1 + 7 * foot + 2] = state.home[1 + 7 * foot + 2] + 0.5


def test_the_first_observation_of_an_episode_is_of_where_its_feet_are() -> None:
    task = Feet(CONFIG.change(events={"x": Event(lift, "reset")}), **SMALL)
    np.testing.assert_allclose(task.obs["policy"].numpy()[:, len(SHAPES) :], 0.8, atol=0.05)
