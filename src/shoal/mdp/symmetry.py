"""Velocity tasks seen in a mirror, with left and right exchanged: what rsl_rl's symmetry appends to mini-batches.

Mittal et al., "Symmetry considerations for learning task symmetric robot policies", arXiv:2403.04359.
"""

import functools
from typing import Any

import mujoco
import numpy as np
import torch
from tensordict import TensorDict

from shoal.errors import UsageError
from shoal.mdp.robots import Robot

_SIGNS = {
    "base_lin_vel": (1, -1, 1),
    "base_ang_vel": (-1, 1, -1),
    "projected_gravity": (1, -1, 1),
    "velocity_command": (1, -1, -1),
}
"""Signs of what keeps its column, by the function of the term."""
_BY_JOINT = {"joint_pos_rel", "joint_vel_rel", "last_action"}
"""Functions with a column for each joint."""
_SAME_PLACE = 0.02
"""Largest distance between a joint's place in the mirror and its partner's [m]."""
_SAME_ANGLE = 0.02
"""Largest difference of their angles in the keyframe [rad], and of the cosine between their axes from 1."""


def mirror(
    env: Any,
    obs: TensorDict | None,
    actions: torch.Tensor | None,
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """Return observations and actions with their mirror images appended. Shapes (2 * num, ...).

    Raises:
        UsageError: The robot's left side is no mirror image of its right one.
    """
    task = env.unwrapped.task
    if obs is not None:
        flipped = {
            name: group[:, columns] * signs for name, group in obs.items() for columns, signs in [_columns(task, name)]
        }
        obs = torch.cat((obs, TensorDict(flipped, batch_size=obs.batch_size, device=obs.device)))  # type: ignore[arg-type]
    if actions is not None:
        partners, signs = mirrored_joints(task.model, task.robot)
        factors = torch.as_tensor(signs, dtype=torch.float32, device=actions.device)
        actions = torch.cat((actions, actions[:, partners] * factors))
    return obs, actions


@functools.lru_cache(maxsize=4)
def _columns(task: Any, group: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the column of which each observation of a group is the mirror image, and its sign."""
    partners, joint_signs = mirrored_joints(task.model, task.robot)
    columns, signs = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for name, bound in task.bound.observations[group].items():
        function, count = bound.function.key, len(bound.columns)
        order, factors = np.arange(count), np.ones(count)
        if function in _SIGNS:
            factors = np.array(_SIGNS[function])
        elif function in _BY_JOINT and count == len(partners):
            order, factors = partners, joint_signs
        elif function == "height_scan":
            points = np.array([list(map(float, column.split())) for column in bound.columns])
            order = np.array([np.argmin(np.abs(points - point * (1, -1)).sum(axis=1)) for point in points])
        else:
            raise UsageError(
                f"--agent.algorithm.symmetry.enabled needs to know the mirror image of the observation {name} "
                f"({function}), but does not: pass --agent.algorithm.symmetry.no-enabled."
            )
        for _ in range(getattr(getattr(task.config.observations, group), name).history):
            columns.append(sum(map(len, columns)) + order)
            signs.append(factors)
    device = task.device.alias
    return (
        torch.as_tensor(np.concatenate(columns), device=device),
        torch.as_tensor(np.concatenate(signs), dtype=torch.float32, device=device),
    )


def mirrored_joints(model: mujoco.MjModel, robot: Robot) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each joint's mirror image, and the sign of its angle there. Shapes (num_joints,).

    Raises:
        UsageError: A joint has none.
    """
    data = mujoco.MjData(model)
    data.qpos[:] = robot.start
    mujoco.mj_kinematics(model, data)
    to_base = data.xmat[robot.base].reshape(3, 3)
    joints = model.actuator_trnid[:, 0]
    places = (data.xanchor[joints] - data.xpos[robot.base]) @ to_base
    axes = data.xaxis[joints] @ to_base
    angles = robot.start[model.jnt_qposadr[joints]]
    partners, signs = [], []
    for joint, name in enumerate(robot.joint_names):
        distances = np.linalg.norm(places - places[joint] * (1, -1, 1), axis=1)
        # An axis is a pseudovector: what the mirror keeps is its part in the plane's direction.
        alike = axes @ (axes[joint] * (-1, 1, -1))
        differences = np.abs(angles - np.sign(alike) * angles[joint])
        fitting = (distances < _SAME_PLACE) & (np.abs(alike) > 1 - _SAME_ANGLE) & (differences < _SAME_ANGLE)
        if not fitting.any():
            raise UsageError(
                f"--agent.algorithm.symmetry.enabled needs a robot whose left side is the mirror image of its right "
                f"one, but joint {name} has no partner in its keyframe: pass "
                "--agent.algorithm.symmetry.no-enabled."
            )
        partners.append(int(np.argmin(np.where(fitting, distances, np.inf))))
        signs.append(np.sign(alike[partners[-1]]))
    return np.array(partners), np.array(signs)
