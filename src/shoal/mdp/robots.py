"""Robots of tasks: from MJCF files, with position actuators, a first pose, and ground."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from shoal.errors import UsageError
from shoal.mdp.actuators import JOINT, kinds_of
from shoal.mdp.config import RobotConfig, TermsConfig
from shoal.mdp.patterns import matches, numbers_by_pattern
from shoal.mdp.robot_actuators import KD, KP, give_actuators
from shoal.mdp.scene import compile_spec, read_spec
from shoal.sim.engines.model_files import find_robot

SHIPPED = Path(__file__).parents[1] / "tasks" / "quadruped" / "quadruped.xml"
"""The robot that ships."""
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
    if made := give_actuators(spec, config):
        notes.append(
            f"--env.robot {config.robot}: {made} of its {model.nu} joints have no position actuator in the model and "
            f"were given one. Its stiffness is {KP:g} times the largest torque, its damping {KD:g} s times "
            "that, where --env.stiffness and --env.damping do not name the joint."
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
    """Return the robot that a configuration names, with its actuators, and without ground.

    Raises:
        UsageError: There is no such robot.
    """
    spec = _read_spec(config)
    give_actuators(spec, config)
    return spec


def _read_spec(config: RobotConfig) -> mujoco.MjSpec:
    return read_spec(find_robot(config.robot) if config.robot else SHIPPED)


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


def add_floor(spec: mujoco.MjSpec, name: str = "floor", **geom: Any) -> None:
    """Add a floor of some kind to a model."""
    spec.worldbody.add_geom(name=name, material="", rgba=_AS_MATERIAL, contype=1, conaffinity=1, **geom)


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
    for name, value in numbers_by_pattern("--env.pose", config.pose, joints).items():
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
    joints = model.actuator_trnid[np.isin(model.actuator_trntype, JOINT), 0]
    names = tuple(model.joint(int(joint)).name for joint in joints)
    return Robot(base=int(model.jnt_bodyid[0]), start=first_pose(model, config), joint_names=names)


def _check_joints(model: mujoco.MjModel, config: RobotConfig) -> None:
    """Check for a free joint, and one actuator for each other joint that is not to be passive."""
    robot = config.robot or SHIPPED.name
    if not model.njnt or model.jnt_type[0] != mujoco.mjtJoint.mjJNT_FREE:
        message = f"--env.robot {robot} does not begin with a free joint: a robot that walks needs one at its base."
        raise UsageError(message)
    names = [model.joint(index).name for index in range(1, model.njnt)]
    passive = [pattern for pattern, kind in config.actuators.items() if kind == "none"]
    on_joints = model.actuator_trnid[np.isin(model.actuator_trntype, JOINT), 0]
    acting = np.bincount(on_joints, minlength=model.njnt)[1:]
    if any(
        count != 1 and not (count == 0 and any(matches(each, name, "") for each in passive))
        for name, count in zip(names, acting, strict=True)
    ):
        raise UsageError(
            f"--env.robot {robot} has {model.nu} actuators, and not one for each of its joints ({', '.join(names)}): "
            "give each of them a name, or one actuator, in the model."
        )
    others = [
        model.actuator(i).name
        for i in range(model.nu)
        if model.actuator_gaintype[i] == mujoco.mjtGain.mjGAIN_DCMOTOR and "position" not in kinds_of(model, i)
    ]
    if others:
        raise UsageError(
            f"--env.robot {robot} has DC motors that have a state, or whose control is no position "
            f"({', '.join(others)}): make them <position> or <motor> actuators."
        )
