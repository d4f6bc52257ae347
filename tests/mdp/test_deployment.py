"""What an export says of a task is true, and the controller of docs/examples acts by it as the task does."""

# ruff: noqa: ARG003, PLR0917

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import onnxruntime
import pytest
import warp as wp
from support.documented import ROOT

from shoal.learn.export import _for_groups, _to_string
from shoal.mdp.annotations import Actuators
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Command, Obs, Reward

ROBOT = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody><body name="base" pos="0 0 2"><freejoint/><geom type="box" size="0.1 0.1 0.1" mass="5"/>
    <body pos="0.1 0 0"><joint name="a" axis="0 1 0" damping="0.1" armature="0.02"/><geom type="capsule" size="0.02" fromto="0 0 0 0.3 0 0"/>
      <body pos="0.3 0 0"><joint name="passive" axis="0 1 0" stiffness="1" damping="0.1"/><geom size="0.05"/></body></body>
    <body pos="0 0.1 0"><joint name="b" axis="1 0 0" damping="0.1"/><geom type="capsule" size="0.02" fromto="0 0 0 0 0.3 0"/></body>
    <body pos="0 0 0.1"><joint name="c" axis="1 0 0" damping="0.1" frictionloss="0.3"/><geom type="capsule" size="0.02" fromto="0 0 0 0 0 0.3"/></body>
  </body></worldbody>
  <actuator>
    <motor name="c" joint="c" ctrllimited="true" ctrlrange="-0.1 0.1"/>
    <position name="a_servo" joint="a" kp="3" kv="0.2"/>
    <velocity name="b" joint="b" kv="0.3"/>
  </actuator>
  <keyframe><key qpos="0 0 2  1 0 0 0  0.3 -0.2 0.1 0.4"/></keyframe>
</mujoco>"""  # noqa: E501


@wp.func
def scaled(state: Any, env: int, i: int, action: float, actuators: Actuators, scale: float = 2.0) -> None:
    """Set a control."""
    state.ctrl[env, actuators[i].index] = scale * action


@wp.func
def stepped(state: Any, env: int, i: int, action: float, actuators: Actuators, step: float) -> None:
    """Change a control."""
    state.ctrl[env, actuators[i].index] = state.ctrl[env, actuators[i].index] + step * action


CONFIG = task_config(
    TermsConfig,
    engine="mujoco",
    physics_dt=0.005,
    decimation=4,
    actions={
        "targets": Action("joint_position", actuators="a_servo", scale=0.5),
        "torques": Action("joint_effort", actuators="c", scale=0.2, clip=1.0),
        "speeds": Action("joint_velocity", actuators="b", scale=3.0),
    },
    observations={
        "policy": {
            "ang_vel": Obs("base_ang_vel", clip=(-0.5, 1.0), scale=(1.0, 2.0, 3.0)),
            "joint_pos": Obs("joint_pos_rel", joints=".*", clip={"a": 0.2, "passive|b|c": 1.0}),
            "joint_vel": Obs("joint_vel_rel", joints=".*", scale=0.1, history_length=2),
            "actions": Obs("last_action", actuators=".*"),
        }
    },
    rewards={"alive": Reward("is_alive", weight=1.0)},
)


class Limbs(TermsTask[TermsConfig]):
    """A body in free space with actuators of position, velocity and torque, and a joint that none of them moves."""

    config = CONFIG

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(ROBOT)


def build(**changes: Any) -> Limbs:
    return Limbs(CONFIG.change(**changes), num_envs=1, device="cpu", seed=0)


class Session:
    """A network whose actions are those that `acts` has, with the metadata of a task's export."""

    acts: np.ndarray
    metadata: dict[str, str]

    def __init__(self, policy: str) -> None:
        """Load nothing."""

    def get_modelmeta(self) -> Any:
        return SimpleNamespace(custom_metadata_map=self.metadata)

    def run(self, outputs: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        assert (outputs, [*inputs]) == (["actions"], ["obs"])
        return [self.acts[None]]


def controller_of(task: Limbs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    exported = {"observation_groups": ["policy"], **_for_groups(task.deployment(), ["policy"])}
    Session.metadata = {name: _to_string(name, value, "Limbs") for name, value in exported.items()}
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    (tmp_path / "robot.xml").write_text(ROBOT, encoding="utf-8")
    made = runpy.run_path(str(ROOT / "docs" / "examples" / "controller.py"))["Controller"]
    return made("policy.onnx", str(tmp_path / "robot.xml"))


def test_the_controller_moves_servos_and_motors_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = build()
    controller = controller_of(task, tmp_path, monkeypatch)
    data = controller.data
    data.qpos[:], data.qvel[:] = task.qpos.numpy()[0], task.qvel.numpy()[0]
    rng = np.random.default_rng(0)
    sent = np.zeros(3)
    for step in range(40):
        Session.acts = rng.uniform(-2.0, 2.0, 3).astype(np.float32)
        observed = task.obs["policy"].numpy()[0].copy()
        task.actions.assign(Session.acts[None])
        task.step()
        observation, action = controller.step()
        np.testing.assert_allclose(observation[:-3], observed[:-3], atol=1e-4, err_msg=f"step {step}")
        np.testing.assert_allclose(observation[-3:], sent[[1, 0, 2]], err_msg=f"step {step}")  # Of c, a and b.
        np.testing.assert_allclose(data.qpos, task.qpos.numpy()[0], atol=1e-4, err_msg=f"step {step}")
        sent = action
        assert action[1] == np.clip(Session.acts[1], -1.0, 1.0)
    assert (np.abs(data.actuator_force) > 1e-3).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"actions": {"targets": Action(scaled, actuators="a_servo")}}, "The action targets is 'scaled'"),
        ({"observations": {"policy": {"x": Obs("shoal.mdp.base:lin_vel_w")}}}, "The observation x is 'lin_vel_w'"),
    ],
)
def test_the_controller_refuses_what_it_does_not_know(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=said):
        controller_of(build(**changes), tmp_path, monkeypatch)


def test_numbers_that_follow_from_no_declaration_are_not_exported() -> None:
    columns: Any = {"columns": {"lin_vel_x": "m/s", "sideways": "m/s", "ang_vel_z": "rad/s"}}
    ranges: Any = {"lin_vel_x": (0.0, 2.0), "lin_vel_y": (-0.5, 0.5), "ang_vel_z": (-1.0, 1.0)}
    task = build(
        commands={
            "twist": Command("uniform_velocity", **columns, resampling_time=(1, 2), **ranges, rel_standing_envs=0)
        },
        actions={
            "targets": Action(scaled, actuators="a_servo"),
            "speeds": Action(stepped, actuators="b", step=0.5),
            "torques": Action("joint_effort", actuators="c", scale=0.2),
        },
    )
    described = task.deployment()
    found = [(each["name"], each["low"], each["high"]) for each in described["commands"]["twist"]]
    assert found == [("lin_vel_x", 0.0, 2.0), ("sideways", None, None), ("ang_vel_z", -1.0, 1.0)]
    assert [each["scale"] for each in described["actions"].values()] == [[2.0], [pytest.approx(0.2)], [None]]
    assert described["action_scale"] == [2.0, pytest.approx(0.2), None]


def test_gains_and_the_default_pose_are_those_of_the_model() -> None:
    task = build()
    described, model = task.deployment(), task.model
    assert described["actuator_names"] == ["c", "a_servo", "b"]
    for key, field in (("armature", "armature"), ("frictionloss", "frictionloss"), ("viscous_damping", "damping")):
        expected = [getattr(model, f"dof_{field}")[model.joint(name).dofadr[0]] for name in described["joint_names"]]
        assert described[f"joint_{key}"] == expected
    assert described["integrator"] == "euler"
    assert described["default_qpos"] == task.home().tolist()
    assert str(described["joint_stiffness"]) == "[0.0, 3.0, 0.0]"
    assert described["joint_damping"] == [0.0, 0.2, 0.3]
    assert described["default_pose"] == {"a": 0.3, "passive": -0.2, "b": 0.1, "c": 0.4}
