"""Domain randomization: events that draw parameters of the model, on startup, or when an episode begins, or during it.

Names are those of mjlab's `mdp.dr`. Most functions draw one field of `MjModel`, and are declared in a line. They draw
from `ranges` by their `distribution`: `uniform` from lowest to highest, `log_uniform` likewise with a uniform
logarithm, `gaussian` with a mean and a standard deviation. By the `operation` the number is the value (`abs`), or
multiplies (`scale`) or is added to (`add`) that of the model, not what was drawn before. It is another one for each
name, unless `shared_random`, and for each of the `axes`, the columns of the field. A quaternion is turned by `roll`,
`pitch` and `yaw` [rad].

Constants that MuJoCo derives from the model (`body_subtreemass`, `dof_invweight0`, bounds of geoms, ...) follow masses,
inertias, poses, sizes, armatures and gravity, by ``mj_setConst`` and MuJoCo Warp's ``set_const``.
"""

from typing import Annotated, Any

import warp as wp

from shoal.mdp.annotations import (
    Actuators,
    Axes,
    BodyIds,
    CameraIds,
    Distribution,
    Geoms,
    Joints,
    LightIds,
    MaterialIds,
    Operation,
    PairIds,
    SiteIds,
    TendonIds,
)
from shoal.mdp.base import quat_of
from shoal.mdp.kernels import python_function
from shoal.mdp.needs import FORCERANGE, POSITION, axes_of, objects
from shoal.mdp.random import uniform

# Indices of the words in `shoal.mdp.terms.CHOICES`.
ABS, SCALE, ADD = wp.constant(0), wp.constant(1), wp.constant(2)
UNIFORM, LOG_UNIFORM, GAUSSIAN = wp.constant(0), wp.constant(1), wp.constant(2)
_NONE = wp.vec2(0.0, 0.0)


@wp.func
def draw(state: Any, env: int, ranges: wp.vec2, distribution: Distribution) -> float:
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
def changed(usual: float, drawn: float, operation: Operation) -> float:
    """Return a parameter by an operation."""
    if operation == SCALE:
        return usual * drawn
    if operation == ADD:
        return usual + drawn
    return drawn


_KINDS: dict[str, tuple[str, Any, str]] = {
    "body": ("bodies", BodyIds, ""),
    "site": ("sites", SiteIds, ""),
    "tendon": ("tendons", TendonIds, ""),
    "pair": ("pairs", PairIds, ""),
    "cam": ("cameras", CameraIds, ""),
    "light": ("lights", LightIds, ""),
    "mat": ("materials", MaterialIds, ""),
    "geom": ("geoms", Geoms, ".index"),
    "dof": ("joints", Joints, ".dof"),
    "jnt": ("joints", Joints, ".index"),
    "qpos0": ("joints", Joints, ".qpos"),
}
"""By the first word of a field: the parameter that selects its objects, its annotation, and the member with the row."""

_NUMBERS = """def {field}(state: Any, env: int, {objects}: Selected, ranges: wp.vec2, {axes}
        operation: Operation = {operation}, distribution: Distribution = 0, shared_random: bool = False{more}) -> None:
    '''Draw the {what}.'''
    for part in range({parts}):
        drawn = wp.float32(0.0)
        for i in range({objects}.shape[0]):
            if i == 0 or not shared_random:
                drawn = draw(state, env, ranges, distribution)
            state.{field}[env, {row}]{axis} = changed(state.default_{field}[{row}]{axis}, drawn, operation)
"""
_TURN = """def {field}(state: Any, env: int, {objects}: Selected, roll: wp.vec2 = _NONE,
        pitch: wp.vec2 = _NONE, yaw: wp.vec2 = _NONE, distribution: Distribution = 0) -> None:
    '''Turn the {what} [rad].'''
    for i in range({objects}.shape[0]):
        x, y = draw(state, env, roll, distribution), draw(state, env, pitch, distribution)
        turn = wp.quat_rpy(x, y, draw(state, env, yaw, distribution)) * quat_of(state.default_{field}[{row}])
        state.{field}[env, {row}] = wp.vec4(turn[3], turn[0], turn[1], turn[2])
"""
_ISOTROPIC = """    for i in range(pairs.shape[0] * wp.int32(isotropic)):
        friction = state.pair_friction[env, pairs[i]]
        friction[1] = friction[0]
        for part in range(axes.shape[0]):
            if axes[part] >= 3:
                friction[4] = friction[3]
        state.pair_friction[env, pairs[i]] = friction
"""
FIELDS: dict[str, Any] = {}
"""Functions that draw one field of `MjModel`, by its name, and by that of mjlab where it is another."""


def _declare(
    what: str, field: str, *names: str, axes: Any = (), operation: int = ABS, needs: Any = (), then: str = ""
) -> None:
    """Make the function of a field: of a quaternion, of one number, or of several, of which it draws `axes`."""
    parameter, annotation, member = _KINDS[field.partition("_")[0]]
    words = {"what": what, "field": field, "objects": parameter, "operation": operation}
    words["row"] = f"{parameter}[i]{member}"
    words |= {"parts": 1, "axes": "", "axis": "", "more": ", isotropic: bool = False" if then else ""}
    scope = globals() | {"Selected": Annotated[annotation, *needs] if needs else annotation}
    if axes:
        words |= {"parts": "axes.shape[0]", "axes": f"axes: FieldAxes = {axes},", "axis": "[axes[part]]"}
        scope["FieldAxes"] = Annotated[Axes, axes_of(field)]
    text = (_TURN if field.endswith("quat") else _NUMBERS).format(**words) + then
    made = wp.func(python_function(field, text, scope, __name__))
    FIELDS.update(dict.fromkeys((field, *names), made))


_STATIC = "but MuJoCo Warp has one pose for all environments of what does not move: pass --env.engine mujoco."
_MOVES = objects(lambda model: (model.body_weldid == 0) & (model.body_mocapid < 0), _STATIC, "mjwarp")
_ON_MOVING_BODY = objects(lambda model: model.body_weldid[model.geom_bodyid] == 0, _STATIC, "mjwarp")
_HAS_CENTRE = objects(
    lambda model: (model.body_simple != 0) & (model.body_mass > 0.0),
    'but MuJoCo has compiled the centre of mass to stay at the origin: give the body simple="false" in the MJCF.',
)
_PRIMITIVE = objects(
    lambda model: abs(model.geom_type - 4) > 2,  # noqa: PLR2004  2 to 6 are sphere to box.
    "but the term needs spheres, capsules, ellipsoids, cylinders or boxes: select these.",
)
_LIMITED = objects(lambda model: model.jnt_limited == 0, "but the term needs limits: give a range in the MJCF.")

_XYZ, _RGBA = (0, 1, 2), (0, 1, 2, 3)
_declare("sliding friction of geoms; axes 1 and 2 are torsional and rolling friction [m]", "geom_friction", axes=(0,))
_declare("position of geoms [m]", "geom_pos", axes=_XYZ, needs=(_ON_MOVING_BODY,))
_declare("orientation of geoms", "geom_quat", needs=(_ON_MOVING_BODY,))
_declare("sizes of geoms [m]", "geom_size", axes=_XYZ, operation=SCALE, needs=(_PRIMITIVE,))
_declare("colours of geoms", "geom_rgba", axes=_RGBA)
_declare("mass of bodies [kg], but not the inertia, as of a load at the centre of mass", "body_mass", operation=SCALE)
_declare("centre of mass of bodies [m]", "body_ipos", axes=_XYZ, operation=ADD, needs=(_HAS_CENTRE,))
_declare("position of bodies [m]", "body_pos", axes=_XYZ, operation=ADD, needs=(_MOVES,))
_declare("orientation of bodies", "body_quat", needs=(_MOVES,))
_declare("damping of joints [N m s/rad or N s/m]", "dof_damping", "joint_damping")
_declare("reflected inertia of the motors of joints [kg m² or kg]", "dof_armature", "joint_armature")
_declare("dry friction of joints [N m or N]", "dof_frictionloss", "joint_friction")
_declare("stiffness of joints [N m/rad or N/m]", "jnt_stiffness", "joint_stiffness")
_declare("limits of joints [rad or m]", "jnt_range", "joint_limits", axes=(0, 1), needs=(_LIMITED,))
_declare("position of joints as the model is drawn [rad or m]", "qpos0", "joint_default_pos", operation=ADD)
_declare("position of sites [m]", "site_pos", axes=_XYZ)
_declare("orientation of sites", "site_quat")
_declare("damping of tendons [N s/m]", "tendon_damping")
_declare("stiffness of tendons [N/m]", "tendon_stiffness")
_declare("dry friction of tendons [N]", "tendon_frictionloss", "tendon_friction")
_declare("inertia of tendons [kg]", "tendon_armature")
_declare("friction of pairs: two sliding, a torsional, two rolling", "pair_friction", axes=(0,), then=_ISOTROPIC)
_declare("position of cameras [m]", "cam_pos", axes=_XYZ)
_declare("orientation of cameras", "cam_quat")
_declare("vertical field of view of cameras [degrees]", "cam_fovy")
_declare("focal lengths and principal point of cameras [m]", "cam_intrinsic", axes=_RGBA)
_declare("position of lights [m]", "light_pos", axes=_XYZ)
_declare("direction of lights", "light_dir", axes=_XYZ)
for _field in ("light_ambient", "light_attenuation", "light_diffuse", "light_specular"):
    _declare(f"numbers `{_field}` of MuJoCo's model", _field, axes=_XYZ)
for _field in ("light_cutoff", "light_exponent", "mat_emission", "mat_shininess", "mat_specular"):
    _declare(f"number `{_field}` of MuJoCo's model", _field)
_declare("colours of materials", "mat_rgba", axes=_RGBA)
_declare("repetitions of the texture of materials", "mat_texrepeat", axes=(0, 1))


@wp.func
def body_com_offset(
    state: Any,
    env: int,
    bodies: Annotated[BodyIds, _HAS_CENTRE],
    x: wp.vec2,
    y: wp.vec2,
    z: wp.vec2,
    operation: Operation = ADD,
    distribution: Distribution = UNIFORM,
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
    env: int,
    bodies: Annotated[BodyIds, _HAS_CENTRE],
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
    distribution: Distribution = UNIFORM,
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
def pd_gains(
    state: Any,
    env: int,
    actuators: Annotated[Actuators, POSITION],
    kp: wp.vec2,
    kd: wp.vec2,
    operation: Operation = SCALE,
    distribution: Distribution = UNIFORM,
) -> None:
    """Draw stiffness and damping that position actuators have at their joints [N m/rad, N m s/rad]."""
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


@wp.func
def effort_limits(
    state: Any,
    env: int,
    actuators: Annotated[Actuators, FORCERANGE],
    ranges: wp.vec2,
    operation: Operation = SCALE,
    distribution: Distribution = UNIFORM,
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
def encoder_bias(state: Any, env: int, joints: Joints, ranges: wp.vec2, distribution: Distribution = UNIFORM) -> None:
    """Draw constant errors of the encoders of joints [rad], see `joint_pos_rel` and `joint_position`."""
    for i in range(joints.shape[0]):
        state.encoder_bias[env, joints[i].dof] = draw(state, env, ranges, distribution)


@wp.func
def gravity(
    state: Any,
    env: int,
    x: wp.vec2,
    y: wp.vec2,
    z: wp.vec2,
    operation: Operation = ADD,
    distribution: Distribution = UNIFORM,
) -> None:
    """Draw gravity [m/s²]. Isaac Lab's `randomize_physics_scene_gravity`."""
    state.gravity[env, 0] = changed(state.default_gravity[0], draw(state, env, x, distribution), operation)
    state.gravity[env, 1] = changed(state.default_gravity[1], draw(state, env, y, distribution), operation)
    state.gravity[env, 2] = changed(state.default_gravity[2], draw(state, env, z, distribution), operation)
