"""The torques with which a robot does what a motion does, and the position targets that give them."""

import copy

import mujoco
import numpy as np
from numpy.typing import NDArray

from shoal.mdp.actuators import acts_on_scalar_joint, joint_gains, kinds_of
from shoal.tasks.humanoid.motion import Motion

_NEAR = 0.03
"""What is nearer to the ground stands on it [m]: feet of recorded motions float and sink by a few centimetres."""
_LEVER = 0.3
"""An error of a torque counts as one of a force with this lever [m]."""
_RIDGE = 1e-4
"""Weight of the squares of the forces on the ground beside those of the errors: many feet share them alike."""


def torques_of(model: mujoco.MjModel, motion: Motion) -> NDArray[np.float64]:
    """Return the generalized forces of a motion on the ground at height 0, (frames, nv) [N m; N].

    They are those of inverse dynamics, less the forces of the ground on geoms near it: within pyramids of friction, and
    such that the least force is left at the base, which nothing drives. Those left are the first six columns.
    """
    free = copy.copy(model)
    free.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    touching = copy.copy(model)
    touching.geom_margin[model.geom_bodyid == 0] = _NEAR
    data, at_ground = mujoco.MjData(free), mujoco.MjData(touching)
    accelerations = np.gradient(motion.qvel, 1.0 / motion.fps, axis=0)
    torques = np.empty_like(motion.qvel)
    for frame, torque in enumerate(torques):
        data.qpos[:], data.qvel[:], data.qacc[:] = motion.qpos[frame], motion.qvel[frame], accelerations[frame]
        mujoco.mj_inverse(free, data)
        at_ground.qpos[:] = motion.qpos[frame]
        mujoco.mj_fwdPosition(touching, at_ground)
        pushes = _pushes(touching, at_ground)
        torque[:] = data.qfrc_inverse - pushes.T @ _least_squares(pushes[:, :6], data.qfrc_inverse[:6])
    return torques


def targets_of(model: mujoco.MjModel, motion: Motion) -> NDArray[np.float64]:
    """Return what position actuators are to be asked for to follow a motion, (frames, nu) [rad or m].

    Their torque is stiffness times what is left to the target, less damping times speed. Other actuators have 0.
    """
    targets = np.zeros((len(motion.qpos), model.nu))
    held = [
        index
        for index in range(model.nu)
        if "position" in kinds_of(model, index) and acts_on_scalar_joint(model, index)
    ]
    joints = model.actuator_trnid[held, 0]
    stiffness, damping, _ = joint_gains(model, held)
    dofs = model.jnt_dofadr[joints]
    torques = torques_of(model, motion)[:, dofs] + damping * motion.qvel[:, dofs]
    targets[:, held] = motion.qpos[:, model.jnt_qposadr[joints]] + torques / stiffness
    return targets


def _pushes(model: mujoco.MjModel, data: mujoco.MjData) -> NDArray[np.float64]:
    """Return the generalized forces of 1 N along each edge of the pyramids of friction, (edges, nv)."""
    rows = [np.zeros((0, model.nv))]
    jacobian = np.zeros((3, model.nv))
    for contact in data.contact:
        ground, other = sorted(contact.geom, key=lambda geom: model.geom_bodyid[geom])
        if model.geom_bodyid[ground] != 0:
            continue
        mujoco.mj_jac(model, data, jacobian, None, contact.pos, model.geom_bodyid[other])
        normal, *sides = contact.frame.reshape(3, 3)
        up = normal if ground == contact.geom[0] else -normal
        rows.append(np.array([up + sign * contact.friction[0] * side for side in sides for sign in (-1, 1)]) @ jacobian)
    return np.concatenate(rows)


def _least_squares(pushes: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how strong each push is, 0 or more, so that all together are nearest to what is wanted at the base."""
    edges = len(pushes)
    if not edges:
        return np.zeros(0)
    weights = np.repeat([1.0, 1.0 / _LEVER], 3)
    weighted = pushes * weights
    strengths, factor = np.zeros(edges), np.zeros((edges, edges + 7))
    mujoco.mju_boxQP(
        strengths,
        factor,
        None,
        weighted @ weighted.T + _RIDGE * np.eye(edges),
        -weighted @ (weights * wanted),
        np.zeros(edges),
        np.full(edges, np.inf),
    )
    return strengths
