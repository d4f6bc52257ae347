"""Make the motion that ships: two squats with a sway and a wave between, for a humanoid of hinges.

Joints follow smooth functions of time. The base is put where the feet stay on their spots and touch the ground.
"""

import sys
from pathlib import Path

import mujoco
import numpy as np

from shoal.mdp.robots import build_on_a_plane
from shoal.tasks.humanoid.motion import of_poses, write_motion
from shoal.tasks.humanoid.tracking import HUMANOID

FPS = 50
SECONDS = 8.0


def bump(time: np.ndarray, start: float, end: float) -> np.ndarray:
    """Return a smooth rise from 0 to 1 and back between two times."""
    phase = np.clip((time - start) / (end - start), 0, 1)
    return 0.5 * (1 - np.cos(2 * np.pi * phase))


def humanoid(time: np.ndarray) -> dict[str, np.ndarray]:
    """Return the joints of the humanoid of MuJoCo Warp over time [rad]."""
    squat = bump(time, 0.5, 3.0) + bump(time, 5.0, 7.5)
    sway = bump(time, 3.0, 4.0) - bump(time, 4.0, 5.0)
    waving = bump(time, 3.0, 5.0) * np.sin(2 * np.pi * 2.0 * (time - 3.0))
    joints: dict[str, np.ndarray] = {"abdomen_y": -0.25 * squat}
    for side, sign in (("right", 1.0), ("left", -1.0)):
        joints |= {
            f"hip_y_{side}": -0.9 * squat,
            f"knee_{side}": -1.2 * squat - 0.04,
            f"ankle_y_{side}": -0.5 * squat,
            f"hip_x_{side}": sign * 0.08 * sway,
            f"ankle_x_{side}": -sign * 0.08 * sway,
            f"shoulder1_{side}": 0.5 * squat,
            f"shoulder2_{side}": -0.4 * squat,
            f"elbow_{side}": -0.5 - 0.3 * squat,
        }
    joints["elbow_right"] = joints["elbow_right"] - 0.6 * bump(time, 3.0, 5.0) + 0.4 * waving
    return joints


def poses(model: mujoco.MjModel, joints: dict[str, np.ndarray], feet: list[str]) -> np.ndarray:
    """Return `qpos` over time, (frames, nq), with the feet on their spots."""
    frames = len(next(iter(joints.values())))
    qpos = np.tile(model.qpos0, (frames, 1))
    for name, values in joints.items():
        joint = model.joint(name)
        qpos[:, joint.qposadr[0]] = np.clip(values, *joint.range)
    data = mujoco.MjData(model)
    bodies = [model.body(foot).id for foot in feet]
    geoms = [index for index in range(model.ngeom) if model.geom_bodyid[index] in bodies]
    first = None
    for row in qpos:
        data.qpos[:] = row
        mujoco.mj_kinematics(model, data)
        spot = data.xpos[bodies].mean(axis=0)
        first = spot if first is None else first
        row[:2] += (first - spot)[:2]
        lowest = min(data.geom_xpos[geom][2] - _depth(model, data, geom) for geom in geoms)
        row[2] -= lowest
    return qpos


def _depth(model: mujoco.MjModel, data: mujoco.MjData, geom: int) -> float:
    """Return how far a capsule or sphere reaches below its middle [m]."""
    half = model.geom_size[geom, 1] if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_CAPSULE else 0.0
    return model.geom_size[geom, 0] + half * abs(data.geom_xmat[geom].reshape(3, 3)[2, 2])


if __name__ == "__main__":
    robot = build_on_a_plane(HUMANOID)
    times = np.arange(int(SECONDS * FPS) + 1) / FPS
    motion = of_poses(poses(robot, humanoid(times), ["foot_right", "foot_left"]), robot, FPS)
    write_motion(Path(sys.argv[1]), motion, robot)
