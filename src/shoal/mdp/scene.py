"""The scene of a task: a robot and its ground, objects, each with its name as a prefix, and sensors."""

import logging
from pathlib import Path

import mujoco
import numpy as np

from shoal.errors import ShoalError, UsageError
from shoal.mdp.actuators import SCALAR
from shoal.mdp.cameras import RayCastTerm
from shoal.mdp.config import TermsConfig
from shoal.mdp.patterns import is_of
from shoal.mdp.terms import ObjectTerm
from shoal.sim.render.surroundings import add_surroundings

logger = logging.getLogger(__name__)


def read_spec(file: Path) -> mujoco.MjSpec:
    """Return the model of a robot's file, or of an object's.

    Raises:
        UsageError: MuJoCo does not understand it.
    """
    # MuJoCo itself would write to MUJOCO_LOG.TXT in the working directory, or to what a link of that name leads to.
    mujoco.set_mju_user_warning(lambda message: logger.warning("MuJoCo: %s", message))
    try:
        return mujoco.MjSpec.from_file(str(file))
    except (ValueError, OSError, RuntimeError) as error:  # The last of memory that MuJoCo did not get.
        message = f"--env.robot {file} is no MJCF that MuJoCo understands: {' '.join(str(error).split())}"
        raise UsageError(message) from error


def compile_spec(spec: mujoco.MjSpec, what: str) -> mujoco.MjModel:
    """Return a model, with a sky and a chequered ground if it has none; `what` it is of, for the error.

    Raises:
        UsageError: It does not compile.
    """
    add_surroundings(spec)
    try:
        return spec.compile()
    except ValueError as error:
        raise UsageError(f"{what} does not compile: {' '.join(str(error).split())}") from error


def compile_scene(spec: mujoco.MjSpec, config: TermsConfig, what: str = "The model") -> mujoco.MjModel:
    """Return the model of a robot and its ground, with the objects and sensors of a configuration.

    `what` it is where no `robot` of the configuration names it, for errors.

    Raises:
        UsageError: The model does not compile, or an object cannot be as it is declared.
    """
    objects = config.terms("objects")
    children = {name: _spec_of(f"env.objects.{name}", term) for name, term in objects.items()}
    if any(child.keys for child in children.values()) and not spec.keys:
        spec.add_key(name="scene")
    for name, child in children.items():
        child.option, child.visual, child.stat = spec.option, spec.visual, spec.stat  # The scene's own hold.
        frame = spec.worldbody.add_frame(pos=objects[name].pos, quat=objects[name].quat)
        spec.attach(child, prefix=f"{name}/", frame=frame)
    if config.terms("contacts") or config.terms("sensors"):
        from shoal.mdp.sensors import add_sensors  # It needs Warp.

        add_sensors(spec, config)
    robot = getattr(config, "robot", "")
    model = compile_spec(spec, f"--env.robot {robot}" if robot else what)
    for name in objects:
        _begin_in_keyframe(model, name, [*objects])
    return model


def checked(model: mujoco.MjModel, config: TermsConfig) -> mujoco.MjModel:
    """Return a model, if it has all objects and sensors that the configuration declares.

    Raises:
        ShoalError: It lacks one: a task that builds the whole model itself gets none.
    """
    things = [*map(model.body, range(model.nbody)), *map(model.geom, range(model.ngeom))]
    sensors = [model.sensor(index).name for index in range(model.nsensor)]
    cameras = [model.camera(index).name for index in range(model.ncam)]
    has = {
        "objects": {each.name.partition("/")[0] for each in things},
        "sensors": {*sensors, *cameras},
        "contacts": {name.partition(" ")[0] for name in sensors},
    }
    for group, names in has.items():
        for name, term in config.terms(group).items():
            if isinstance(term, RayCastTerm) or getattr(term, "camera_name", ""):  # Not added to the model.
                continue
            if name not in names and (group != "contacts" or term.func == "touches"):
                raise ShoalError(
                    f"{group}.{name} is declared, but the model does not have it: return robot and ground in "
                    "build_spec(), and not the whole model in build_model()."
                )
    return model


def _spec_of(path: str, term: ObjectTerm) -> mujoco.MjSpec:
    """Return an object by itself, free, fixed or moved as it is declared at `path`."""
    from shoal.mdp.functions import made_by  # It needs Warp.

    spec: mujoco.MjSpec = made_by(path, term, "objects")
    roots = spec.worldbody.bodies
    if term.base != "fixed" and len(roots) != 1:
        raise UsageError(
            f"{path} has {len(roots)} bodies in its world, but a base that is {term.base} is one: pass fixed."
        )
    for body in roots:
        body.name = body.name or "body"
        free = [joint for joint in body.joints if joint.type == mujoco.mjtJoint.mjJNT_FREE]
        if len(body.joints) > len(free) and term.base != "fixed":
            raise UsageError(f"{path} has a joint at its base, which cannot be {term.base}: pass fixed.")
        if term.base == "free" and not free:
            body.add_freejoint()
        for joint in free if term.base != "free" else ():
            spec.delete(joint)
        body.mocap = term.base == "mocap"
    return spec


def _begin_in_keyframe(model: mujoco.MjModel, name: str, objects: list[str]) -> None:
    """Put an object's first keyframe, if it has one, into those of the robot: its joints and controls."""
    keys = [model.key(index).name for index in range(model.nkey)]
    first = next((index for index, key in enumerate(keys) if is_of(key, [name])), None)
    if first is None:
        return
    robots = [index for index, key in enumerate(keys) if not is_of(key, objects)]
    joints = [
        each for each in range(model.njnt) if model.jnt_type[each] in SCALAR and is_of(model.joint(each).name, [name])
    ]
    controls = [each for each in range(model.nactuator) if is_of(model.actuator(each).name, [name])]
    for field, columns in ((model.key_qpos, model.jnt_qposadr[joints]), (model.key_ctrl, controls)):
        field[np.ix_(robots, columns)] = field[first, columns]
