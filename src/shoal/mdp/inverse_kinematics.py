"""Actions that move a site: damped least squares for the joints' targets. `shoal.mdp.actions` names them too.

Buss, "Introduction to inverse kinematics with Jacobian transpose, pseudoinverse and damped least squares methods".
"""

from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import Actuators, SiteId
from shoal.mdp.needs import POSITION


@wp.func
def site_jacobian(state: Any, env: int, site: SiteId, dof: int) -> wp.spatial_vector:
    """Return the velocity [m/s] and angular velocity [rad/s] of a site in the world for a speed of 1 of a joint."""
    moved = state.default_dof_bodyid[dof]
    body = wp.int32(state.default_site_bodyid[site])
    while body > moved:  # A body comes after its parent.
        body = state.default_body_parentid[body]
    if body != moved:
        return wp.spatial_vector()
    motion = state.cdof[env, dof]  # Of the point at the centre of mass of the robot; the rotation comes first.
    arm = state.site_xpos[env, site] - state.subtree_com[env, state.default_body_rootid[moved]]
    turn = wp.spatial_top(motion)
    return wp.spatial_vector(wp.spatial_bottom(motion) + wp.cross(turn, arm), turn)


@wp.func
def differential_ik(
    state: Any,
    env: int,
    action: wp.spatial_vector,
    actuators: Annotated[Actuators, POSITION],
    site: SiteId,
    delta_pos_scale: float = 1.0,
    delta_ori_scale: float = 1.0,
    damping: float = 0.05,
    max_dq: float = 0.5,
    position_weight: float = 1.0,
    orientation_weight: float = 1.0,
) -> None:
    """Set the targets of position actuators so that a site moves and turns in the world, from where it is now.

    The action is a distance, `delta_pos_scale` [m] for each unit, and a rotation vector, `delta_ori_scale` [rad]. The
    joints' distances q to the targets, each within `max_dq` [rad or m], minimise |W (J q - action)|² + damping² |q|²;
    `damping` is at least 0.001.
    """
    square = wp.pow(wp.max(damping, 1e-3), 2.0)
    moving = square * wp.identity(n=3, dtype=wp.float32)
    turning = square * wp.identity(n=3, dtype=wp.float32)
    both = wp.mat33()
    for i in range(actuators.shape[0]):
        column = site_jacobian(state, env, site, actuators[i].dof)
        move, turn = position_weight * wp.spatial_top(column), orientation_weight * wp.spatial_bottom(column)
        moving += wp.outer(move, move)
        turning += wp.outer(turn, turn)
        both += wp.outer(move, turn)
    distance = position_weight * delta_pos_scale * wp.spatial_top(action)
    rotation = orientation_weight * delta_ori_scale * wp.spatial_bottom(action)
    # Of the system [moving, both; bothᵀ, turning] [force; torque] = [distance; rotation], the torque is eliminated.
    solved = both * wp.inverse(turning)
    force = wp.inverse(moving - solved * wp.transpose(both)) * (distance - solved * rotation)
    torque = wp.inverse(turning) * (rotation - wp.transpose(both) * force)
    wrench = wp.spatial_vector(position_weight * force, orientation_weight * torque)
    for i in range(actuators.shape[0]):
        change = wp.dot(site_jacobian(state, env, site, actuators[i].dof), wrench)
        target = state.qpos[env, actuators[i].qpos] + wp.clamp(change, -max_dq, max_dq)
        state.ctrl[env, actuators[i].index] = actuators[i].gear * target


@wp.func
def differential_ik_position(
    state: Any,
    env: int,
    action: wp.vec3,
    actuators: Annotated[Actuators, POSITION],
    site: SiteId,
    delta_pos_scale: float = 1.0,
    damping: float = 0.05,
    max_dq: float = 0.5,
) -> None:
    """Set the targets of position actuators so that a site moves in the world, turned as it may: `differential_ik`."""
    both = wp.spatial_vector(action, wp.vec3())
    differential_ik(state, env, both, actuators, site, delta_pos_scale, 1.0, damping, max_dq, 1.0, 0.0)
