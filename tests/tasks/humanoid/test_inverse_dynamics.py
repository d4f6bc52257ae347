"""Torques of a motion, and targets that give them: against MuJoCo's forward dynamics, and a block by hand."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from shoal.tasks.humanoid.inverse_dynamics import targets_of, torques_of
from shoal.tasks.humanoid.motion import motion_file, of_poses, read_motion
from shoal.tasks.humanoid.tracking import HUMANOID
from shoal.tasks.humanoid.tracking_task import Tracking

BLOCK = """
<mujoco><worldbody>
  <geom type="plane" size="5 5 1" friction="0.5"/>
  <body pos="0 0 0.1"><freejoint/><geom type="box" size="0.2 0.2 0.1" mass="3" friction="0.5"/></body>
</worldbody></mujoco>
"""
MASS, GRAVITY, FRICTION = 3.0, 9.81, 0.5


@pytest.mark.parametrize(
    ("acceleration", "left"),
    [
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
        ((3.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
        ((0.0, 0.0, -GRAVITY), (0.0, 0.0, 0.0)),
        ((0.0, 0.0, -2 * GRAVITY), (0.0, 0.0, -MASS * GRAVITY)),  # The ground cannot pull.
    ],
    ids=["it rests", "friction moves it", "it falls", "it is torn down"],
)
def test_the_ground_pushes_a_block_as_far_as_it_can(
    acceleration: tuple[float, float, float], left: tuple[float, float, float]
) -> None:
    model = mujoco.MjModel.from_xml_string(BLOCK)
    times = np.arange(-2, 3)[:, None] * 0.01
    poses = np.tile(model.qpos0, (5, 1))
    poses[:, :3] += 0.5 * np.array(acceleration) * times**2
    torques = torques_of(model, of_poses(poses, model, fps=100.0))
    np.testing.assert_allclose(torques[2], [*left, 0.0, 0.0, 0.0], atol=0.03)


def test_the_ground_pushes_upwards_where_it_is_the_second_geom_of_a_contact() -> None:
    ground, ball = (
        BLOCK.replace('type="plane" size="5 5 1"', 'type="box" size="5 5 1" pos="0 0 -1"'),
        'type="sphere" size="0.1"',
    )
    model = mujoco.MjModel.from_xml_string(ground.replace('type="box" size="0.2 0.2 0.1"', ball))
    torques = torques_of(model, of_poses(np.tile(model.qpos0, (5, 1)), model, fps=100.0))
    np.testing.assert_allclose(torques[2], 0.0, atol=0.03)


def test_friction_gives_a_sliding_block_no_more_than_its_share_of_the_weight() -> None:
    model = mujoco.MjModel.from_xml_string(BLOCK)
    poses = np.tile(model.qpos0, (5, 1))
    poses[:, 0] += 0.5 * 20.0 * (np.arange(-2, 3) * 0.01) ** 2
    left = torques_of(model, of_poses(poses, model, fps=100.0))[2]
    # The nearest force in the cone to (m a, m g) leaves one at a right angle to the cone's side.
    assert left[2] == pytest.approx(-FRICTION * left[0], rel=0.2)
    assert 0.7 * MASS * (20.0 - FRICTION * GRAVITY) < left[0] < MASS * (20.0 - FRICTION * GRAVITY)


def test_a_robot_in_the_air_needs_the_torques_that_moved_it() -> None:
    model = Tracking.build_model(HUMANOID)
    model.opt.timestep, model.opt.disableflags = 0.0005, mujoco.mjtDisableBit.mjDSBL_ACTUATION
    data = mujoco.MjData(model)
    data.qpos[2] = 5.0
    phases = np.random.default_rng(1).uniform(0, 2 * np.pi, model.nv - 6)
    poses, applied = [], []
    for _ in range(100):
        data.qfrc_applied[6:] = 3.0 * np.sin(20.0 * data.time + phases)
        poses.append(data.qpos.copy())
        applied.append(data.qfrc_applied.copy())
        mujoco.mj_step(model, data)
    torques = torques_of(model, of_poses(np.array(poses), model, fps=1 / model.opt.timestep))
    np.testing.assert_allclose(torques[5:-5], np.array(applied)[5:-5], atol=0.15)


def test_a_robot_that_is_asked_for_the_targets_of_its_pose_keeps_it_and_sags_without() -> None:
    model = Tracking.build_model(HUMANOID)
    pose = bent(model)
    targets = targets_of(model, of_poses(np.tile(pose, (3, 1)), model, fps=50.0))[1]
    joints = model.jnt_qposadr[model.actuator_trnid[:, 0]]
    assert sagged(model, pose, targets) < 0.25 * sagged(model, pose, pose[joints])


def test_actuators_that_are_asked_for_the_targets_give_the_torques_of_the_motion() -> None:
    model = Tracking.build_model(HUMANOID)
    motion = read_motion(motion_file("squats"), model, fps=50.0)
    torques, targets, data = torques_of(model, motion), targets_of(model, motion), mujoco.MjData(model)
    for frame in range(0, len(targets), 25):
        data.qpos[:], data.qvel[:], data.ctrl[:] = motion.qpos[frame], motion.qvel[frame], targets[frame]
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(data.qfrc_actuator[6:], torques[frame, 6:], atol=1e-6)
    assert np.abs(motion.qvel[:, 6:]).max() > 1.0


def bent(model: mujoco.MjModel) -> np.ndarray:
    """Return a pose with bent knees and the feet on the ground, whose centre of mass is above them."""
    pose, data = model.qpos0.copy(), mujoco.MjData(model)
    for side in ("left", "right"):
        for name, angle in (("hip_y", -0.5), ("knee", -1.0), ("ankle_y", -0.5)):
            pose[model.joint(f"{name}_{side}").qposadr[0]] = angle
    data.qpos[:] = pose
    mujoco.mj_kinematics(model, data)
    lowest = min(data.geom(geom).xpos[2] for geom in range(model.ngeom) if "foot" in model.geom(geom).name)
    pose[2] -= lowest - 0.027
    return pose


def sagged(model: mujoco.MjModel, pose: np.ndarray, targets: np.ndarray) -> float:
    """Return how far joints are from a pose after 0.2 s with these targets [rad]."""
    data = mujoco.MjData(model)
    data.qpos[:], data.ctrl[:] = pose, targets
    for _ in range(40):
        mujoco.mj_step(model, data)
    return float(np.linalg.norm((data.qpos - pose)[7:]))
