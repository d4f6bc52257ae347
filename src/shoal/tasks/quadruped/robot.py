"""The robot of the velocity tasks: the one that ships, an MJCF file, or a model of `mujoco-menagerie`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from shoal.errors import UsageError
from shoal.sim.engines.model_files import find_robot
from shoal.tasks.quadruped.config import VelocityConfig

SHIPPED = Path(__file__).with_name("quadruped.xml")
_AS_MATERIAL = (0.5, 0.5, 0.5, 1.0)
"""MuJoCo's default colour of a geom, which selects its material's; a robot may have another default."""
_NO_LIMIT = 1e6
"""Torque limit of an unlimited actuator [N m]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Robot:
    """Indices and numbers of a robot. One joint follows the free joint for each actuator, in their order."""

    base: int
    start: np.ndarray
    """``qpos`` of the keyframe. Shape (nq,)."""
    joint_names: tuple[str, ...]
    gains: np.ndarray
    """Stiffness [N m/rad] and damping [N m s/rad] of the actuators. Shape (2, num_joints)."""
    torque_limits: np.ndarray
    """Largest torques [N m]. Shape (num_joints,)."""
    feet: np.ndarray
    """Indices of the geoms that are feet."""

    @property
    def num_joints(self) -> int:
        """Number of actuated joints."""
        return len(self.joint_names)


def build_spec(config: VelocityConfig) -> mujoco.MjSpec:
    """Return the robot that a configuration names, without ground."""
    path = find_robot(config.robot) if config.robot else SHIPPED
    try:
        return mujoco.MjSpec.from_file(str(path))
    except (ValueError, OSError) as error:
        message = f"--env.robot {path} is no MJCF that MuJoCo understands: {' '.join(str(error).split())}"
        raise UsageError(message) from error


def compile_spec(spec: mujoco.MjSpec, config: VelocityConfig) -> mujoco.MjModel:
    """Compile a robot and its ground."""
    try:
        return spec.compile()
    except ValueError as error:
        message = f"--env.robot {config.robot or SHIPPED.name} does not compile: {' '.join(str(error).split())}"
        raise UsageError(message) from error


def build_on_a_plane(config: VelocityConfig) -> mujoco.MjModel:
    """Return the model of a robot on an infinite chequered plane, unless it brings ground of its own.

    Raises:
        UsageError: There is no such robot, or it does not compile.
    """
    spec = build_spec(config)
    if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.worldbody.geoms):
        add_floor(spec, type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0.0, 0.0, 0.05))
    return compile_spec(spec, config)


def add_floor(spec: mujoco.MjSpec, **geom: Any) -> None:  # noqa: ANN401  MuJoCo has no types.
    """Add a sky, and a chequered floor of some kind, to a model."""
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=(0.75, 0.83, 0.92),
        rgb2=(0.95, 0.96, 0.98),
        width=128,
        height=128,
    )
    spec.add_texture(
        name="floor",
        type=mujoco.mjtTexture.mjTEXTURE_2D,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
        rgb1=(0.62, 0.65, 0.68),
        rgb2=(0.74, 0.77, 0.8),
        width=256,
        height=256,
    )
    floor = spec.add_material(name="floor", texrepeat=(2, 2), texuniform=True)
    floor.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "floor"
    spec.worldbody.add_geom(name="floor", material="floor", rgba=_AS_MATERIAL, contype=1, conaffinity=1, **geom)


def read_robot(model: mujoco.MjModel, config: VelocityConfig) -> Robot:
    """Read the robot of a model.

    Raises:
        UsageError: The model is no robot of this kind.
    """
    _check_joints(model, config)
    names = [model.key(index).name for index in range(model.nkey)]
    if config.keyframe not in names:
        listed = f"the keyframes {', '.join(names)}" if names else "no keyframe"
        raise UsageError(
            f"--env.keyframe {config.keyframe} was asked for, but the robot has {listed}: "
            "pass one, or add one to the model."
        )
    geoms = [model.geom(index).name for index in range(model.ngeom)]
    try:
        feet = [index for index, name in enumerate(geoms) if re.fullmatch(config.feet, name)]
    except re.error as error:
        raise UsageError(f"--env.feet {config.feet} is no pattern that Python understands: {error}.") from error
    if not feet:
        raise UsageError(
            f"--env.feet {config.feet} matches none of the robot's geoms, which are named "
            f"{', '.join(filter(None, geoms)) or 'nothing'}: pass a pattern that matches its feet."
        )
    limited = model.actuator_forcelimited.astype(bool)
    return Robot(
        base=int(model.jnt_bodyid[0]),
        start=model.key(config.keyframe).qpos.copy(),
        joint_names=tuple(model.joint(1 + index).name for index in range(model.nu)),
        gains=np.stack([model.actuator_gainprm[:, 0], -model.actuator_biasprm[:, 2]]),
        torque_limits=np.where(limited, model.actuator_forcerange[:, 1], np.inf).clip(max=_NO_LIMIT),
        feet=np.array(feet, dtype=np.int32),
    )


def _check_joints(model: mujoco.MjModel, config: VelocityConfig) -> None:
    """Check for a free joint, and one position actuator for each other joint, in the joints' order."""
    robot = config.robot or SHIPPED.name
    if not model.njnt or model.jnt_type[0] != mujoco.mjtJoint.mjJNT_FREE:
        message = f"--env.robot {robot} does not begin with a free joint: a robot that walks needs one at its base."
        raise UsageError(message)
    acted = [int(joint) for joint in model.actuator_trnid[:, 0]]
    on_joints = bool((model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT).all())
    if not on_joints or acted != list(range(1, model.njnt)):
        joints = ", ".join(model.joint(index).name for index in range(1, model.njnt))
        raise UsageError(
            f"--env.robot {robot} has {model.nu} actuators, and not one for each of its joints in their order "
            f"({joints}): add or sort actuators in the model."
        )
    servo = (model.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE) & (
        model.actuator_gainprm[:, 0] == -model.actuator_biasprm[:, 1]
    )
    if not servo.all():
        others = ", ".join(model.actuator(int(index)).name for index in np.flatnonzero(~servo))
        raise UsageError(
            f"--env.robot {robot} has actuators that take no angle ({others}): make them <position> actuators, whose "
            "control is the angle to go to."
        )
