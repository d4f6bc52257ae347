"""Domain randomization: events that draw parameters of the model, on startup, or when an episode begins, or during it.

Names are those of mjlab's `mdp.dr`. A function draws from `ranges` by its `distribution`: `uniform` from lowest to
highest, `log_uniform` likewise with a uniform logarithm, `gaussian` with a mean and a standard deviation. By its
`operation` the number is the value (`abs`), or multiplies (`scale`) or is added to (`add`) that of the model, not what
was drawn before. It is another one for each name, unless `shared_random`.

Constants that MuJoCo derives from the model (`body_subtreemass`, `dof_invweight0`, ...) follow masses, inertias,
centres of mass, armatures and gravity, by ``mj_setConst`` and MuJoCo Warp's ``set_const``.
"""

# ruff: noqa: FBT002  Parameters of terms come by position.

from typing import Any

import warp as wp

from shoal.mdp.base import quat_of
from shoal.mdp.names import Actuator, Geom, Joint
from shoal.mdp.needs import needs
from shoal.mdp.random import uniform

# The places of the words in `shoal.mdp.terms.CHOICES`.
ABS, SCALE, ADD = wp.constant(0), wp.constant(1), wp.constant(2)
UNIFORM, LOG_UNIFORM, GAUSSIAN = wp.constant(0), wp.constant(1), wp.constant(2)
_NONE = wp.vec2(0.0, 0.0)


@wp.func
def draw(state: Any, env: wp.int32, ranges: wp.vec2, distribution: wp.int32) -> wp.float32:
    """Return a number of a distribution."""
    if distribution == GAUSSIAN:
        rng = state.rng[env]
        drawn = ranges[0] + ranges[1] * wp.randn(rng)
        state.rng[env] = rng
        return drawn
    if distribution == LOG_UNIFORM:
        return wp.exp(uniform(state, env, wp.log(ranges[0]), wp.log(ranges[1])))
    return uniform(state, env, ranges[0], ranges[1])


@wp.func
def changed(usual: wp.float32, drawn: wp.float32, operation: wp.int32) -> wp.float32:
    """Return a parameter by an operation."""
    if operation == SCALE:
        return usual * drawn
    if operation == ADD:
        return usual + drawn
    return drawn


@wp.func
def geom_friction(
    state: Any,
    env: wp.int32,
    geoms: wp.array[Geom],
    ranges: wp.vec2,
    operation: wp.int32 = ABS,
    distribution: wp.int32 = UNIFORM,
    shared_random: wp.bool = False,
) -> None:
    """Draw the sliding friction of geoms."""
    drawn = draw(state, env, ranges, distribution)
    for i in range(geoms.shape[0]):
        if i > 0 and not shared_random:
            drawn = draw(state, env, ranges, distribution)
        index = geoms[i].index
        friction = state.geom_friction[env, index]
        friction[0] = changed(state.default_geom_friction[index][0], drawn, operation)
        state.geom_friction[env, index] = friction


@wp.func
def body_mass(
    state: Any,
    env: wp.int32,
    bodies: wp.array[wp.int32],
    ranges: wp.vec2,
    operation: wp.int32 = SCALE,
    distribution: wp.int32 = UNIFORM,
    shared_random: wp.bool = False,
) -> None:
    """Draw the masses of bodies [kg], but not their inertias, as of a load at the centre of mass."""
    drawn = draw(state, env, ranges, distribution)
    for i in range(bodies.shape[0]):
        if i > 0 and not shared_random:
            drawn = draw(state, env, ranges, distribution)
        state.body_mass[env, bodies[i]] = changed(state.default_body_mass[bodies[i]], drawn, operation)


@wp.func
def body_com_offset(
    state: Any,
    env: wp.int32,
    bodies: wp.array[wp.int32],
    x: wp.vec2,
    y: wp.vec2,
    z: wp.vec2,
    operation: wp.int32 = ADD,
    distribution: wp.int32 = UNIFORM,
) -> None:
    """Draw the centres of mass of bodies, in their own frames [m]."""
    for i in range(bodies.shape[0]):
        usual = state.default_body_ipos[bodies[i]]
        state.body_ipos[env, bodies[i]] = wp.vec3(
            changed(usual[0], draw(state, env, x, distribution), operation),
            changed(usual[1], draw(state, env, y, distribution), operation),
            changed(usual[2], draw(state, env, z, distribution), operation),
        )


@wp.func
def pseudo_inertia(
    state: Any,
    env: wp.int32,
    bodies: wp.array[wp.int32],
    alpha: wp.vec2 = _NONE,
    d1: wp.vec2 = _NONE,
    d2: wp.vec2 = _NONE,
    d3: wp.vec2 = _NONE,
    s12: wp.vec2 = _NONE,
    s13: wp.vec2 = _NONE,
    s23: wp.vec2 = _NONE,
    t1: wp.vec2 = _NONE,
    t2: wp.vec2 = _NONE,
    t3: wp.vec2 = _NONE,
    distribution: wp.int32 = UNIFORM,
) -> None:
    """Draw mass, centre of mass and inertia of bodies together, so that they stay those of a possible body.

    The pseudo-inertia J becomes U J Uᵀ, U = exp(alpha) [[exp(d1), s12, s13, t1], [0, exp(d2), s23, t2],
    [0, 0, exp(d3), t3], [0, 0, 0, 1]] (Rucker and Wensing, 2022): `alpha` is half the logarithm of a factor of mass and
    inertia, `d` stretches, `s` shears and `t` moves along the body's axes. U L is mjlab's, with J = L Lᵀ.
    """
    for i in range(bodies.shape[0]):
        body = bodies[i]
        axes = wp.quat_to_matrix(quat_of(state.default_body_iquat[body]))
        mass, center = state.default_body_mass[body], state.default_body_ipos[body]
        inertia = state.default_body_inertia[body]
        # The second moments about the centre of mass: half the trace of the inertia, less the inertia.
        spread = axes * wp.diag(wp.vec3(0.5 * (inertia[0] + inertia[1] + inertia[2])) - inertia) * wp.transpose(axes)
        density = wp.exp(2.0 * draw(state, env, alpha, distribution))
        stretch = wp.identity(n=3, dtype=wp.float32)
        stretch[0, 0] = wp.exp(draw(state, env, d1, distribution))
        stretch[1, 1] = wp.exp(draw(state, env, d2, distribution))
        stretch[2, 2] = wp.exp(draw(state, env, d3, distribution))
        stretch[0, 1] = draw(state, env, s12, distribution)
        stretch[0, 2] = draw(state, env, s13, distribution)
        stretch[1, 2] = draw(state, env, s23, distribution)
        move = wp.vec3(
            draw(state, env, t1, distribution), draw(state, env, t2, distribution), draw(state, env, t3, distribution)
        )
        # U J Uᵀ moves every point p to `stretch` p + `move`, and multiplies the density.
        spread = density * (stretch * spread * wp.transpose(stretch))
        size = wp.trace(spread)
        state.body_mass[env, body] = density * mass
        state.body_ipos[env, body] = stretch * center + move
        if size == 0.0:  # A frame without mass has no axes.
            continue
        vectors, moments = wp.eig3(spread / size)
        if wp.determinant(vectors) < 0.0:
            vectors = -vectors
        turn = wp.quat_from_matrix(vectors)
        state.body_inertia[env, body] = size * (wp.vec3(1.0, 1.0, 1.0) - moments)
        state.body_iquat[env, body] = wp.vec4(turn[3], turn[0], turn[1], turn[2])


@wp.func
def joint_damping(
    state: Any,
    env: wp.int32,
    joints: wp.array[Joint],
    ranges: wp.vec2,
    operation: wp.int32 = ABS,
    distribution: wp.int32 = UNIFORM,
    shared_random: wp.bool = False,
) -> None:
    """Draw the damping of joints [N m s/rad or N s/m]."""
    drawn = draw(state, env, ranges, distribution)
    for i in range(joints.shape[0]):
        if i > 0 and not shared_random:
            drawn = draw(state, env, ranges, distribution)
        dof = joints[i].dof
        state.dof_damping[env, dof] = changed(state.default_dof_damping[dof], drawn, operation)


@wp.func
def joint_armature(
    state: Any,
    env: wp.int32,
    joints: wp.array[Joint],
    ranges: wp.vec2,
    operation: wp.int32 = ABS,
    distribution: wp.int32 = UNIFORM,
    shared_random: wp.bool = False,
) -> None:
    """Draw the reflected inertia of the motors of joints [kg m² or kg]."""
    drawn = draw(state, env, ranges, distribution)
    for i in range(joints.shape[0]):
        if i > 0 and not shared_random:
            drawn = draw(state, env, ranges, distribution)
        dof = joints[i].dof
        state.dof_armature[env, dof] = changed(state.default_dof_armature[dof], drawn, operation)


@wp.func
def joint_friction(
    state: Any,
    env: wp.int32,
    joints: wp.array[Joint],
    ranges: wp.vec2,
    operation: wp.int32 = ABS,
    distribution: wp.int32 = UNIFORM,
    shared_random: wp.bool = False,
) -> None:
    """Draw the dry friction of joints [N m or N]."""
    drawn = draw(state, env, ranges, distribution)
    for i in range(joints.shape[0]):
        if i > 0 and not shared_random:
            drawn = draw(state, env, ranges, distribution)
        dof = joints[i].dof
        state.dof_frictionloss[env, dof] = changed(state.default_dof_frictionloss[dof], drawn, operation)


@needs("position")
@wp.func
def pd_gains(
    state: Any,
    env: wp.int32,
    actuators: wp.array[Actuator],
    kp: wp.vec2,
    kd: wp.vec2,
    operation: wp.int32 = SCALE,
    distribution: wp.int32 = UNIFORM,
) -> None:
    """Draw stiffness and damping that position servos have at their joints [N m/rad, N m s/rad]."""
    for i in range(actuators.shape[0]):
        index, gear = actuators[i].index, actuators[i].gear
        unit = wp.where(operation == SCALE, 1.0, gear * gear)
        gain = state.actuator_gainprm[env, index]
        bias = state.actuator_biasprm[env, index]
        usual = state.default_actuator_gainprm[index]
        if actuators[i].is_dc_motor != 0:  # MuJoCo's layout: resistance, ..., stiffness, ..., damping.
            gain[4] = changed(usual[4], draw(state, env, kp, distribution) / unit, operation)
            gain[6] = changed(usual[6], draw(state, env, kd, distribution) / unit, operation)
        else:
            damping = -state.default_actuator_biasprm[index][2]
            gain[0] = changed(usual[0], draw(state, env, kp, distribution) / unit, operation)
            bias[1] = -gain[0]
            bias[2] = -changed(damping, draw(state, env, kd, distribution) / unit, operation)
        state.actuator_gainprm[env, index] = gain
        state.actuator_biasprm[env, index] = bias


@needs("forcerange")
@wp.func
def effort_limits(
    state: Any,
    env: wp.int32,
    actuators: wp.array[Actuator],
    ranges: wp.vec2,
    operation: wp.int32 = SCALE,
    distribution: wp.int32 = UNIFORM,
) -> None:
    """Draw the largest torques that actuators have at their joints in both directions [N m]: the strength of motors."""
    for i in range(actuators.shape[0]):
        index = actuators[i].index
        drawn = draw(state, env, ranges, distribution) / wp.where(operation == SCALE, 1.0, wp.abs(actuators[i].gear))
        usual = state.default_actuator_forcerange[index]
        state.actuator_forcerange[env, index] = wp.vec2(
            -changed(-usual[0], drawn, operation), changed(usual[1], drawn, operation)
        )


@wp.func
def encoder_bias(
    state: Any, env: wp.int32, joints: wp.array[Joint], ranges: wp.vec2, distribution: wp.int32 = UNIFORM
) -> None:
    """Draw constant errors of the encoders of joints [rad], see `joint_pos_rel` and `joint_position`."""
    for i in range(joints.shape[0]):
        state.encoder_bias[env, joints[i].dof] = draw(state, env, ranges, distribution)


@wp.func
def gravity(
    state: Any,
    env: wp.int32,
    x: wp.vec2,
    y: wp.vec2,
    z: wp.vec2,
    operation: wp.int32 = ADD,
    distribution: wp.int32 = UNIFORM,
) -> None:
    """Draw gravity [m/s²]. Isaac Lab's `randomize_physics_scene_gravity`."""
    state.gravity[env, 0] = changed(state.default_gravity[0], draw(state, env, x, distribution), operation)
    state.gravity[env, 1] = changed(state.default_gravity[1], draw(state, env, y, distribution), operation)
    state.gravity[env, 2] = changed(state.default_gravity[2], draw(state, env, z, distribution), operation)
