"""Motions of a robot: poses at a fixed rate, read from a file, resampled, and with the velocities of all bodies.

Two kinds of files are read:

- ``.npz`` with ``fps`` and either ``qpos``, (frames, nq), or mjlab's arrays ``joint_pos``, (frames, joints), and
  ``body_pos_w``, ``body_quat_w``, whose first body is the robot's base; or holosoma's, whose ``joint_pos`` is the whole
  ``qpos``, and whose first body is the world. With ``joint_names`` the joints may have another order than the model's.
  Objects that move freely are in the further columns of ``qpos``, or ``object_pos_w``, (frames, 3) or (frames, objects,
  3), and ``object_quat_w`` have their poses.
- ``.csv`` with a row for each frame: position of the base [m], its quaternion with the real part *last*, and the joints
  [rad], as Unitree retargeted LAFAN1.
"""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError, did_you_mean
from shoal.files import folder_of
from shoal.mdp.robots import height_above_ground
from shoal.reading import read_arrays, read_table, refusing
from shoal.sim.engines.model_files import files_of

CSV_FPS = 30.0
"""Rate of a CSV file, which does not tell it [frames/s]."""
_BASE = 7
"""Columns of the base in ``qpos``."""
_WITHIN = 1e-3
"""A joint may be this far beyond its range [rad]."""
_FEWEST, _MOST = 2, 200_000
"""Frames that a motion needs, and may have, also at another rate."""
_REMEDY = (
    "pass an .npz file with fps and qpos, or with fps, joint_pos, body_pos_w and body_quat_w, or a .csv file; where "
    "objects of the scene move freely, with object_pos_w and object_quat_w"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """A motion at a fixed rate. Quaternions have the real part first."""

    fps: float
    """Frames a second."""
    qpos: NDArray[np.float64]
    """Poses. Shape (frames, nq)."""
    qvel: NDArray[np.float64]
    """Velocities, as MuJoCo has them: central differences. Shape (frames, nv)."""
    body_pos: NDArray[np.float64]
    """Positions of all bodies in the world [m]. Shape (frames, nbody, 3)."""
    body_quat: NDArray[np.float64]
    """Their orientations. Shape (frames, nbody, 4)."""
    body_lin_vel: NDArray[np.float64]
    """Velocities of their origins in the world [m/s]. Shape (frames, nbody, 3)."""
    body_ang_vel: NDArray[np.float64]
    """Angular velocities in the world [rad/s]. Shape (frames, nbody, 3)."""

    @property
    def seconds(self) -> float:
        """Time from the first frame to the last [s]."""
        return (len(self.qpos) - 1) / self.fps


def motion_file(motion: str) -> Path:
    """Return the file of a motion: by its path, or by the name of one that ships, or of the package holosoma."""
    shipped = Path(__file__).with_name("motions") / f"{motion}.npz"
    if shipped.is_file() or not re.fullmatch(r"\w+", motion):
        return shipped if shipped.is_file() else Path(motion).expanduser()
    return next(iter(files_of("holosoma", f"data/motions/*/*/{motion}.npz")), Path(motion))


def read_motion(
    file: Path, model: mujoco.MjModel, *, fps: float | None = None, file_fps: float | None = None
) -> Motion:
    """Read a motion of a robot, and of the objects of its scene that move freely.

    Args:
        file: The file.
        model: The robot, whose first joint is free, and behind it the objects.
        fps: Rate of the result; None for the file's own [frames/s].
        file_fps: Rate of the file, instead of what it tells [frames/s].

    Raises:
        UsageError: The file cannot be read, or is of another robot.
    """
    if not file.is_file():
        near = did_you_mean(file.name, (each.name for each in file.parent.glob("*")))
        raise UsageError(
            f"There is no motion {file}.{near} Pass an .npz or .csv file; those of holosoma come with `pip install "
            "--no-deps holosoma`."
        )
    _refuse_other_joints(model)
    with refusing(file, _REMEDY, "The motion "):
        poses, own_fps = _poses(file, model)
    own_fps = file_fps or own_fps
    is_finite = np.isfinite(poses).all() and 0 < own_fps < np.inf
    if not is_finite or not _FEWEST <= len(poses) <= len(poses) * max((fps or own_fps) / own_fps, 1) <= _MOST:
        raise UsageError(
            f"The motion {file} has {len(poses)} frames, {own_fps:g} a second, and is "
            f"{'finite' if is_finite else 'not finite'}: two finite frames are needed at least, and at most {_MOST:,}."
        )
    return of_poses(poses if fps is None else resample(model, poses, own_fps, fps), model, fps or own_fps)


def cut(motion: Motion, model: mujoco.MjModel, start: float, end: float | None) -> Motion:
    """Return what is between two times [s]; None is the end.

    Raises:
        UsageError: Fewer than two frames are left.
    """
    first = round(start * motion.fps)
    last = len(motion.qpos) if end is None else round(end * motion.fps) + 1
    if (first, last) == (0, len(motion.qpos)):
        return motion
    if len(motion.qpos[first:last]) < _FEWEST:
        raise UsageError(
            f"--start {start:g} and --end {end or motion.seconds:g} leave nothing of a motion of {motion.seconds:g} s: "
            "pass times within it."
        )
    return of_poses(motion.qpos[first:last], model, motion.fps)


def of_poses(poses: NDArray[np.float64], model: mujoco.MjModel, fps: float) -> Motion:
    """Return the motion through poses, (frames, nq), with all velocities."""
    frames = len(poses)
    qvel = np.zeros((frames, model.nv))
    for frame in range(frames):
        before, after = max(frame - 1, 0), min(frame + 1, frames - 1)
        mujoco.mj_differentiatePos(model, qvel[frame], (after - before) / fps, poses[before], poses[after])
    data = mujoco.MjData(model)
    pos, quat = np.zeros((frames, model.nbody, 3)), np.zeros((frames, model.nbody, 4))
    velocity = np.zeros((frames, model.nbody, 6))
    for frame in range(frames):
        data.qpos[:], data.qvel[:] = poses[frame], qvel[frame]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_comVel(model, data)
        pos[frame], quat[frame] = data.xpos, data.xquat
        for body in range(1, model.nbody):
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, body, velocity[frame, body], 0)
    return Motion(
        fps=fps,
        qpos=poses,
        qvel=qvel,
        body_pos=pos,
        body_quat=quat,
        body_lin_vel=velocity[:, :, 3:],
        body_ang_vel=velocity[:, :, :3],
    )


def resample(model: mujoco.MjModel, poses: NDArray[np.float64], own_fps: float, fps: float) -> NDArray[np.float64]:
    """Return poses at another rate: along the shortest way between two, also of quaternions."""
    count = int((len(poses) - 1) * fps / own_fps + 1e-6) + 1
    resampled, step = np.empty((count, model.nq)), np.zeros(model.nv)
    for frame in range(count):
        at = min(frame * own_fps / fps, len(poses) - 1)
        first = min(int(at), len(poses) - 2)
        mujoco.mj_differentiatePos(model, step, 1.0, poses[first], poses[first + 1])
        resampled[frame] = poses[first]
        mujoco.mj_integratePos(model, resampled[frame], step, at - first)
    return resampled


def write_motion(file: Path, motion: Motion, model: mujoco.MjModel) -> None:
    """Write a motion as ``.npz`` with mjlab's arrays, of all bodies but the world, and the names of joints and bodies.

    Raises:
        OSError: It cannot be written.
    """
    written, joints = io.BytesIO(), len(_joints(model))
    objects = motion.qpos[:, _BASE + joints :].reshape(len(motion.qpos), -1, _BASE).astype(np.float32)
    poses: dict[str, Any] = (
        {"object_pos_w": objects[..., :3], "object_quat_w": objects[..., 3:]} if objects.size else {}
    )
    np.savez_compressed(
        written,
        fps=np.array([motion.fps]),
        joint_pos=motion.qpos[:, _BASE : _BASE + joints].astype(np.float32),
        joint_vel=motion.qvel[:, _BASE - 1 : _BASE - 1 + joints].astype(np.float32),
        body_pos_w=motion.body_pos[:, 1:].astype(np.float32),
        body_quat_w=motion.body_quat[:, 1:].astype(np.float32),
        body_lin_vel_w=motion.body_lin_vel[:, 1:].astype(np.float32),
        body_ang_vel_w=motion.body_ang_vel[:, 1:].astype(np.float32),
        joint_names=np.array(_joints(model)),
        body_names=np.array([model.body(index).name for index in range(1, model.nbody)]),
        **poses,
    )
    folder_of(file).write(file, written.getbuffer())


def _objects(model: mujoco.MjModel) -> int:
    """Return how many objects there are behind the robot: each is a free joint."""
    return int((model.jnt_type[1:] == mujoco.mjtJoint.mjJNT_FREE).sum())


def _joints(model: mujoco.MjModel) -> list[str]:
    """Return the names of the robot's joints after the free one."""
    return [model.joint(index).name for index in range(1, model.njnt - _objects(model))]


def _refuse_other_joints(model: mujoco.MjModel) -> None:
    """Refuse joints with other columns in ``qpos`` than a motion's: seven, one each, and seven for each object."""
    kinds = [mujoco.mjtJoint(kind).name.removeprefix("mjJNT_").lower() for kind in model.jnt_type]
    scalar = range(1, len(kinds) - _objects(model))
    fitting = [kind in {"hinge", "slide"} if index in scalar else kind == "free" for index, kind in enumerate(kinds)]
    if not kinds or not all(fitting):
        named = (f"{model.joint(at).name} ({kind})" for at, kind in enumerate(kinds) if not fitting[at])
        raise UsageError(
            "A motion is of a free joint, and then of hinges and slides, but this robot has "
            f"{', '.join(named) or 'no joint'}: pass another --env.robot."
        )


def _poses(file: Path, model: mujoco.MjModel) -> tuple[NDArray[np.float64], float]:
    """Return ``qpos`` of each frame, (frames, nq), and the rate [frames/s]."""
    if file.suffix.lower() == ".csv":
        table = read_table(file)
        joints = _with_objects(table[:, _BASE:], {}, model)
        return _whole(file, table[:, :3], table[:, [6, 3, 4, 5]], joints, model), CSV_FPS
    arrays = read_arrays(file, 2**28)
    fps = float(np.ravel(arrays["fps"])[0])
    names = [str(name) for name in np.ravel(arrays.get("joint_names", _joints(model)))[:_MOST]]
    joints = arrays["qpos"] if "qpos" in arrays else arrays["joint_pos"]
    if "qpos" in arrays or joints.shape[1] in {_BASE + len(names), model.nq}:
        qpos = np.asarray(joints, dtype=np.float64)
        base, turn, joints = qpos[:, :3], qpos[:, 3:_BASE], qpos[:, _BASE:]
    else:
        first = int(np.ravel(arrays.get("body_names", ""))[:1].tolist() == ["world"])
        base, turn = arrays["body_pos_w"][:, first], arrays["body_quat_w"][:, first]
    if sorted(names) != sorted(_joints(model)):
        missing = sorted(set(_joints(model)) - set(names)) or ["none"]
        raise UsageError(
            f"The motion {file} is of another robot: it has {len(names)} joints, the robot {len(_joints(model))}; "
            f"missing are {', '.join(missing[:5])}. Pass the robot that it was made for as --env.robot."
        )
    order = [names.index(name) for name in _joints(model)] if joints.shape[1] >= len(names) else []
    joints = joints[:, [*order, *range(len(order), joints.shape[1])]]
    return _whole(file, base, turn, _with_objects(joints, arrays, model), model), fps


def _with_objects(joints: Any, arrays: Mapping[str, Any], model: mujoco.MjModel) -> NDArray[np.float64]:  # noqa: ANN401
    """Return the columns behind the base: poses of objects are behind the joints, or else in arrays of their own."""
    if not _objects(model) or joints.shape[1] != len(_joints(model)):
        return joints
    poses = [np.reshape(arrays[f"object_{name}_w"], (len(joints), _objects(model), -1)) for name in ("pos", "quat")]
    return np.concatenate([joints, np.concatenate(poses, axis=2).reshape(len(joints), -1)], axis=1)


def _whole(file: Path, base: Any, turn: Any, joints: Any, model: mujoco.MjModel) -> NDArray[np.float64]:  # noqa: ANN401
    """Return ``qpos`` from its parts."""
    if joints.shape[1] != model.nq - _BASE:
        raise UsageError(
            f"The motion {file} has {joints.shape[1]} joints, but the robot has {model.nq - _BASE}: pass the robot "
            "that it was made for as --env.robot."
        )
    if not np.linalg.norm(turn, axis=1).all():
        raise UsageError(f"The motion {file} has frames whose base has no orientation, but zeros: check the file.")
    qpos = np.concatenate([base, turn, joints], axis=1).astype(np.float64).reshape(len(base), model.nq)
    for pose in qpos:
        mujoco.mj_normalizeQuat(model, pose)
    return qpos


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What may keep a robot from following a motion."""

    height: tuple[float, float]
    """Lowest and highest position of the base [m]."""
    travel: float
    """Horizontal way of the base [m]."""
    fastest_joint: str
    fastest_speed: float
    """Its largest speed [rad/s]."""
    joints_beyond: dict[str, float]
    """How far joints are beyond their ranges at most [rad], by name."""
    deepest: float
    """Largest depth of a geom below the ground [m]; negative if nothing touches it."""
    largest_jump: float
    """Largest change of a joint between two frames [rad]."""


def inspect(motion: Motion, model: mujoco.MjModel) -> Findings:
    """Return what may keep a robot, which stands on a plane, from following a motion."""
    joints = motion.qpos[:, _BASE:]
    lower, upper = model.jnt_range[1:].T
    limited = model.jnt_limited[1:].astype(bool)
    beyond = np.where(limited, np.maximum(lower - joints, joints - upper).max(axis=0), 0.0)
    speeds = np.abs(motion.qvel[:, _BASE - 1 :]).max(axis=0)
    names = _joints(model)
    base = motion.qpos[:, :3]
    return Findings(
        height=(float(base[:, 2].min()), float(base[:, 2].max())),
        travel=float(np.linalg.norm(np.diff(base[:, :2], axis=0), axis=1).sum()),
        fastest_joint=names[int(speeds.argmax())],
        fastest_speed=float(speeds.max()),
        joints_beyond={name: float(value) for name, value in zip(names, beyond, strict=True) if value > _WITHIN},
        deepest=-min(height_above_ground(model, pose) for pose in motion.qpos),
        largest_jump=float(np.abs(np.diff(joints, axis=0)).max()),
    )
