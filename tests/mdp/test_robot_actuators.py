"""Actuators of a robot by patterns: MuJoCo computes the forces of the same actuators in MJCF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.mdp.actuators import joint_gains, kinds_of
from shoal.mdp.config import RobotConfig, task_config
from shoal.mdp.robot_task import RobotTask
from shoal.mdp.robots import build_on_a_plane, read_robot
from shoal.mdp.terms import Action, Obs, Reward

CART = """
<mujoco>
  <option gravity="0 0 0" integrator="implicitfast"/>
  <worldbody>
    <body name="trunk" pos="0 0 1">
      <freejoint/>
      <geom type="box" size="0.1 0.1 0.05" mass="4"/>
      <site name="thruster" pos="0.1 0 0" euler="0 20 0"/>
      <body name="wheel"><joint name="wheel" axis="0 1 0"/><geom type="sphere" size="0.05"/></body>
      <body name="arm" pos="0 0 0.2">
        <joint name="arm" axis="0 1 0" range="-60 60"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.3" size="0.02"/>
        <body name="hand" pos="0 0 0.3">
          <joint name="hand" axis="1 0 0" range="-60 60"/>
          <geom type="capsule" fromto="0 0 0 0 0 0.1" size="0.02"/>
        </body>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="rope" limited="true" range="-1 1">
      <joint joint="arm" coef="1"/><joint joint="hand" coef="-0.5"/>
    </fixed>
  </tendon>
  <actuator>{}</actuator>
</mujoco>
"""


def file_of(tmp_path: Path, actuators: str = "") -> str:
    """Write the cart with some actuators; return the file."""
    path = tmp_path / "cart.xml"
    path.write_text(CART.format(actuators), encoding="utf-8")
    return str(path)


def forces(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """Return the generalised forces of all actuators in five steps. Shape (5, nv)."""
    rows = []
    for _ in range(5):
        mujoco.mj_step(model, data)
        rows.append(data.qfrc_actuator.copy())
    return np.array(rows)


@pytest.mark.parametrize(
    ("own", "flags", "same", "target"),
    [
        ("", {"damping": {"wheel": 3.0}, "effort_limit": {"wheel": 2.0}},
         '<velocity joint="wheel" kv="3" forcerange="-2 2"/>', ("wheel", "velocity")),
        ('<motor joint="wheel" gear="4" ctrlrange="-2 2"/>', {"damping": {"wheel": 3.0}},
         '<velocity joint="wheel" kv="3" forcerange="-8 8"/>', ("wheel", "velocity")),
        ('<velocity joint="wheel" kv="0.5" gear="-2" forcerange="-1 2"/>', {},
         '<velocity joint="wheel" kv="2" forcerange="-4 2"/>', ("wheel", "velocity")),
        ("", {"effort_limit": {"wheel": 2.0}}, '<motor joint="wheel" forcerange="-2 2"/>', ("wheel", "effort")),
        ('<motor joint="wheel" gear="4" ctrlrange="-2 2"/>', {},
         '<motor joint="wheel" gear="4" ctrlrange="-2 2"/>', ("wheel", "effort")),
        ('<motor joint="wheel" gear="4" ctrlrange="-0.1 0.1"/>', {"effort_limit": {"wheel": 6.0}},
         '<motor joint="wheel" gear="4" forcerange="-1.5 1.5"/>', ("wheel", "effort")),
        ('<position joint="wheel" kp="9" forcerange="-2 2"/>', {},
         '<motor joint="wheel" forcerange="-2 2"/>', ("wheel", "effort")),
        ("", {"effort_limit": {"arm": 50.0}}, '<muscle joint="arm" force="50"/>', ("arm", "muscle")),
        ("", {"effort_limit": {"rope": 50.0}}, '<muscle tendon="rope" force="50"/>', ("rope", "muscle")),
        ("", {"stiffness": {"rope": 7.0}, "damping": {"rope": 0.5}, "effort_limit": {"rope": 3.0}},
         '<position tendon="rope" kp="7" kv="0.5" forcerange="-3 3"/>', ("rope", "position")),
        ("", {"damping": {"rope": 0.5}}, '<velocity tendon="rope" kv="0.5"/>', ("rope", "velocity")),
        ("", {"effort_limit": {"thruster": 5.0}},
         '<motor site="thruster" forcerange="-5 5"/>', ("thruster", "effort")),
    ],
)  # fmt: skip
def test_an_actuator_that_is_asked_for_pushes_as_mujocos_own_does(
    own: str, flags: dict[str, Any], same: str, target: tuple[str, str], tmp_path: Path
) -> None:
    name, kind = target
    passive = {joint: "none" for joint in ("wheel", "arm", "hand") if joint != name}
    model = build_on_a_plane(RobotConfig(robot=file_of(tmp_path, own), actuators={name: kind} | passive, **flags))
    wanted = mujoco.MjModel.from_xml_string(CART.format(same))
    assert model.nu == wanted.nu == 1
    rng = np.random.default_rng(0)
    largest = 0.0
    for control in (0.7, -0.4, 30.0):
        states = [mujoco.MjData(each) for each in (model, wanted)]
        qpos, qvel = rng.uniform(-0.5, 0.5, model.nq - 7), rng.uniform(-2.0, 2.0, model.nv)
        for data in states:
            data.qpos[7:], data.qvel[:], data.ctrl[:] = qpos, qvel, control
        ours, theirs = (forces(*pair) for pair in zip((model, wanted), states, strict=True))
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
        largest = max(largest, np.abs(theirs).max())
    assert largest > 0.0


def test_a_position_actuator_is_mjlabs_pair_of_stiffness_and_damping_where_no_speed_is_to_be_followed(
    tmp_path: Path,
) -> None:
    flags: Any = {"stiffness": {"wheel": 7.0}, "damping": {"wheel": 0.5}, "effort_limit": {"wheel": 3.0}}
    config = RobotConfig(robot=file_of(tmp_path), actuators={"arm|hand": "none"}, **flags)
    pair = CART.format('<position joint="wheel" kp="7"/><velocity joint="wheel" kv="0.5"/>')
    limited = pair.replace('<joint name="wheel"', '<joint name="wheel" actuatorfrcrange="-3 3"')
    models = build_on_a_plane(config), mujoco.MjModel.from_xml_string(limited)
    for control in (0.2, -0.3, 5.0):
        rows = []
        for model in models:
            data = mujoco.MjData(model)
            data.qvel[6], data.ctrl[0] = 1.0, control
            rows.append(forces(model, data)[: 1 if control == 5.0 else None])  # Of a torque at its limit, the first.
        np.testing.assert_allclose(*rows, rtol=1e-6, atol=1e-9)
        assert np.abs(rows[0]).max() == pytest.approx(3.0) or control != 5.0


def test_numbers_of_joints_and_tendons_are_set_by_pattern(tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"armature": 0.3, "frictionloss": 0.2, "viscous_damping": 0.1}
    flags: Any = {name: {"(wheel|rope)": value} for name, value in numbers.items()}
    model = build_on_a_plane(RobotConfig(robot=file_of(tmp_path), actuators={"rope": "position"}, **flags))
    wheel, arm = (model.joint(name).dofadr[0] for name in ("wheel", "arm"))
    read = {"armature": "armature", "frictionloss": "frictionloss", "viscous_damping": "damping"}
    for name, field in read.items():
        assert getattr(model, f"dof_{field}")[[wheel, arm]].tolist() == [numbers[name], 0.0]
        assert getattr(model, f"tendon_{field}").tolist() == [numbers[name]]


def test_velocity_actuators_and_muscles_of_the_model_stay_and_motors_become_position_actuators(tmp_path: Path) -> None:
    own = '<velocity joint="wheel" kv="2"/><muscle joint="arm"/><motor joint="hand"/>'
    model = build_on_a_plane(RobotConfig(robot=file_of(tmp_path, own)))
    assert [kinds_of(model, index) - {"ctrlrange"} for index in range(3)] == [{"velocity"}, {"muscle"}, {"position"}]


def test_actuators_of_tendons_and_sites_in_the_model_stay_as_they_are(tmp_path: Path) -> None:
    own = '<general tendon="rope" gainprm="3" gear="2"/><motor site="thruster" gear="0 0 2 0 0 0"/>'
    config = RobotConfig(robot=file_of(tmp_path, own), pose={".*": 0.0})
    model = build_on_a_plane(config)
    wanted = mujoco.MjModel.from_xml_string(CART.format(own))
    for field in ("trntype", "gear", "gainprm", "biasprm", "forcerange"):
        np.testing.assert_array_equal(
            getattr(model, f"actuator_{field}")[:2], getattr(wanted, f"actuator_{field}"), err_msg=field
        )
    assert read_robot(model, config).joint_names == ("wheel", "arm", "hand")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"stiffness": {"knee": 3.0}}, r"^--env.stiffness has the pattern 'knee', which matches none of wh"),
        ({"actuators": {"knee": "effort"}}, r"^--env.actuators knee matches no joint, tendon or site of the robot"),
        ({"actuators": {"arm": "motor"}}, r"^env.actuators is \{'arm': 'motor'\}, but must have one of 'position', 'v"),
        ({"damping": {"arm": -1.0}}, r"^env.damping is \{'arm': -1.0\}, but must be 0 or more and finite for each pat"),
        ({"effort_limit": {"arm": np.inf}}, r"^env.effort_limit is \{'arm': inf\}, but must be 0 or more and finite"),
        ({"actuators": {"arm": "velocity"}}, r"^--env.actuators makes arm a velocity actuator, .* --env.damping\.$"),
        ({"actuators": {"thruster": "position"}}, r"^--env.actuators makes the site thruster a position actuator, but"),
        ({"armature": {"thruster": 3.0}, "actuators": {"thruster": "effort"}}, r"^--env.armature has the"),
    ],
)  # fmt: skip
def test_what_no_actuator_can_be_is_refused(flags: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        build_on_a_plane(RobotConfig(robot=file_of(tmp_path), **flags))


def test_a_muscle_has_no_stiffness_and_a_bias_that_does_not_act_is_no_velocity_actuators() -> None:
    model = mujoco.MjModel.from_xml_string(
        CART.format('<muscle joint="arm"/><general joint="wheel" gainprm="2" biasprm="0 0 -2" biastype="none"/>')
    )
    kp, kd, _ = joint_gains(model, [0, 1])
    assert (kp.tolist(), kd.tolist()) == ([0.0, 0.0], [0.0, 0.0])
    assert [kinds_of(model, index) - {"ctrlrange"} for index in (0, 1)] == [{"muscle"}, {"effort"}]


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_wheels_are_driven_by_speed_while_the_arm_is_by_position(engine: Any, tmp_path: Path) -> None:
    config = task_config(
        RobotConfig,
        robot=file_of(tmp_path),
        engine=engine,
        pose={"arm": 0.3, "wheel|hand": 0.0},
        actuators={"wheel": "velocity", "hand": "none"},
        damping={"wheel": 3.0},
        actions={
            "wheels": Action("joint_velocity", actuators="wheel", scale=2.0),
            "arm": Action("joint_position", actuators="arm", scale=0.5),
        },
        observations={"policy": {"speed": Obs("joint_vel_rel", joints="wheel")}},
        rewards={"alive": Reward("is_alive", weight=1.0)},
    )
    task = RobotTask(config, num_envs=1, device="cpu", seed=0)
    assert task.ctrl.numpy()[0].tolist() == pytest.approx([0.0, 0.3])  # The arm holds its pose, and the wheel is still.
    task.actions.assign(np.array([[2.0, -1.0]], dtype=np.float32))
    for _ in range(50):
        task.step()
    assert task.ctrl.numpy()[0].tolist() == pytest.approx([4.0, -0.2])
    assert task.qvel.numpy()[0, 6] == pytest.approx(4.0, abs=0.02)
