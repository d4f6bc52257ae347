"""Motions: files of each kind, other rates, and the velocities of all bodies, with MuJoCo as oracle."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from support.bombs import ARRAYS

from shoal.errors import UsageError
from shoal.mdp.robots import build_on_a_plane
from shoal.tasks.humanoid.motion import Motion, motion_file, read_motion, write_motion
from shoal.tasks.humanoid.tracking import G1_TRACKING, HUMANOID


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return build_on_a_plane(HUMANOID)


@pytest.fixture(scope="module")
def motion(model: mujoco.MjModel) -> Motion:
    return read_motion(motion_file("squats"), model)


def test_velocities_are_those_of_the_poses(model: mujoco.MjModel, motion: Motion) -> None:
    middle = slice(1, -1)
    moved = (motion.body_pos[2:] - motion.body_pos[:-2]) * motion.fps / 2
    np.testing.assert_allclose(motion.body_lin_vel[middle], moved, atol=0.05)
    turned = np.zeros((len(motion.qpos) - 2, model.nbody, 3))
    for frame in range(len(turned)):
        for body in range(1, model.nbody):
            before, after, turn = *motion.body_quat[[frame, frame + 2], body], np.zeros(4)
            mujoco.mju_negQuat(turn, before)
            mujoco.mju_mulQuat(turn, after, turn.copy())
            mujoco.mju_quat2Vel(turned[frame, body], turn, 2 / motion.fps)
    np.testing.assert_allclose(motion.body_ang_vel[middle], turned, atol=0.1)


def test_the_motion_that_ships_stays_within_the_limits_and_on_the_ground(model: mujoco.MjModel, motion: Motion) -> None:
    lower, upper = model.jnt_range[1:].T
    assert (motion.qpos[:, 7:] >= lower - 1e-6).all()
    assert (motion.qpos[:, 7:] <= upper + 1e-6).all()
    data = mujoco.MjData(model)
    for pose in motion.qpos[::20]:
        data.qpos[:] = pose
        mujoco.mj_forward(model, data)
        deepest = min((contact.dist for contact in data.contact if 0 in contact.geom), default=0.0)
        assert -0.002 < deepest <= 0.0
    feet = motion.body_pos[:, [model.body("foot_left").id, model.body("foot_right").id]].mean(axis=1)
    np.testing.assert_allclose(feet[:, :2], feet[:1, :2].repeat(len(feet), 0), atol=1e-6)


def test_another_rate_passes_through_the_same_poses(model: mujoco.MjModel, motion: Motion) -> None:
    faster = read_motion(motion_file("squats"), model, fps=2 * motion.fps)
    assert faster.seconds == motion.seconds
    np.testing.assert_allclose(faster.qpos[::2], motion.qpos, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(faster.qpos[:, 3:7], axis=1), 1.0, atol=1e-9)
    slower = read_motion(motion_file("squats"), model, fps=30.0)
    assert len(slower.qpos) == 1 + int(motion.seconds * 30)


def test_each_kind_of_file_gives_the_same_motion(model: mujoco.MjModel, motion: Motion, tmp_path: Path) -> None:
    write_motion(tmp_path / "own.npz", motion, model)
    np.savez(tmp_path / "qpos.npz", fps=motion.fps, qpos=motion.qpos)
    with np.load(tmp_path / "own.npz") as own:
        mjlab = {name: own[name] for name in own if not name.endswith("names")}
        order = np.random.default_rng(0).permutation(model.nq - 7)
        shuffled = dict(own) | {name: own[name][..., order] for name in ("joint_pos", "joint_vel", "joint_names")}
    np.savez(tmp_path / "mjlab.npz", **mjlab)
    np.savez(tmp_path / "shuffled.npz", **shuffled)
    table = np.concatenate([motion.qpos[:, :3], motion.qpos[:, [4, 5, 6, 3]], motion.qpos[:, 7:]], axis=1)
    np.savetxt(tmp_path / "unitree.csv", table, delimiter=",")
    for file in ("own.npz", "qpos.npz", "mjlab.npz", "shuffled.npz"):
        np.testing.assert_allclose(read_motion(tmp_path / file, model).qpos, motion.qpos, atol=1e-5, err_msg=file)
    csv = read_motion(tmp_path / "unitree.csv", model, file_fps=motion.fps)
    np.testing.assert_allclose(csv.qvel, motion.qvel, atol=1e-5)


TWO_JOINTS = """
<mujoco><worldbody><body name="base" pos="0 0 1"><freejoint/><geom size="0.1"/>
  <body name="leg"><joint name="hip" axis="0 1 0"/><geom size="0.1"/></body>
  <body name="arm"><joint name="elbow" axis="0 1 0"/><geom size="0.1"/></body>
</body></worldbody></mujoco>"""


def test_a_motion_of_holosoma_has_the_free_joint_first_and_the_world_as_first_body(tmp_path: Path) -> None:
    model = mujoco.MjModel.from_xml_string(TWO_JOINTS)
    # Base at (i, 2, 0.5), turned about z: (0.6, 0, 0, 0.8) has length 1. The file has the elbow first.
    joint_pos = np.array([[frame, 2, 0.5, 0.6, 0, 0, 0.8, 0.3, -0.1 * frame] for frame in range(3)], dtype=np.float32)
    bodies = np.zeros((3, 4, 3))
    bodies[:, 1:] = joint_pos[:, None, :3]
    turns = np.zeros((3, 4, 4))
    turns[:, 0, 0], turns[:, 1:] = 1, joint_pos[:, None, 3:7]
    whole: dict[str, Any] = {"fps": np.array([50]), "body_pos_w": bodies, "body_quat_w": turns}
    whole |= {"body_names": ["world", "base", "leg", "arm"], "joint_names": ["elbow", "hip"]}
    np.savez(tmp_path / "holosoma.npz", **whole, joint_pos=joint_pos, joint_vel=np.zeros((3, 8)))
    motion = read_motion(tmp_path / "holosoma.npz", model)
    expected = [[frame, 2, 0.5, 0.6, 0, 0, 0.8, -0.1 * frame, 0.3] for frame in range(3)]
    np.testing.assert_allclose(motion.qpos, expected, atol=1e-7)
    # 50 frames a second: the base moves 1 m in each, the hip -0.1 rad.
    np.testing.assert_allclose(motion.qvel[1], [50, 0, 0, 0, 0, 0, -5, 0], atol=1e-5)
    # Joints alone, and the base from the second body.
    np.savez(tmp_path / "joints.npz", **whole, joint_pos=joint_pos[:, 7:])
    np.testing.assert_allclose(read_motion(tmp_path / "joints.npz", model).qpos, expected, atol=1e-7)


def test_a_motion_has_the_poses_of_objects_that_move_freely_as_well(tmp_path: Path) -> None:
    box = '<body name="box/body"><freejoint/><geom size="0.1"/></body></worldbody>'
    model = mujoco.MjModel.from_xml_string(TWO_JOINTS.replace("</worldbody>", box))
    robot = np.array([[frame, 2, 0.5, 0.6, 0, 0, 0.8, -0.1 * frame, 0.3] for frame in range(3)])
    # The box rises by 0.2 m and turns by 0.1 rad about x in each frame.
    turns = [[np.cos(0.05 * frame), np.sin(0.05 * frame), 0, 0] for frame in range(3)]
    pos, quat = np.array([[1, 0, 0.2 * frame] for frame in range(3)]), np.array(turns)
    expected = np.concatenate([robot, pos, quat], axis=1)
    base = {"body_pos_w": robot[:, None, :3], "body_quat_w": robot[:, None, 3:7]}
    moved = {"object_pos_w": pos, "object_quat_w": 2 * quat}
    files: dict[str, dict[str, Any]] = {
        "whole": {"qpos": expected},
        "beside": {"qpos": robot, **moved},
        "mjlab": {"joint_pos": robot[:, 7:], **base, **moved},
        "several": {"joint_pos": robot[:, 7:], **base, **{name: each[:, None] for name, each in moved.items()}},
        "turned": {"joint_pos": robot[:, [8, 7]], "joint_names": ["elbow", "hip"], **base, **moved},
    }
    for name, arrays in files.items():
        np.savez(tmp_path / f"{name}.npz", fps=50, **arrays)
        np.testing.assert_allclose(read_motion(tmp_path / f"{name}.npz", model).qpos, expected, atol=1e-7, err_msg=name)
    motion = read_motion(tmp_path / "whole.npz", model)
    write_motion(tmp_path / "own.npz", motion, model)
    np.testing.assert_allclose(read_motion(tmp_path / "own.npz", model).qpos, expected, atol=1e-6)
    np.testing.assert_allclose(motion.body_lin_vel[1, -1], [0, 0, 10], atol=1e-6)
    np.testing.assert_allclose(motion.body_ang_vel[1, -1], [5, 0, 0], atol=1e-6)
    between = read_motion(tmp_path / "beside.npz", model, fps=100.0)
    np.testing.assert_allclose(between.qpos[1, 9:], [1, 0, 0.1, np.cos(0.025), np.sin(0.025), 0, 0], atol=1e-7)
    np.savez(tmp_path / "none.npz", fps=50, qpos=robot)
    with pytest.raises(
        UsageError, match=r"none\.npz cannot be read \(has no 'object_pos_w'\): .* with object_pos_w and"
    ):
        read_motion(tmp_path / "none.npz", model)


@pytest.mark.parametrize(
    ("joint", "name", "said"),
    [
        ('name="hip" axis="0 1 0"', 'name="hip" type="ball"', r"this robot has hip \(ball\)"),
        ("<freejoint/>", '<joint name="root"/>', r"this robot has root \(hinge\)"),
        (
            "<worldbody>",
            '<worldbody><body><freejoint name="box"/><geom size="1"/></body>',
            r"this robot has .* \(free\)",
        ),
    ],
)
def test_a_robot_whose_joints_a_motion_does_not_have_is_refused(
    joint: str, name: str, said: str, tmp_path: Path
) -> None:
    model = mujoco.MjModel.from_xml_string(TWO_JOINTS.replace(joint, name))
    np.savez(tmp_path / "a.npz", fps=50, qpos=np.tile(model.qpos0, (3, 1)))
    with pytest.raises(UsageError, match=rf"^A motion is of a free joint, and then of hinges and slides, but {said}"):
        read_motion(tmp_path / "a.npz", model)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (None, r"^There is no motion .*a\.npz\."),
        ({}, r"cannot be read \(has no 'fps'\): pass an \.npz file with fps and qpos"),
        ({"fps": 50, "qpos": np.ones((5, 10))}, r"has 3 joints, but the robot has 21: pass the robot that it was made"),
        ({"fps": 50, "qpos": np.ones((1, 28))}, r"has 1 frames, 50 a second, and is finite: two finite frames"),
        ({"fps": 50, "qpos": np.full((3, 28), np.nan)}, r"has 3 frames, 50 a second, and is not finite"),
        ({"fps": 50, "qpos": np.zeros((3, 28))}, r"has frames whose base has no orientation, but zeros"),
        (
            {"fps": 50, "qpos": np.ones((3, 28)), "joint_names": ["a"]},
            r"it has 1 joints, the robot 21; missing",
        ),
        ({"fps": 50, "qpos": np.array({}, dtype=object)}, r"cannot be read \(Object arrays cannot be loaded"),
    ],
)
def test_a_motion_that_does_not_fit_is_refused(
    model: mujoco.MjModel, tmp_path: Path, arrays: dict[str, Any] | None, said: str
) -> None:
    if arrays is not None:
        np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UsageError, match=said):
        read_motion(tmp_path / "a.npz", model)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_are_not_what_they_say_are_refused(model: mujoco.MjModel, tmp_path: Path, kind: str) -> None:
    ARRAYS[kind](tmp_path / "a.npz")
    with pytest.raises(UsageError, match=r"^The motion .*a\.npz cannot be read \(.{8,}\): pass an \.npz file"):
        read_motion(tmp_path / "a.npz", model)


WHOLE: dict[str, Any] = {"fps": 50, "joint_pos": np.ones((3, 21))}
WHOLE |= {"body_pos_w": np.ones((3, 2, 3)), "body_quat_w": np.ones((3, 2, 4))}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "changes",
    [
        {"fps": np.zeros(0)},
        {"fps": "fast"},
        {"fps": np.nan},
        {"fps": np.inf},
        {"fps": -50},
        {"fps": 1e-9},
        {"joint_pos": np.ones(3)},
        {"joint_pos": np.ones((3, 21, 2))},
        {"joint_pos": np.ones((9, 21))},
        {"body_pos_w": np.ones((3, 2))},
        {"body_pos_w": np.full((3, 2, 3), "one")},
        {"body_quat_w": np.full((3, 2, 4), "one")},
        {"body_quat_w": np.ones((3, 2, 2))},
        {"qpos": np.full((3, 28), "one")},
        {"qpos": np.ones(3)},
        {"joint_names": np.array(5)},
        {"joint_names": np.zeros((2, 0))},
    ],
    ids=str,
)
def test_a_motion_that_lies_is_refused(model: mujoco.MjModel, tmp_path: Path, changes: dict[str, Any]) -> None:
    np.savez(tmp_path / "a.npz", **WHOLE | changes)
    with pytest.raises(UsageError, match=r"^The motion .*a\.npz "):
        read_motion(tmp_path / "a.npz", model, fps=50.0)


@pytest.mark.parametrize("text", ["", "word", "1,2,3", "1,2\n3", "1;2;3;4;5;6;7;8"])
def test_a_table_that_is_no_motion_is_refused(model: mujoco.MjModel, tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"^The motion .*a\.csv "):
        read_motion(tmp_path / "a.csv", model)


def test_a_motion_of_holosoma_is_found_by_its_name_and_its_bodies_are_where_the_file_says() -> None:
    for package in ("mjlab", "holosoma"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make robots")
    file = motion_file(G1_TRACKING.motion)
    model = build_on_a_plane(G1_TRACKING)
    motion = read_motion(file, model)
    with np.load(file) as arrays:
        names, positions = arrays["body_names"].tolist(), arrays["body_pos_w"]
    tracked = [name for name in names if re.fullmatch(G1_TRACKING.bodies, name)]
    assert len(tracked) == 14  # BeyondMimic's.
    for name in tracked:
        own, said = motion.body_pos[:, model.body(name).id], positions[:, names.index(name)]
        # From the same joints: above the waist mjlab's model has its bodies up to a centimetre from holosoma's.
        np.testing.assert_allclose(own, said, atol=1e-4 if re.search("pelvis|hip|knee|ankle", name) else 0.0101)
