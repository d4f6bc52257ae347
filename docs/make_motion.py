"""Make the motion that ships: two squats, with a sway and a wave between, of the humanoid of MuJoCo Warp.

Run as `python docs/make_motion.py FILE.npz`. Joints follow smooth functions of time. In each frame the feet stay flat
on their spots, and the torso leans so far forward that the centre of mass is above them: a pose that can be held.
"""

import sys
from pathlib import Path

import mujoco
import numpy as np

from shoal.mdp.robots import build_on_a_plane, height_above_ground
from shoal.tasks.humanoid.motion import of_poses, write_motion
from shoal.tasks.humanoid.tracking import HUMANOID

FPS = 50
SECONDS = 8.0
SIDES = {"right": 1.0, "left": -1.0}


def bump(time: np.ndarray, start: float, end: float) -> np.ndarray:
    """Return a smooth rise from 0 to 1 and back between two times."""
    phase = np.clip((time - start) / (end - start), 0, 1)
    return 0.5 * (1 - np.cos(2 * np.pi * phase))


def joints_of(time: np.ndarray) -> dict[str, np.ndarray]:
    """Return the joints over time but for the hips' pitch, which `poses` finds [rad]."""
    squat = bump(time, 0.5, 3.0) + bump(time, 5.0, 7.5)
    sway = bump(time, 3.0, 4.0) - bump(time, 4.0, 5.0)
    wave = bump(time, 3.0, 5.0)
    joints: dict[str, np.ndarray] = {}
    for side, sign in SIDES.items():
        joints |= {
            f"knee_{side}": -0.1 - 1.2 * squat,
            f"ankle_y_{side}": -0.05 - 0.5 * squat,
            f"hip_x_{side}": sign * 0.08 * sway,
            f"ankle_x_{side}": -sign * 0.08 * sway,
            f"shoulder1_{side}": 0.5 * squat,
            f"shoulder2_{side}": -0.4 * squat,
            f"elbow_{side}": -0.5 - 0.3 * squat,
        }
    joints["elbow_right"] = joints["elbow_right"] - 0.6 * wave + 0.3 * wave * np.sin(4 * np.pi * (time - 3.0))
    return joints


def poses(model: mujoco.MjModel, joints: dict[str, np.ndarray]) -> np.ndarray:
    """Return `qpos` over time, (frames, nq): balanced, with the feet flat on their spots."""
    qpos = np.tile(model.qpos0, (len(next(iter(joints.values()))), 1))
    for name, values in joints.items():
        joint = model.joint(name)
        qpos[:, joint.qposadr[0]] = np.clip(values, *joint.range)
    data = mujoco.MjData(model)
    feet = [model.body(f"foot_{side}").id for side in SIDES]
    spots = None
    for row in qpos:
        forward, backward = 1.0, -0.5
        for _ in range(30):  # Bisection: leaning forward moves the centre of mass forward.
            lean = 0.5 * (forward + backward)
            _lean(model, row, lean)
            data.qpos[:] = row
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            soles = data.geom_xpos[[geom for geom in range(model.ngeom) if model.geom_bodyid[geom] in feet]]
            if data.subtree_com[1, 0] > soles[:, 0].mean():
                forward = lean
            else:
                backward = lean
        middle = data.xpos[feet].mean(axis=0)
        spots = middle if spots is None else spots
        row[:2] += (spots - middle)[:2]
        row[2] -= height_above_ground(model, row)
    return qpos


def _lean(model: mujoco.MjModel, row: np.ndarray, lean: float) -> None:
    """Pitch the base, and the hips so that the feet stay flat. The knees' axes point the other way."""
    row[3:7] = np.cos(lean / 2), 0.0, np.sin(lean / 2), 0.0
    for side in SIDES:
        knee, ankle = (row[model.joint(f"{name}_{side}").qposadr[0]] for name in ("knee", "ankle_y"))
        row[model.joint(f"hip_y_{side}").qposadr[0]] = -lean + knee - ankle


if __name__ == "__main__":
    robot = build_on_a_plane(HUMANOID)
    times = np.arange(int(SECONDS * FPS) + 1) / FPS
    write_motion(Path(sys.argv[1]), of_poses(poses(robot, joints_of(times)), robot, FPS), robot)
