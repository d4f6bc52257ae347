"""Robots seen in a mirror, with left and right exchanged: what rsl_rl's symmetry appends to mini-batches.

A joint has a partner by its position and axis, a body, geom or site by its position, and a column by the name of what
it is of. Mittal et al.,
"Symmetry considerations for learning task symmetric robot policies", arXiv:2403.04359.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import mujoco
import numpy as np
import torch
import warp as wp
from tensordict import TensorDict

from shoal.errors import UsageError
from shoal.mdp import actions as acting
from shoal.mdp import observations as observing
from shoal.mdp.accesses import python_of
from shoal.mdp.binding import Bound, grid_points
from shoal.mdp.config import members

_TWIST = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
"""Columns of a command that is a velocity of the base, in its own frame."""
_SIGNS: dict[Any, tuple[int, ...]] = {
    observing.base_lin_vel: (1, -1, 1),
    observing.base_ang_vel: (-1, 1, -1),
    observing.projected_gravity: (1, -1, 1),
    observing.velocity_command: (1, -1, -1),
    observing.generated_commands: (1, -1, -1),
    observing.gait_phase: (-1, -1),  # Half a period later.
}
"""Signs of what keeps its column, by the function of the term."""
_OF_PARTS: dict[Any, tuple[int, ...]] = {
    observing.foot_height: (1,),
    observing.foot_air_time: (1,),
    observing.foot_contact: (1,),
    observing.foot_contact_forces: (1, -1, 1),
    observing.contact_forces: (1, -1, 1),
    observing.site_pos_w: (1, -1, 1),
    observing.ray_distances: (1,),
    observing.ray_normals: (1, -1, 1),
}
"""Signs of the columns of each body, geom, site or ray, by functions that have them in the world, or as numbers."""
_OF_PIXELS: set[Any] = {observing.camera_depth, observing.camera_rgb, observing.camera_mask}
"""Functions with a column for each pixel of a camera."""
_OF_JOINTS: set[Any] = {observing.joint_pos, observing.joint_pos_rel, observing.joint_vel_rel}
"""Functions with a column for each joint."""
_OF_ACTUATORS: set[Any] = {
    observing.last_action,
    acting.joint_position,
    acting.gait_joint_position,
    acting.joint_velocity,
    acting.joint_effort,
}
"""Functions with a column for each actuator."""
_SAME_PLACE = 0.02
"""Largest distance between the position of a joint, body, geom, site or ray in the mirror and its partner's [m]."""
_SAME_ANGLE = 0.02
"""Largest difference of their positions in the default pose [rad or m], and of the cosine between their axes from 1."""

_mirrors: WeakKeyDictionary[Any, dict[str | None, tuple[torch.Tensor, torch.Tensor]]] = WeakKeyDictionary()
"""Of each task, for each observation group, and the actions as None: which column becomes each, and its sign."""


def mirror(
    env: Any,
    obs: TensorDict | None,
    actions: torch.Tensor | None,
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """Return observations and actions with their mirror images appended. Shapes (2 * num, ...).

    Raises:
        UsageError: The robot's left side is no mirror image of its right one, or that of a term is not known.
    """
    task = getattr(env.unwrapped, "task", None)
    if not hasattr(task, "bound"):
        raise UsageError(
            "shoal.mdp.symmetry:mirror knows tasks made of terms alone: name a function of your own as "
            "--agent.algorithm.symmetry.data-augmentation-func."
        )
    if obs is not None:
        flipped = {name: _flipped(task, name, obs[name]) for name in map(str, obs.keys())}
        obs = torch.cat((obs, TensorDict(flipped, batch_size=obs.batch_size, device=obs.device)))  # type: ignore[arg-type]
    if actions is not None:
        actions = torch.cat((actions, _flipped(task, None, actions)))
    return obs, actions


def _flipped(task: Any, group: str | None, rows: torch.Tensor) -> torch.Tensor:
    """Return the mirror image of a group, or of actions. Shape (num, columns), of images (num, C, H, W)."""
    known = _mirrors.setdefault(task, {})
    if group not in known:
        known[group] = _mirror_of(task, group)
    order, signs = known[group]
    return (rows.flatten(1)[:, order] * signs).view_as(rows)


def _mirror_of(task: Any, group: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which column of a group, or of the actions, becomes each, and its sign. Shapes (columns,)."""
    joints = mirrored_joints(task.model, task.home())
    kind, bounds, terms = "action", task.bound.actions, task.config.terms("actions")
    if group is not None:
        kind, bounds = "observation", task.bound.observations[group]
        terms = members(task.config.terms("observations")[group])
    orders, signs, first = [np.zeros(0, dtype=np.int64)], [np.zeros(0)], 0
    for name, bound in bounds.items():
        order, factors = _columns_of(task, f"{kind} {name}", bound, terms[name], joints)
        for _ in range(getattr(terms[name], "num_values", 1)):
            orders.append(first + order)
            signs.append(factors)
            first += len(order)
    device = task.device.alias
    return (
        torch.as_tensor(np.concatenate(orders), device=device),
        torch.as_tensor(np.concatenate(signs), dtype=torch.float32, device=device),
    )


def _columns_of(
    task: Any, what: str, bound: Bound, term: Any, joints: Mapping[str, tuple[str, float]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return which column of a term becomes each, and its sign. Shapes (columns,)."""
    function: Any = bound.function
    fault = python_of(function).__name__
    command = getattr(term, "command", None) if function in _SIGNS else None
    is_other = command is not None and task.config.terms("commands")[command].columns != _TWIST
    names, partners = _partners(task, bound, term, joints)
    places = {name: at for at, name in enumerate(names)}
    alone = [name for name, (partner, _) in zip(names, partners, strict=True) if partner not in places]
    found: tuple[np.ndarray, np.ndarray] | None = None
    if function in _OF_PIXELS and not _stays_in_plane(task, term.sensor_name, joints):
        fault += f" of {term.sensor_name}, which is not in the plane of symmetry"
    elif alone:
        fault += f" of {alone[0]} without its partner"
    elif function in _OF_PIXELS:
        order = np.arange(len(bound.columns)).reshape(-1, *bound.shape)[..., ::-1].ravel()
        found = order, np.ones(len(order))
    elif function in _SIGNS and not is_other:
        found = np.arange(len(_SIGNS[function])), np.array(_SIGNS[function])
    elif function is observing.height_scan:
        order, _ = _nearest(np.pad(grid_points(*term.grid), ((0, 0), (0, 1)))[:, None])
        found = order, np.ones(len(order))
    elif names:
        own = _OF_PARTS.get(function, (1,))
        order = np.array([places[partner] for partner, _ in partners])[:, None] * len(own)
        found = (order + np.arange(len(own))).ravel(), np.outer([sign for _, sign in partners], own).ravel()
    if found is not None:
        differing = _differing(task, bound, term, *found)
        if not differing:
            return found
        fault += f", whose {differing} differs between the sides"
    raise UsageError(
        f"--agent.algorithm.symmetry.enabled needs to know the mirror image of the {what} ({fault}), but does not: "
        "pass --agent.algorithm.symmetry.no-enabled."
    )


def _partners(
    task: Any, bound: Bound, term: Any, joints: Mapping[str, tuple[str, float]]
) -> tuple[Sequence[str], list[tuple[str, float]]]:
    """Return the names of what a term is of, and of each the mirror image with its sign; nothing for other terms."""
    function: Any = bound.function
    if function in (observing.ray_distances, observing.ray_normals):
        return _rays(task, term.sensor_name, joints)
    if function in _OF_PARTS or function is observing.camera_mask:
        return _parts(task, term)
    if function not in _OF_JOINTS | _OF_ACTUATORS:
        return [], []
    names = [_joint_of(task.model, each) if function in _OF_ACTUATORS else each for each in bound.columns]
    return names, [joints.get(name, ("", 0.0)) for name in names]


def _differing(task: Any, bound: Bound, term: Any, order: np.ndarray, signs: np.ndarray) -> str:
    """Return the field of a term whose numbers are others in the mirror; empty where there is none."""
    clip = getattr(term, "clip", 0.0)
    if isinstance(clip, tuple) and clip[0] != -clip[1] and (signs < 0).any():
        return "clip"
    by_column = {name: task.binder.arrays.get(f"{bound.name}_{name}") for name in ("scale", "clip", "swing", "shift")}
    numbers = {name: array.numpy() for name, array in by_column.items() if array is not None}
    for name, values in numbers.items():
        flipped = values[order] * (signs if name == "swing" else 1)
        apart = flipped - values
        if name == "shift":  # The clock is half a period later in the mirror.
            apart = (np.mod(apart, 1) - 0.5)[numbers["swing"] != 0]
        if not np.allclose(apart, 0.0, atol=1e-6):
            return name
    return ""


def _stays_in_plane(task: Any, sensor: str, joints: Mapping[str, tuple[str, float]]) -> bool:
    """Whether a camera is its own mirror image, and remains it in each pose of the robot."""
    model: mujoco.MjModel = task.model
    named = task.config.terms("sensors")[sensor].camera_name or sensor
    (camera,), data = task.binder.names.select("camera", named, "camera_name"), _at_home(model, task.home())
    body = model.cam_bodyid[camera]
    is_fixed = model.cam_mode[camera] == mujoco.mjtCamLight.mjCAMLIGHT_FIXED
    is_centred = model.cam_intrinsic[camera, 2] == 0.0 and abs(data.cam_xpos[camera, 1]) < _SAME_PLACE
    is_upright = abs(data.cam_xmat[camera, 3]) > 1 - _SAME_ANGLE  # What is right in the image is on one side.
    return bool(is_fixed and is_centred and is_upright and _move_alike(model, body, body, joints))


def _move_alike(model: mujoco.MjModel, body: int, other: int, joints: Mapping[str, tuple[str, float]]) -> bool:
    """Whether a body of the robot moves in the mirror as another does: by the partners of its joints."""
    chains = list[list[int]]()
    for bodies in ([body], [other]):
        while bodies[-1]:
            bodies.append(model.body_parentid[bodies[-1]])
        chains.append(np.flatnonzero(np.isin(model.jnt_bodyid, bodies)).tolist())
    is_of_robot = model.jnt_type[0] != mujoco.mjtJoint.mjJNT_FREE or all(0 in chain for chain in chains)
    moving, others = ([model.joint(joint).name for joint in chain] for chain in chains)
    return is_of_robot and [joints.get(name, (name,))[0] for name in moving] == others


def _rays(
    task: Any, sensor: str, joints: Mapping[str, tuple[str, float]]
) -> tuple[Sequence[str], list[tuple[str, float]]]:
    """Return the names of rays, and those of their mirror images with 1: of the same frame, or of its partner."""
    from shoal.sim.engines.tracing import ALIGNMENTS, aligned  # Slow to import.

    frames, data = task.binder.rays[sensor][0], _at_home(task.model, task.home())
    positions, turns = (getattr(data, f"{frames.prefix}{each}")[frames.indices] for each in ("xpos", "xmat"))
    ahead, alignment = turns[:, ::3], task.config.terms("sensors")[sensor].ray_alignment
    points, alike = list[np.ndarray](), np.zeros((len(ahead), len(ahead)), dtype=bool)
    for one, (position, turn) in enumerate(zip(positions, turns, strict=True)):
        turned = np.array(aligned(wp.mat33(*turn), ALIGNMENTS.index(alignment))).reshape(3, 3).T
        points += [*np.stack([position + frames.offsets @ turned, frames.directions @ turned], axis=1)]
        for other, body in enumerate(frames.bodies):
            alike[one, other] = _move_alike(task.model, frames.bodies[one], body, joints)
            # Headings are those of the mirror image in each pose if the x axes are, or opposite.
            alike[one, other] &= alignment != "yaw" or abs(ahead[one] * (1, -1, 1) @ ahead[other]) > 1 - _SAME_ANGLE
    order, apart = _nearest(np.array(points))
    rays, count, names = np.arange(len(order)), len(frames.offsets), frames.columns
    known = (order[order] == rays) & (apart < _SAME_PLACE).all(axis=1) & alike[rays // count, order // count]
    return names, [(names[other] if is_known else "", 1.0) for other, is_known in zip(order, known, strict=True)]


def _nearest(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each of some points or sets of them, the one that is nearest to its mirror image, and how far it is.

    Shapes (n, size, 3) to (n,) and (n, size).
    """
    apart = (np.linalg.norm(points - each * (1, -1, 1), axis=2) for each in points)
    found = [(each.sum(axis=1).argmin(), each) for each in apart]
    return np.array([at for at, _ in found]), np.array([each[at] for at, each in found])


def _parts(task: Any, term: Any) -> tuple[list[str], list[tuple[str, float]]]:
    """Return the names of the bodies, geoms or sites that a term is of, and those of their mirror images with 1.

    A body's centre of mass distinguishes it from others in the same position. Free objects are their own mirror images.
    """
    model = task.model
    term = task.config.terms("contacts")[term.contact] if "contact" in term.parameters else term
    plural = next(name for name in ("sites", "geoms", "bodies", "subtrees") if name in term.parameters)
    kind = {"geoms": "geom", "sites": "site"}.get(plural, "body")
    data = _at_home(model, task.home())
    chosen = task.binder.names.select(kind, getattr(term, plural), plural)
    names = [task.binder.names.names(kind)[index] for index in chosen]
    positions = {"geom": data.geom_xpos, "site": data.site_xpos, "body": data.xpos}[kind][chosen]
    centres = data.xipos[chosen] if kind == "body" else positions
    nearest, apart = _nearest(np.stack([positions, centres], axis=1))
    bodies = {"geom": model.geom_bodyid, "site": model.site_bodyid}.get(kind, np.arange(model.nbody))[chosen]
    joints = model.body_jntadr[model.body_rootid[bodies]]  # -1 of a body without.
    is_object = (joints > 0) & (model.jnt_type[joints] == mujoco.mjtJoint.mjJNT_FREE)
    partners = [names[other] if near else "" for other, near in zip(nearest, apart[:, 0] < _SAME_PLACE, strict=True)]
    found = zip(names, partners, is_object, strict=True)
    return names, [(name if is_own else partner, 1.0) for name, partner, is_own in found]


def _joint_of(model: mujoco.MjModel, actuator: str) -> str:
    """Return the name of the joint that an actuator moves; that of another transmission is empty."""
    index = model.actuator(actuator).id
    is_on_joint = model.actuator_trntype[index] == mujoco.mjtTrn.mjTRN_JOINT
    return model.joint(int(model.actuator_trnid[index, 0])).name if is_on_joint else ""


def mirrored_joints(model: mujoco.MjModel, home: np.ndarray) -> dict[str, tuple[str, float]]:
    """Return the name of each joint's mirror image, and the sign of its position there, by the name of the joint.

    `home` is the default pose, (nq,), and the mirror the plane through the first joint's body, along its x and z.

    Raises:
        UsageError: A joint has none.
    """
    data = _at_home(model, home)
    is_slide = model.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE
    joints = np.flatnonzero(is_slide | (model.jnt_type == mujoco.mjtJoint.mjJNT_HINGE))
    positions, axes = data.xanchor[joints], data.xaxis[joints]
    angles = home[model.jnt_qposadr[joints]]
    found: dict[str, tuple[str, float]] = {}
    for at, joint in enumerate(joints):
        distances = np.linalg.norm(positions - positions[at] * (1, -1, 1), axis=1)
        # The axis of a turn is a pseudovector: what the mirror keeps is its part in the plane's direction.
        alike = axes @ (axes[at] * ((1, -1, 1) if is_slide[joint] else (-1, 1, -1)))
        differences = np.abs(angles - np.sign(alike) * angles[at])
        fitting = (distances < _SAME_PLACE) & (np.abs(alike) > 1 - _SAME_ANGLE) & (differences < _SAME_ANGLE)
        fitting &= is_slide[joints] == is_slide[joint]
        name = model.joint(int(joint)).name
        if not fitting.any():
            raise UsageError(
                f"--agent.algorithm.symmetry.enabled needs a robot whose left side is the mirror image of its right "
                f"one, but joint {name} has no partner in its keyframe: pass "
                "--agent.algorithm.symmetry.no-enabled."
            )
        partner = int(np.argmin(np.where(fitting, distances, np.inf)))
        found[name] = model.joint(int(joints[partner])).name, float(np.sign(alike[partner]))
    return found


def _at_home(model: mujoco.MjModel, home: np.ndarray) -> mujoco.MjData:
    """Return the default pose with the base, if it is free, at the origin of the world: the mirror is y = 0."""
    data = mujoco.MjData(model)
    data.qpos[:] = home
    if model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE:
        data.qpos[:7] = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    mujoco.mj_kinematics(model, data)
    mujoco.mj_camlight(model, data)
    return data
