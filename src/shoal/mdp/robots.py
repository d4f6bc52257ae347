"""Robots of tasks: from MJCF files, with position actuators, a first pose, and ground."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from shoal.errors import UsageError
from shoal.mdp.actuators import JOINT, KINDS, SCALAR, is_motor, is_position_actuator, kinds_of
from shoal.mdp.config import RobotConfig, TermsConfig
from shoal.mdp.patterns import matches
from shoal.mdp.scene import compile_spec, read_spec
from shoal.sim.engines.model_files import find_robot

SHIPPED = Path(__file__).parents[1] / "tasks" / "quadruped" / "quadruped.xml"
"""The robot that ships."""
KP = 1.5
"""Stiffness of a position actuator that replaces a motor, as a share of its largest torque [1/rad]."""
KD = 0.025
"""Damping of such a actuator, as a share of its stiffness [s]."""
_DIRECT = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The gear of an actuator that acts on its joint directly."""
_KP_WITHOUT_LIMIT = 50.0
"""Its stiffness where nothing limits the torque [N m/rad]."""
_AS_MATERIAL = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo's default colour of a geom, which selects its material's; a robot may have another default."""


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
    if made := give_position_actuators(spec, config):
        notes.append(
            f"--env.robot {config.robot}: {made} of its {model.nu} joints have no position actuator in the model and "
            f"were given one. Its kp is {KP:g} times the largest torque, its kd {KD:g} s times kp, where --env.kp and "
            "--env.kd do not name the joint."
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
    """Return the robot that a configuration names, with a position actuator for each joint, and without ground.

    Raises:
        UsageError: There is no such robot.
    """
    spec = _read_spec(config)
    give_position_actuators(spec, config)
    return spec


def _read_spec(config: RobotConfig) -> mujoco.MjSpec:
    return read_spec(find_robot(config.robot) if config.robot else SHIPPED)


def give_position_actuators(spec: mujoco.MjSpec, config: RobotConfig) -> int:
    """Turn motors and joints without an actuator into position actuators; return how many.

    MuJoCo computes its torque at each physics step, kp (target - angle) - kd speed, and limits it as the motor was.
    `config.kp` and `config.kd` set the gains of the joints that their patterns match, also of actuators of the model's.
    Others get `KP` of the largest torque, and `KD` of kp.
    """
    of_joint = {each.target: each for each in spec.actuators if int(each.trntype) in JOINT}
    taken = {actuator.name for actuator in spec.actuators}
    actuators: dict[str, Any] = {}
    made = 0
    for joint in spec.joints:
        if int(joint.type) not in SCALAR or not joint.name:
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
        if is_position_actuator(actuator):
            _act_directly(actuator)
            actuator.gainprm[0] = actuator.gainprm[0] if kp is None else kp
            actuator.biasprm[1:3] = -actuator.gainprm[0], actuator.biasprm[2] if kd is None else -kd
        elif is_motor(actuator):
            _replace(actuator, joint, kp, kd, torque)
            made += 1
        else:
            _refuse_numbers(joint.name, kp, kd, torque)
            continue
        if torque is not None:
            joint.actfrclimited, actuator.forcelimited = False, torque < np.inf
            actuator.forcerange = (-torque, torque) if torque < np.inf else (0.0, 0.0)
        actuators[joint.name] = actuator
    _give_curves(spec, actuators, config)
    if made:  # Euler's method diverges with the damping of a position actuator that moves little mass.
        spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    return made


def _replace(motor: Any, joint: Any, kp: float | None, kd: float | None, torque: float | None) -> None:
    """Turn a motor into a position actuator with its limits, and with the gains of `give_position_actuators`."""
    limits = _torques(motor, joint)
    largest = float(np.abs(limits).max()) if torque is None else torque
    if kp is None:
        kp = KP * largest if largest < np.inf else _KP_WITHOUT_LIMIT
    motor.set_to_position(kp=kp, kv=KD * kp if kd is None else kd)
    motor.gear, motor.ctrllimited = _DIRECT, False
    motor.forcelimited = bool(np.isfinite(limits).all())
    motor.forcerange = limits if motor.forcelimited else (0.0, 0.0)


def _refuse_numbers(joint: str, *numbers: float | None) -> None:
    """Refuse gains of an actuator that is a DC motor already, or that `read_robot` refuses, such as a muscle."""
    if any(each is not None for each in numbers):
        raise UsageError(
            f"--env.kp, --env.kd or --env.torque names the joint {joint}, whose actuator is neither for positions "
            "nor a motor: leave it out."
        )


def _act_directly(actuator: Any) -> None:
    """Give a position actuator a gear of 1, with the same torques of its joint for the same angles."""
    gear = float(actuator.gear[0])
    actuator.gainprm[0] *= gear**2
    actuator.biasprm[1] *= gear**2
    actuator.biasprm[2] *= gear**2 if actuator.biasprm[2] < 0.0 else 1.0  # Above 0 it is a ratio.
    actuator.forcerange = np.sort(actuator.forcerange * gear)
    actuator.ctrlrange = np.sort(actuator.ctrlrange / gear)
    actuator.gear = _DIRECT


def _torques(motor: Any, joint: Any) -> np.ndarray:
    """Return lowest and highest torque of a motor at its joint, which may be infinite [N m]. Shape (2,)."""
    gear = float(motor.gear[0])
    limits = (
        _limits(motor.ctrlrange * motor.gainprm[0] * gear, motor.ctrllimited),
        _limits(motor.forcerange * gear, motor.forcelimited),
        _limits(joint.actfrcrange, joint.actfrclimited),
    )
    return np.array([max(low for low, _ in limits), min(high for _, high in limits)])


def _limits(limits: np.ndarray, limited: Any) -> np.ndarray:
    """Return two limits in their order, (2,); 0 and 0 are none."""
    is_limited = limited != mujoco.mjtLimited.mjLIMITED_FALSE and np.any(limits)
    return np.sort(limits) if is_limited else np.array([-np.inf, np.inf])


def _give_curves(spec: mujoco.MjSpec, actuators: Mapping[str, Any], config: RobotConfig) -> None:
    """Limit the torques of actuators, by the names of their joints, by the speed too, if the configuration does.

    The torque lies between S (-1 - v/V) and S (1 - v/V), with the stall torque S and the speed without load V, as in
    mjlab's `DcMotorActuator` and Isaac Lab's `DCMotor`. It is MuJoCo's DC motor, whose torque is K/R (voltage - K v)
    with the voltage within V K, for K = 1 and R = V/S.
    """
    flags = ("saturation_effort", "velocity_limit")
    curves = {name: [_by_pattern(getattr(config, flag), name, flag) for flag in flags] for name in actuators}
    curves = {name: each for name, each in curves.items() if each != [None, None]}
    if any(actuators[name].biasprm[2] > 0.0 for name in curves):  # A ratio, of which MuJoCo makes the damping.
        model = spec.copy().compile()
        for name in curves:
            actuators[name].biasprm[2] = model.actuator(actuators[name].name).biasprm[2]
    for name, (stall, speed) in curves.items():
        if not (stall and speed and stall > 0 and speed > 0):
            raise UsageError(
                f"The joint {name} has --env.saturation-effort {stall} and --env.velocity-limit {speed}, but a "
                "torque-speed curve needs both, above 0: pass patterns that match the same joints."
            )
        kp, kd = actuators[name].gainprm[0], -actuators[name].biasprm[2]
        actuators[name].set_to_dcmotor(
            motorconst=(1.0, 1.0),
            resistance=speed / stall,
            controller=(kp, 0.0, kd, 0.0, 0.0, speed),
            ctrlspec=mujoco.mjtCtrlInput.mjINPUT_POS,
        )


def _by_pattern(gains: Mapping[str, float], joint: str, flag: str) -> float | None:
    """Return the number of the first pattern that matches a joint, if any."""
    path = f"A key of --env.{flag}"
    return next((value for pattern, value in gains.items() if matches(pattern, joint, path)), None)


def robot_on_a_plane(config: RobotConfig) -> mujoco.MjSpec:
    """Return a robot on an infinite plane, unless it brings ground of its own.

    Raises:
        UsageError: There is no such robot.
    """
    spec = build_spec(config)
    if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.worldbody.geoms):
        add_floor(spec, type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0.0, 0.0, 0.05))
    return spec


def build_on_a_plane(config: RobotConfig) -> mujoco.MjModel:
    """Return the model of the robot alone, on a plane.

    Raises:
        UsageError: There is no such robot, or it does not compile.
    """
    return compile_spec(robot_on_a_plane(config), f"--env.robot {config.robot or SHIPPED.name}")


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
    if not colliding.size:
        raise UsageError("--env.pose needs a robot with a geom that collides, to stand on: give it one in the model.")
    return min(mujoco.mj_geomDistance(model, data, plane, int(geom), 10.0, None) for geom in colliding)


def find_feet(model: mujoco.MjModel, pattern: str) -> np.ndarray:
    """Return the indices of the geoms that are feet.

    Raises:
        UsageError: There is none.
    """
    geoms = [model.geom(index).name for index in range(model.ngeom)]
    feet = [index for index, name in enumerate(geoms) if matches(pattern, name, "--env.feet")]
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
    """Check for a free joint, and one position actuator for each other joint."""
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
    others = [model.actuator(index).name for index in range(model.nu) if "position" not in kinds_of(model, index)]
    if others:
        raise UsageError(
            f"--env.robot {robot} has actuators that are neither {KINDS['position']} nor motors ({', '.join(others)}): "
            "make them <position> or <motor> actuators."
        )
