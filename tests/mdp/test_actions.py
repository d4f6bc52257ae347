"""Actions: what each writes into `ctrl`, by hand and by MuJoCo's Jacobians, on both engines."""

# ruff: noqa: ARG003

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.errors import ShoalError
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Event, Obs, Reward

ROBOT = """
<mujoco>
  <option gravity="0 0 0"/>
  <default><geom mass="1"/></default>
  <worldbody>
    <body name="base" pos="0 0 1" euler="10 20 30">
      <freejoint/>
      <geom type="box" size="0.1 0.1 0.1"/>
      <body name="upper" pos="0 0.1 0" euler="20 0 10">
        <joint name="pan" axis="0 0 1"/>
        <joint name="tilt" axis="0 1 0"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0"/>
        <body name="lower" pos="0.3 0 0">
          <joint name="elbow" axis="0 1 0" range="-90 90"/>
          <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0.05 0"/>
          <body name="hand" pos="0.3 0.05 0">
            <joint name="slide" type="slide" axis="1 0 0"/>
            <joint name="roll" axis="1 0 0"/>
            <geom type="capsule" size="0.03" fromto="0 0 0 0.1 0 0"/>
            <site name="tip" pos="0.1 0 0.05" euler="30 0 0"/>
          </body>
        </body>
      </body>
      <body name="other" pos="0 -0.2 0">
        <joint name="other" axis="0 1 0"/>
        <geom type="sphere" size="0.05"/>
        <site name="thruster"/>
      </body>
    </body>
  </worldbody>
  <tendon><fixed name="cable"><joint joint="other" coef="2"/></fixed></tendon>
  <actuator>
    <position name="cable" tendon="cable"/>
    <general name="thruster" site="thruster" gear="1 0 0 0 0 0"/>
    <position name="pan" joint="pan"/>
    <position name="tilt" joint="tilt"/>
    <position name="elbow" joint="elbow"/>
    <position name="slide" joint="slide"/>
    <position name="roll" joint="roll"/>
    <velocity name="wheel" joint="other"/>
    <position name="other" joint="other"/>
    <motor name="twist" joint="roll"/>
  </actuator>
  <keyframe><key qpos="0.1 0.2 1 1 0 0 0 0.1 0.2 0.3 0.02 -0.4 0.5"/></keyframe>
</mujoco>
"""
NUM_ENVS = 4
ENGINES = ["mujoco", "mjwarp"]


def build(engine: Any, **actions: Any) -> TermsTask[TermsConfig]:
    """Build robots with joints near the keyframe."""

    class Robot(TermsTask[TermsConfig]):
        config = task_config(
            TermsConfig,
            engine=engine,
            decimation=1,
            actions=actions,
            observations={"policy": {"actions": Obs("last_actions")}},
            rewards={"none": Reward("lin_vel_z_l2", weight=0.0)},
            events={
                "base": Event("reset_root_state_uniform", "reset", roll=(-1.0, 1.0), yaw=(-1.0, 1.0)),
                "joints": Event(
                    "reset_joints_by_offset", "reset", joints=".*", position=(-0.3, 0.3), velocity=(0.0, 0.0)
                ),
            },
        )

        @classmethod
        def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
            return mujoco.MjModel.from_xml_string(ROBOT)

    return Robot(Robot.config, num_envs=NUM_ENVS, device="cpu", seed=1)


def controls(task: TermsTask[Any], sent: np.ndarray) -> dict[str, np.ndarray]:
    """Act; return the controls by the names of the actuators. Each (num_envs,)."""
    task.actions.assign(sent.astype(np.float32))
    task.run("act")
    wp.synchronize()
    names = [task.model.actuator(index).name for index in range(task.model.nu)]
    task.run("observe")
    np.testing.assert_array_equal(task.obs["policy"].numpy(), task.actions.numpy())
    return dict(zip(names, task.ctrl.numpy().T.copy(), strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_controls_are_offset_plus_scale_times_action_within_limits_by_pattern(engine: str) -> None:
    task = build(
        engine,
        around=Action(
            "joint_position",
            actuators=("pan", "tilt"),
            scale=0.5,
            offset={"pan": 0.25, "tilt": -1.0},
            lower={"pan": 0.0, "tilt": -9.0},
            upper={"pan": 9.0, "tilt": -0.9},
        ),
        near=Action("joint_position", actuators="slide", scale=0.5, upper=0.3),
        relative=Action("relative_joint_position", actuators="elbow", scale=0.5, lower=-0.1),
        wheel=Action("joint_velocity", actuators="wheel", scale=2.0, offset=0.5, upper=3.0),
        twist=Action("joint_effort", actuators="twist", scale=2.0, offset=0.5, lower=-1.0),
        cable=Action("tendon_length", actuators="cable", scale=0.1, offset=0.05),
        thrust=Action("site_effort", actuators="thruster", scale=3.0, lower=-1.0, upper=2.0),
    )
    elbow = task.qpos.numpy()[:, 9].copy()
    sent = np.random.default_rng(0).uniform(-2.0, 2.0, (NUM_ENVS, 8))
    pan, tilt, slide, bent, wheel, twist, cable, thrust = sent.T
    expected = {
        "pan": np.maximum(0.25 + 0.5 * pan, 0.0),
        "tilt": np.minimum(-1.0 + 0.5 * tilt, -0.9),
        "slide": np.minimum(0.02 + 0.5 * slide, 0.3),
        "elbow": elbow + np.maximum(0.5 * bent, -0.1),
        "wheel": np.minimum(0.5 + 2.0 * wheel, 3.0),
        "twist": np.maximum(0.5 + 2.0 * twist, -1.0),
        "cable": 0.05 + 0.1 * cable,
        "thruster": np.clip(3.0 * thrust, -1.0, 2.0),
    }
    found = controls(task, sent)
    for name, wanted in expected.items():
        np.testing.assert_allclose(found[name], wanted, atol=1e-6, err_msg=name)
    assert elbow.max() - elbow.min() > 0.1  # Where each joint is, not where it began.


def least_squares(task: TermsTask[Any], env: int, joints: list[str], wanted: np.ndarray, **settings: Any) -> np.ndarray:
    """Return the joints' changes that minimise |W (J q - wanted)|² + damping² |q|², by MuJoCo's Jacobian."""
    data = mujoco.MjData(task.model)
    data.qpos[:] = task.qpos.numpy()[env]
    mujoco.mj_forward(task.model, data)
    jacobian = np.zeros((6, task.model.nv))
    mujoco.mj_jacSite(task.model, data, jacobian[:3], jacobian[3:], task.model.site("tip").id)
    columns = [int(task.model.joint(name).dofadr[0]) for name in joints]
    weights = np.repeat([settings["position_weight"], settings["orientation_weight"]], 3)
    weighted = weights[:, None] * jacobian[:, columns]
    square = weighted.T @ weighted + settings["damping"] ** 2 * np.eye(len(joints))
    return np.linalg.solve(square, weighted.T @ (weights * wanted))


JOINTS = ["pan", "tilt", "elbow", "slide", "roll"]


@pytest.mark.parametrize("engine", ENGINES)
def test_inverse_kinematics_minimise_the_damped_error_of_a_site_by_mujocos_jacobian(engine: str) -> None:
    settings = {"damping": 0.1, "position_weight": 2.0, "orientation_weight": 0.5}
    scales = {"delta_pos_scale": 0.1, "delta_ori_scale": 0.4}
    pose = Action("differential_ik", actuators=tuple(JOINTS), site="tip", max_dq=0.15, **settings, **scales)
    task = build(engine, pose=pose, wheel=Action("joint_velocity", actuators="wheel", scale=1.0))
    assert task.num_actions == 7
    sent = np.random.default_rng(0).uniform(-2.0, 2.0, (NUM_ENVS, 7))
    found, qpos = controls(task, sent), task.qpos.numpy().copy()
    limited = 0
    for env in range(NUM_ENVS):
        change = least_squares(task, env, JOINTS, sent[env, :6] * np.repeat([0.1, 0.4], 3), **settings)
        limited += int((np.abs(change) > 0.15).sum())
        wanted = qpos[env, 7:12] + np.clip(change, -0.15, 0.15)
        np.testing.assert_allclose([found[name][env] for name in JOINTS], wanted, atol=2e-5)
    assert 0 < limited < NUM_ENVS * len(JOINTS)
    np.testing.assert_allclose(found["wheel"], sent[:, 6], rtol=1e-6)  # The next columns are the next action's.


def test_inverse_kinematics_of_a_position_leave_the_orientation_and_joints_elsewhere_alone() -> None:
    joints = ["tilt", "elbow", "other"]
    task = build(
        "mujoco", reach=Action("differential_ik_position", actuators=tuple(joints), site="tip", delta_pos_scale=0.1)
    )
    sent = np.random.default_rng(0).uniform(-1.0, 1.0, (NUM_ENVS, 3))
    found, qpos = controls(task, sent), task.qpos.numpy().copy()
    settings = {"damping": 0.05, "position_weight": 1.0, "orientation_weight": 0.0}
    for env in range(NUM_ENVS):
        change = least_squares(task, env, joints, np.append(0.1 * sent[env], np.zeros(3)), **settings)
        wanted = qpos[env, [8, 9, 12]] + np.clip(change, -0.5, 0.5)
        np.testing.assert_allclose([found[name][env] for name in joints], wanted, atol=2e-5)
        assert change[2] == 0.0


@wp.func
def undirected(state: Any, env: int, action: float) -> None:
    """Turn no column of the actions into controls."""


def test_an_action_function_without_columns_is_refused_by_its_name() -> None:
    with pytest.raises(ShoalError, match=r"^actions\.x: its function must take i, or as action a wp.vec3"):
        build("mujoco", x=Action(undirected))


def test_inverse_kinematics_act_later_by_the_delay_of_the_action() -> None:
    reach = Action(
        "differential_ik_position",
        actuators=tuple(JOINTS),
        site="tip",
        delta_pos_scale=0.1,
        delay_max_lag=1,
        delay_hold_prob=1.0,
    )
    task = build("mujoco", reach=reach)
    lags = task.arrays["lags"].numpy()[:, 0]
    found = controls(task, np.ones((NUM_ENVS, 3)))
    moved = np.stack([found[name] for name in JOINTS], axis=1) != task.qpos.numpy()[:, 7:12]
    assert {*lags.tolist()} == {0, 1}
    assert (moved.any(axis=1) == (lags == 0)).all()
