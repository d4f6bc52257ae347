"""Where episodes begin: at the keyframe in every column, whatever joints a model has and whatever events a task."""

# ruff: noqa: ARG003

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from shoal.mdp.config import RobotConfig, TermsConfig, task_config
from shoal.mdp.robot_task import RobotTask
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Event, Obs, Reward

BODIES = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <body name="base" pos="0 0 1">
      <freejoint/><geom size="0.1"/>
      <body name="arm" pos="0.2 0 0"><joint name="arm" axis="0 1 0"/><geom size="0.05" pos="0.1 0 0"/>
        <body name="ball" pos="0.2 0 0"><joint name="ball" type="ball"/><geom size="0.05" pos="0.1 0 0"/></body>
      </body>
    </body>
    <body name="cube" pos="1 0 1"><freejoint/><geom type="box" size="0.1 0.1 0.1"/></body>
    <body name="goal" mocap="true" pos="0 0 2"/>
  </worldbody>
  <actuator>{actuators}</actuator>
  <keyframe>
    <key name="zero"/>
    <key name="home" qpos="1 2 3 0 1 0 0 0.4 0.6 0.8 0 0 4 5 6 0 0 1 0" {more}/>
  </keyframe>
</mujoco>
"""
MUSCLE = """<muscle name="arm" joint="arm" lengthrange="0.1 1"/>"""
QVEL = "0.1 0.2 0.3 0 0 0 0.5 0.6 0.7 0.8 0 0 0 1 2 3"
WHOLE = f'qvel="{QVEL}" act="0.3" ctrl="0.2" mpos="7 8 9" mquat="0 0 0 1"'
FIELDS = ("qpos", "qvel", "act", "ctrl", "mocap_pos", "mocap_quat")
TERMS: dict[str, Any] = {
    "observations": {"policy": {"arm": Obs("joint_pos_rel", joints="arm")}},
    "rewards": {"alive": Reward("is_alive", weight=1.0)},
    "episode_length_s": 0.1,
}


class Bodies(TermsTask[TermsConfig]):
    """A robot with a ball joint beside a free cube and a goal; its episodes begin at its second keyframe."""

    config = task_config(TermsConfig, decimation=1, actions={}, **TERMS)

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(BODIES.format(actuators=MUSCLE, more=WHOLE))

    def keyframe(self) -> int:
        return 1

    def home(self) -> np.ndarray:
        return self.model.key("home").qpos.copy()


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_episodes_begin_at_the_whole_keyframe_without_any_event(engine: str) -> None:
    task = Bodies(Bodies.config.change(engine=engine), num_envs=2, device="cpu", seed=0)
    data = mujoco.MjData(task.model)
    mujoco.mj_resetDataKeyframe(task.model, data, 1)
    for _ in range(2):
        for name in FIELDS:
            np.testing.assert_allclose(
                task.data(name).numpy().reshape(2, -1)[1], np.ravel(getattr(data, name)), atol=1e-6, err_msg=name
            )
        for _ in range(50):  # The next episode begins there, too.
            task.step()
        assert task.done.numpy().all()


ROBOT = """
<mujoco>
  <worldbody>
    <body name="base" pos="0 0 1">
      <freejoint/><geom size="0.1"/>
      <body name="arm" pos="0.2 0 0"><joint name="arm" axis="0 1 0"/><geom size="0.05" pos="0.1 0 0"/></body>
    </body>
  </worldbody>
  <actuator><motor name="arm" joint="arm" gear="3" ctrlrange="-1 1"/></actuator>
  <keyframe><key name="zero"/><key name="up" qpos="1 2 3 0 1 0 0 0.4" qvel="1 0 0 0 0 0 2" ctrl="0.9"/></keyframe>
</mujoco>
"""


def test_a_robot_begins_in_the_keyframe_that_is_named_with_servos_that_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "robot.xml"
    path.write_text(ROBOT, encoding="utf-8")
    actions = {"arm": Action("joint_position", actuators="arm", scale=1.0)}
    config = task_config(
        RobotConfig, robot=str(path), keyframe="up", engine="mujoco", decimation=1, actions=actions, **TERMS
    )
    task = RobotTask(config, num_envs=2, device="cpu", seed=0)
    np.testing.assert_allclose(task.qpos.numpy()[1], [1, 2, 3, 0, 1, 0, 0, 0.4], atol=1e-6)
    np.testing.assert_allclose(task.qvel.numpy()[1], [1, 0, 0, 0, 0, 0, 2], atol=1e-6)
    assert task.ctrl.numpy()[1] == pytest.approx(0.4)  # The keyframe's own control was a torque.
    posed = RobotTask(config.change(pose={"arm": 0.2}), num_envs=2, device="cpu", seed=0)
    assert posed.ctrl.numpy()[1] == pytest.approx(0.2)
    assert not posed.qvel.numpy().any()


def test_joints_begin_at_a_multiple_of_the_default_pose_and_of_the_first_speed() -> None:
    event = Event("reset_joints_by_scale", "reset", joints="arm", position=(0.5, 1.5), velocity=(2.0, 3.0))
    task = Bodies(Bodies.config.change(events={"x": event}), num_envs=32, device="cpu", seed=0)
    key, joint = task.model.key("home"), task.model.joint("arm")
    for now, first, (low, high) in (
        (task.qpos.numpy()[:, joint.qposadr[0]], key.qpos[joint.qposadr[0]], (0.5, 1.5)),
        (task.qvel.numpy()[:, joint.dofadr[0]], key.qvel[joint.dofadr[0]], (2.0, 3.0)),
    ):
        factors = now / first
        assert low <= factors.min() < low + 0.2
        assert high - 0.2 < factors.max() <= high
