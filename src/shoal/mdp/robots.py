"""Robots of tasks: from MJCF files, with position servos, a first pose, and ground."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from shoal.errors import UsageError
from shoal.mdp.config import RobotConfig, TermsConfig
from shoal.sim.engines.model_files import find_robot
from shoal.sim.render.surroundings import add_surroundings

logger = logging.getLogger(__name__)

SHIPPED = Path(__file__).parents[1] / "tasks" / "quadruped" / "quadruped.xml"
"""The robot that ships."""
KP = 1.5
"""Stiffness of a servo that replaces a motor, as a share of its largest torque [1/rad]."""
KD = 0.025
"""Damping of such a servo, as a share of its stiffness [s]."""
_KP_WITHOUT_LIMIT = 50.0
"""Its stiffness where nothing limits the torque [N m/rad]."""
_SCALAR = (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)
_AS_MATERIAL = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo's default colour of a geom, which selects its material's; a robot may have another default."""
_NO_LIMIT = 1e6
"""Torque limit of an unlimited actuator [N m]."""
KP_OF_MOTOR, KD_OF_MOTOR = 4, 6
"""Where in ``actuator_gainprm`` MuJoCo has stiffness and damping of a DC motor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Robot:
    """The base, first pose and joints of a robot."""

    base: int
    """Its body."""
    start: np.ndarray
    """``qpos`` of the keyframe. Shape (nq,)."""
    joint_names: tuple[str, ...]
    """The joints of the actuators, in their order."""


def check_robot(config: RobotConfig, usual: RobotConfig) -> tuple[str, ...]:
    """Check a robot before a launch, and return notes: what its actuators became, and its own time step.

    That of `usual`, the task's default, is only looked for.

    Raises:
        UsageError: It cannot be found, or not be simulated.
    """
    asked = {each.name for each in fields(RobotConfig)} - {each.name for each in fields(TermsConfig)}
    if all(getattr(config, name) == getattr(usual, name) for name in asked):
        if config.robot:
            find_robot(config.robot)
        return ()
    model = build_on_a_plane(config)
    read_robot(model, config)
    if config.feet:
        find_feet(model, config.feet)
    notes: list[str] = []
    spec = _read_spec(config)
    if made := give_servos(spec, config):
        notes.append(
            f"--env.robot {config.robot}: {made} of its {model.nu} joints have no servo in the model and were given "
            f"one. Its kp is {KP:g} times the largest torque, its kd {KD:g} s times kp, where --env.kp and --env.kd do "
            "not name the joint."
        )
    own, ours = model.opt.timestep, config.physics_dt
    if ours not in (None, own):
        decimation = max(1, round(config.decimation * ours / own))
        notes.append(
            f"--env.robot {config.robot} has a time step of {own:g} s, but the task's is {ours:g} s: pass "
            f"--env.physics-dt {own:g} --env.decimation {decimation} for the robot's own, at the same control rate."
        )
    return tuple(notes)


def build_spec(config: RobotConfig) -> mujoco.MjSpec:
    """Return the robot that a configuration names, with a position servo for each joint, and without ground.

    Raises:
        UsageError: There is no such robot.
    """
    spec = _read_spec(config)
    give_servos(spec, config)
    return spec


def _read_spec(config: RobotConfig) -> mujoco.MjSpec:
    path = find_robot(config.robot) if config.robot else SHIPPED
    # MuJoCo itself would write to MUJOCO_LOG.TXT in the working directory, or to what a link of that name leads to.
    mujoco.set_mju_user_warning(lambda message: logger.warning("MuJoCo: %s", message))
    try:
        return mujoco.MjSpec.from_file(str(path))
    except (ValueError, OSError, RuntimeError) as error:  # The last of memory that MuJoCo did not get.
        message = f"--env.robot {path} is no MJCF that MuJoCo understands: {' '.join(str(error).split())}"
        raise UsageError(message) from error


def give_servos(spec: mujoco.MjSpec, config: RobotConfig) -> int:
    """Turn motors and joints without an actuator into position servos; return how many.

    MuJoCo computes a servo's torque at each physics step, kp (target - angle) - kd speed, and limits it as the motor
    was. `config.kp` and `config.kd` set the gains of the joints that their patterns match, of a servo of the model's
    too. Others get `KP` of the largest torque, and `KD` of kp.
    """
    of_joint = {actuator.target: actuator for actuator in spec.actuators}
    taken = {actuator.name for actuator in spec.actuators}
    made = 0
    for joint in spec.joints:
        if joint.type not in _SCALAR or not joint.name:
            continue
        actuator = of_joint.get(joint.name)
        kp, kd, torque, armature = (
            _by_pattern(getattr(config, flag), joint.name, flag) for flag in ("kp", "kd", "torque", "armature")
        )
        if armature is not None:
            joint.armature = armature
        if actuator is None:
            name = f"{joint.name}_servo" if joint.name in taken else joint.name
            actuator = spec.add_actuator(name=name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        if is_servo(actuator):
            actuator.gainprm[0] = actuator.gainprm[0] if kp is None else kp
            actuator.biasprm[1:3] = -actuator.gainprm[0], actuator.biasprm[2] if kd is None else -kd
            _limit(actuator, torque)
        elif actuator.gaintype == mujoco.mjtGain.mjGAIN_FIXED and actuator.biastype == mujoco.mjtBias.mjBIAS_NONE:
            limit = min(_largest_torque(actuator), _largest(joint.actfrcrange)) if torque is None else torque
            if kp is None:
                kp = KP * limit if limit < np.inf else _KP_WITHOUT_LIMIT
            actuator.set_to_position(kp=kp, kv=KD * kp if kd is None else kd)
            actuator.gear = [1, 0, 0, 0, 0, 0]
            actuator.ctrllimited = False
            _limit(actuator, limit)
            made += 1
        else:
            continue  # A muscle, say: `read_robot` refuses it.
        _give_curve(actuator, joint.name, config)
    if made:  # Euler's method diverges with the damping of a servo that moves little mass.
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    return made


def _give_curve(servo: Any, joint: str, config: RobotConfig) -> None:
    """Limit the torque of a servo by its speed too, if the configuration does.

    The torque lies between S (-1 - v/V) and S (1 - v/V), with the stall torque S and the speed without load V, as in
    mjlab's `DcMotorActuator` and Isaac Lab's `DCMotor`. It is MuJoCo's DC motor, whose torque is K/R (voltage - K v)
    with the voltage within V K, for K = 1 and R = V/S.
    """
    stall, speed = (_by_pattern(getattr(config, flag), joint, flag) for flag in ("saturation_effort", "velocity_limit"))
    if stall is None and speed is None:
        return
    if not (stall and speed and stall > 0 and speed > 0):
        raise UsageError(
            f"The joint {joint} has --env.saturation-effort {stall} and --env.velocity-limit {speed}, but a "
            "torque-speed curve needs both, above 0: pass patterns that match the same joints."
        )
    kp, kd = servo.gainprm[0], -servo.biasprm[2]
    servo.set_to_dcmotor(
        motorconst=(1.0, 1.0),
        resistance=speed / stall,
        controller=(kp, 0.0, kd, 0.0, 0.0, speed),
        ctrlspec=mujoco.mjtCtrlInput.mjINPUT_POS,
    )


def _limit(actuator: Any, torque: float | None) -> None:
    """Limit the torque of an actuator, unless it is None [N m]."""
    if torque is not None:
        actuator.forcelimited = torque < np.inf
        actuator.forcerange = [-torque, torque] if torque < np.inf else [0, 0]


def _largest_torque(motor: Any) -> float:
    """Return the largest torque of a motor, which may be infinite [N m]. Ranges of a new actuator are 0."""
    by_control = _largest(motor.ctrlrange) * abs(motor.gainprm[0])
    return min(by_control, _largest(motor.forcerange)) * abs(motor.gear[0])


def _largest(limits: np.ndarray) -> float:
    """Return the larger of two limits, (2,), where 0 and 0 are none."""
    return float(np.abs(limits).max()) if np.any(limits) else np.inf


def is_servo(actuator: Any) -> bool:
    """Whether an actuator's control is the angle to go to."""
    affine = actuator.biastype == mujoco.mjtBias.mjBIAS_AFFINE
    return bool(affine and actuator.gainprm[0] == -actuator.biasprm[1] != 0.0)


def joint_gains(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return stiffness, damping, and largest torques of all actuators, each (nu,); `NO_LIMIT` where there is none."""
    is_motor = model.actuator_gaintype == mujoco.mjtGain.mjGAIN_DCMOTOR
    gain, bias = model.actuator_gainprm, model.actuator_biasprm
    limited = model.actuator_forcelimited.astype(bool)
    return (
        np.where(is_motor, gain[:, KP_OF_MOTOR], -bias[:, 1]),
        np.where(is_motor, gain[:, KD_OF_MOTOR], -bias[:, 2]),
        np.where(limited, model.actuator_forcerange[:, 1], np.inf).clip(max=_NO_LIMIT),
    )


def _by_pattern(gains: Mapping[str, float], joint: str, flag: str) -> float | None:
    """Return the number of the first pattern that matches a joint, if any."""
    try:
        return next((value for pattern, value in gains.items() if re.fullmatch(pattern, joint)), None)
    except re.error as error:
        message = f"--env.{flag} has a key that is no pattern that Python understands: {error}."
        raise UsageError(message) from error


def compile_spec(spec: mujoco.MjSpec, config: RobotConfig) -> mujoco.MjModel:
    """Compile a robot and its ground, with the contact sensors that its terms need."""
    if any("bodies" in term.parameters for term in config.terms("contacts").values()):
        from shoal.mdp.sensors import add_contact_sensors  # It needs Warp.

        add_contact_sensors(spec, config, {name: getattr(config, name) for name in config.role_fields})
    add_surroundings(spec)
    try:
        return spec.compile()
    except ValueError as error:
        message = f"--env.robot {config.robot or SHIPPED.name} does not compile: {' '.join(str(error).split())}"
        raise UsageError(message) from error


def build_on_a_plane(config: RobotConfig) -> mujoco.MjModel:
    """Return the model of a robot on an infinite plane, unless it brings ground of its own.

    Raises:
        UsageError: There is no such robot, or it does not compile.
    """
    spec = build_spec(config)
    if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.worldbody.geoms):
        add_floor(spec, type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0.0, 0.0, 0.05))
    return compile_spec(spec, config)


def add_floor(spec: mujoco.MjSpec, **geom: Any) -> None:
    """Add a floor of some kind to a model."""
    spec.worldbody.add_geom(name="floor", material="", rgba=_AS_MATERIAL, contype=1, conaffinity=1, **geom)


def first_pose(model: mujoco.MjModel, config: RobotConfig) -> np.ndarray:
    """Return the pose at action 0, in which episodes begin, as ``qpos``, (nq,): a keyframe, or `config.pose`.

    A robot in `config.pose` stands on the ground where it is lowest.

    Raises:
        UsageError: There is no such keyframe, or a pattern matches no joint.
    """
    if not config.pose:
        names = [model.key(index).name for index in range(model.nkey)]
        if config.keyframe not in names:
            listed = f"the keyframes {', '.join(names)}" if names else "no keyframe"
            raise UsageError(
                f"--env.keyframe {config.keyframe} was asked for, but the robot has {listed}: "
                "pass one, add one to the model, or pass joint positions as --env.pose."
            )
        return model.key(config.keyframe).qpos.copy()
    joints = {model.joint(index).name: int(model.jnt_qposadr[index]) for index in range(1, model.njnt)}
    qpos = model.qpos0.copy()
    for pattern, value in config.pose.items():
        matching = [name for name in joints if _by_pattern({pattern: value}, name, "pose") is not None]
        if not matching:
            raise UsageError(
                f"--env.pose {pattern} matches none of the robot's joints, which are {', '.join(joints)}: pass "
                "patterns of their names."
            )
        for name in matching:
            qpos[joints[name]] = value
    has_plane = bool((model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE).any())
    qpos[2] -= height_above_ground(model if has_plane else build_on_a_plane(config), qpos)
    return qpos


def height_above_ground(model: mujoco.MjModel, qpos: np.ndarray) -> float:
    """Return the distance between a plane and the lowest geom that collides [m]; negative if it is below."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    plane = int(np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)[0])
    colliding = np.flatnonzero((model.geom_contype | model.geom_conaffinity) & (model.geom_bodyid != 0))
    return min(mujoco.mj_geomDistance(model, data, plane, int(geom), 10.0, None) for geom in colliding)


def find_feet(model: mujoco.MjModel, pattern: str) -> np.ndarray:
    """Return the indices of the geoms that are feet.

    Raises:
        UsageError: There is none.
    """
    geoms = [model.geom(index).name for index in range(model.ngeom)]
    try:
        feet = [index for index, name in enumerate(geoms) if re.fullmatch(pattern, name)]
    except re.error as error:
        raise UsageError(f"--env.feet {pattern} is no pattern that Python understands: {error}.") from error
    if not feet:
        raise UsageError(
            f"--env.feet {pattern} matches none of the robot's geoms, which are named "
            f"{', '.join(filter(None, geoms)) or 'nothing'}: pass a pattern that matches its feet."
        )
    return np.array(feet, dtype=np.int32)


def read_robot(model: mujoco.MjModel, config: RobotConfig) -> Robot:
    """Read the robot of a model.

    Raises:
        UsageError: The model is no robot of this kind.
    """
    _check_joints(model, config)
    names = tuple(model.joint(int(joint)).name for joint in model.actuator_trnid[:, 0])
    return Robot(base=int(model.jnt_bodyid[0]), start=first_pose(model, config), joint_names=names)


def _check_joints(model: mujoco.MjModel, config: RobotConfig) -> None:
    """Check for a free joint, and one position servo for each other joint."""
    robot = config.robot or SHIPPED.name
    if not model.njnt or model.jnt_type[0] != mujoco.mjtJoint.mjJNT_FREE:
        message = f"--env.robot {robot} does not begin with a free joint: a robot that walks needs one at its base."
        raise UsageError(message)
    acted = [int(joint) for joint in model.actuator_trnid[:, 0]]
    on_joints = bool((model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT).all())
    if not on_joints or sorted(acted) != list(range(1, model.njnt)):
        joints = ", ".join(model.joint(index).name for index in range(1, model.njnt))
        raise UsageError(
            f"--env.robot {robot} has {model.nu} actuators, and not one for each of its joints ({joints}): give each "
            "of them a name, or one actuator, in the model."
        )
    servo = (model.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE) & (
        model.actuator_gainprm[:, 0] == -model.actuator_biasprm[:, 1]
    )
    servo |= model.actuator_gaintype == mujoco.mjtGain.mjGAIN_DCMOTOR
    if not servo.all():
        others = ", ".join(model.actuator(int(index)).name for index in np.flatnonzero(~servo))
        raise UsageError(
            f"--env.robot {robot} has actuators that are neither servos nor motors ({others}): make them <position> or "
            "<motor> actuators."
        )
