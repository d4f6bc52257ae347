"""Terms of Gymnasium's MuJoCo tasks that the library lacks. Parameters of rewards have Gymnasium's names.

The formulas are those of gymnasium/envs/mujoco/*_v5.py of Gymnasium 1.4. Bodies are named by their numbers where a
formula has all of them: body 0 is the world, and body 1 the torso.
"""

# Warp's language, whose structs, vectors and arrays pyright reads as Python's.
# pyright: reportInvalidTypeForm=false, reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false

from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import Before, BodyId, BodyIds, Joints, Memory, SiteId
from shoal.mdp.needs import FreeJointState
from shoal.mdp.random import uniform

_ANY = wp.vec2(-wp.inf, wp.inf)
_Inertia = wp.types.vector(length=10, dtype=wp.float32)

# Resets ---------------------------------------------------------------------------------------------------------------


@wp.func
def reset_noise(state: Any, env: int, reset_noise_scale: float, normal_speeds: bool) -> None:
    """Move each number of ``qpos`` by at most `reset_noise_scale`, and draw each speed [m/s, rad/s] within it.

    With `normal_speeds`, it is the standard deviation of the speeds.
    """
    for column in range(state.qpos.shape[1]):
        noise = uniform(state, env, -reset_noise_scale, reset_noise_scale)
        state.qpos[env, column] = state.qpos[env, column] + noise
    for column in range(state.qvel.shape[1]):
        if normal_speeds:
            rng = state.rng[env]
            state.qvel[env, column] = reset_noise_scale * wp.randn(rng)
            state.rng[env] = rng
        else:
            state.qvel[env, column] = uniform(state, env, -reset_noise_scale, reset_noise_scale)


@wp.func
def reset_point(state: Any, env: int, joints: Joints, x: wp.vec2, y: wp.vec2, distance: wp.vec2) -> None:
    """Put two joints, the x and y of a point, uniformly into a rectangle [m], at a `distance` from its origin [m]."""
    first = wp.float32(0.0)
    second = wp.float32(0.0)
    is_placed = wp.bool(False)
    while not is_placed:
        first = uniform(state, env, x[0], x[1])
        second = uniform(state, env, y[0], y[1])
        length = wp.length(wp.vec2(first, second))
        is_placed = distance[0] < length < distance[1]
    state.qpos[env, joints[0].qpos] = first
    state.qpos[env, joints[1].qpos] = second


# Observations ---------------------------------------------------------------------------------------------------------


@wp.func
def body_pos(state: Any, env: int, body: BodyId) -> wp.vec3:
    """Return the position of a body in the world [m]."""
    return state.xpos[env, body]


@wp.func
def body_offset(state: Any, env: int, body: BodyId, to_body: BodyId) -> wp.vec2:
    """Return x and y of a body, from another one [m]."""
    offset = state.xpos[env, body] - state.xpos[env, to_body]
    return wp.vec2(offset[0], offset[1])


@wp.func
def qfrc_constraint(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the force of constraints on a joint [N or N m]."""
    return state.qfrc_constraint[env, joints[i].dof]


@wp.func
def qfrc_actuator(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the force of actuators on a joint [N or N m]."""
    return state.qfrc_actuator[env, joints[i].dof]


@wp.func
def cinert(state: Any, env: int, i: int, bodies: BodyIds) -> _Inertia:
    """Return the mass and inertia of a body about the centre of all masses, as MuJoCo has them."""
    return state.cinert[env, bodies[i]]


@wp.func
def cvel(state: Any, env: int, i: int, bodies: BodyIds) -> wp.spatial_vector:
    """Return the angular velocity [rad/s] and the velocity [m/s] of a body at the centre of all masses."""
    return state.cvel[env, bodies[i]]


@wp.func
def cfrc_ext(state: Any, env: int, i: int, bodies: BodyIds) -> wp.spatial_vector:
    """Return torque [N m] and force [N] of contacts on a body; 0 when an episode begins."""
    if state.age[env] == 0:
        return wp.spatial_vector()
    return state.cfrc_ext[env, bodies[i]]


# Rewards and terminations ---------------------------------------------------------------------------------------------


@wp.func
def x_of_root(state: Any, env: int) -> float:
    """Return the position of the first joint [m]."""
    return state.qpos[env, 0]


@wp.func
def x_of_torso(state: Any, env: int) -> float:
    """Return x of the torso [m]."""
    return state.xpos[env, 1][0]


@wp.func
def x_of_masses(state: Any, env: int) -> float:
    """Return x of the centre of all masses, which hang from the world [m]."""
    return state.subtree_com[env, 0][0]


@wp.func
def x_velocity(state: Any, env: int, before: Annotated[Memory, Before(x_of_root)]) -> float:
    """Return the mean velocity of the first joint over the step [m/s]."""
    return (x_of_root(state, env) - before[env, 0]) / state.step_dt


@wp.func
def torso_x_velocity(state: Any, env: int, before: Annotated[Memory, Before(x_of_torso)]) -> float:
    """Return the mean velocity of the torso along x over the step [m/s]."""
    return (x_of_torso(state, env) - before[env, 0]) / state.step_dt


@wp.func
def masses_x_velocity(state: Any, env: int, before: Annotated[Memory, Before(x_of_masses)]) -> float:
    """Return the mean velocity of the centre of all masses along x over the step [m/s]."""
    return (x_of_masses(state, env) - before[env, 0]) / state.step_dt


@wp.func
def contact_cost(
    state: Any,
    env: int,
    contact_cost_weight: float,
    contact_cost_range: wp.vec2 = _ANY,
    contact_force_range: wp.vec2 = _ANY,
) -> float:
    """Return the weighted sum of the squares of forces [1/N²] and torques on all bodies, both within ranges."""
    total = wp.float32(0.0)
    for body in range(state.cfrc_ext.shape[1]):
        wrench = state.cfrc_ext[env, body]
        for part in range(6):
            value = wp.clamp(wrench[part], contact_force_range[0], contact_force_range[1])
            total += value * value
    return wp.clamp(contact_cost_weight * total, contact_cost_range[0], contact_cost_range[1])


@wp.func
def body_distance(state: Any, env: int, body: BodyId, to_body: BodyId) -> float:
    """Return the distance between two bodies [m]."""
    return wp.length(state.xpos[env, body] - state.xpos[env, to_body])


@wp.func
def distance_penalty(state: Any, env: int, site: SiteId) -> float:
    """Return 0.01 x² + (z - 2 m)² of the tip of a double pendulum."""
    tip = state.site_xpos[env, site]
    return 0.01 * tip[0] * tip[0] + (tip[2] - 2.0) * (tip[2] - 2.0)


@wp.func
def velocity_penalty(state: Any, env: int) -> float:
    """Return 0.001 v² + 0.005 w², with the speeds of the lower and of the upper pole of a double pendulum [rad/s]."""
    lower = state.qvel[env, 1]
    upper = state.qvel[env, 2]
    return 1.0e-3 * lower * lower + 5.0e-3 * upper * upper


@wp.func
def site_below_minimum(state: Any, env: int, site: SiteId, minimum_height: float) -> bool:
    """Whether a site is not above a height [m]."""
    return state.site_xpos[env, site][2] <= minimum_height


@wp.func
def root_height_out_of_limit(state: FreeJointState, env: int, bounds: wp.vec2) -> bool:
    """Whether the torso's height is outside of `bounds` [m]."""
    return state.qpos[env, 2] < bounds[0] or state.qpos[env, 2] > bounds[1]
