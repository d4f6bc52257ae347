"""Observation terms. Names are mjlab's where it has the term.

A function with a parameter `i` returns column `i`: it has a column for each name that its next parameter selects.
"""

from typing import Any

import warp as wp

from shoal.mdp.annotations import (
    ActionColumns,
    ActuatorIds,
    BodyId,
    CommandColumn,
    Contacts,
    Geoms,
    Grid,
    Image,
    Joints,
    Rays,
    RgbImage,
    RootBody,
    SegmentationImage,
    SensorColumns,
    SiteId,
    SiteIds,
)
from shoal.mdp.base import (  # noqa: F401  Observations are named here.
    base_ang_vel,
    base_lin_vel,
    base_quat,
    command_at,
    heading_w,
    periods_of,
    projected_gravity,
    qpos_of,
    quat_of,
    qvel_of,
    root_quat,
    to_base,
)
from shoal.mdp.contacts import net_force
from shoal.mdp.ground import base_height, clearance_of, surface_at  # noqa: F401  The first is named here.


@wp.func
def root_pos_w(state: Any, env: int, root_body: RootBody = 0) -> wp.vec3:
    """Return the position in the world of the base, or another body with a free joint [m]."""
    first = qpos_of(state, root_body)
    return wp.vec3(state.qpos[env, first], state.qpos[env, first + 1], state.qpos[env, first + 2])


@wp.func
def root_quat_w(state: Any, env: int, root_body: RootBody = 0) -> wp.vec4:
    """Return the orientation in the world of the base, or another body with a free joint, with the real part first."""
    turn = root_quat(state, env, root_body)
    return wp.vec4(turn[3], turn[0], turn[1], turn[2])


@wp.func
def root_lin_vel_w(state: Any, env: int, root_body: RootBody = 0) -> wp.vec3:
    """Return the velocity in the world of the base, or another body with a free joint [m/s]."""
    first = qvel_of(state, root_body)
    return wp.vec3(state.qvel[env, first], state.qvel[env, first + 1], state.qvel[env, first + 2])


@wp.func
def root_ang_vel_w(state: Any, env: int, root_body: RootBody = 0) -> wp.vec3:
    """Return the angular velocity in the world of the base, or another body with a free joint [rad/s]."""
    first = qvel_of(state, root_body) + 3
    own = wp.vec3(state.qvel[env, first], state.qvel[env, first + 1], state.qvel[env, first + 2])
    return wp.quat_rotate(root_quat(state, env, root_body), own)


@wp.func
def body_pos_b(state: Any, env: int, body: BodyId) -> wp.vec3:
    """Return the position of a body, such as an object, in the base's frame [m]."""
    base = wp.vec3(state.qpos[env, 0], state.qpos[env, 1], state.qpos[env, 2])
    return to_base(state, env, state.xpos[env, body] - base)


@wp.func
def body_quat_b(state: Any, env: int, body: BodyId) -> wp.vec4:
    """Return the orientation of a body, such as an object, in the base's frame, with the real part first."""
    turn = wp.quat_inverse(base_quat(state, env)) * quat_of(state.xquat[env, body])
    return wp.vec4(turn[3], turn[0], turn[1], turn[2])


@wp.func
def site_pos_w(state: Any, env: int, i: int, sites: SiteIds) -> wp.vec3:
    """Return the position of a site in the world [m]."""
    return state.site_xpos[env, sites[i]]


@wp.func
def ee_to_object_distance(state: Any, env: int, site: SiteId, object_body: BodyId) -> wp.vec3:
    """Return the vector in the world from a site to a body, as from a gripper to an object [m]."""
    return state.xpos[env, object_body] - state.site_xpos[env, site]


@wp.func
def object_to_goal_distance(state: Any, env: int, object_body: BodyId, command: CommandColumn) -> wp.vec3:
    """Return the vector in the world from a body to a command that is its goal [m]."""
    return command_at(state, env, command) - state.xpos[env, object_body]


@wp.func
def joint_pos(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the position of a joint [rad or m]."""
    return state.qpos[env, joints[i].qpos]


@wp.func
def joint_pos_sin(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the sine of the position of a hinge joint."""
    return wp.sin(state.qpos[env, joints[i].qpos])


@wp.func
def joint_pos_cos(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the cosine of the position of a hinge joint."""
    return wp.cos(state.qpos[env, joints[i].qpos])


@wp.func
def joint_pos_rel(
    state: Any,
    env: int,
    i: int,
    joints: Joints,
    biased: bool = False,
) -> float:
    """Return the distance of a joint from the default pose [rad or m], `biased` with the error of its encoder."""
    error = wp.where(biased, state.encoder_bias[env, joints[i].dof], 0.0)
    return state.qpos[env, joints[i].qpos] + error - joints[i].default_pos


@wp.func
def joint_vel_rel(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return the speed of a joint [rad/s or m/s]."""
    return state.qvel[env, joints[i].dof]


@wp.func
def last_action(
    state: Any,
    env: int,
    i: int,
    actuators: ActuatorIds,  # noqa: ARG001  The columns of their actions follow.
    action_columns: ActionColumns,
) -> float:
    """Return the last action of an actuator."""
    return state.action[env, action_columns[i]]


@wp.func
def last_actions(state: Any, env: int, i: int) -> float:
    """Return all last actions."""
    return state.action[env, i]


@wp.func
def velocity_command(state: Any, env: int, command: CommandColumn) -> wp.vec3:
    """Return a command of three columns."""
    return command_at(state, env, command)


@wp.func
def generated_commands(state: Any, env: int, i: int, command: CommandColumn) -> float:
    """Return a command of any columns."""
    return state.commands[env, command + i]


@wp.func
def gait_phase(state: Any, env: int, period: float) -> wp.vec2:
    """Return sine and cosine of a clock with a `period` [s], which begins with the episode."""
    angle = 2.0 * wp.pi * periods_of(state, env, period)
    return wp.vec2(wp.sin(angle), wp.cos(angle))


@wp.func
def height_scan(state: Any, env: int, i: int, grid: Grid) -> float:
    """Return the height of the base above the ground, less that in the default pose, at a point that turns with it [m].

    `grid` is length, width, and distance between two points [m].
    """
    heading, point = heading_w(state, env), grid[i]
    x = state.qpos[env, 0] + wp.cos(heading) * point[0] - wp.sin(heading) * point[1]
    y = state.qpos[env, 1] + wp.sin(heading) * point[0] + wp.cos(heading) * point[1]
    return state.qpos[env, 2] - state.home[2] - surface_at(state.ground, x, y)[0]


@wp.func
def camera_depth(
    state: Any,  # noqa: ARG001
    env: int,
    i: int,
    sensor_name: Image,
    cutoff_distance: float,
    min_depth: float = 0.01,
) -> float:
    """Return the depth of a camera's pixel, along its axis, as a part of the cutoff distance: at least `min_depth` [m].

    The least value is also that of a pixel in which the camera sees nothing.
    """
    return wp.clamp(sensor_name[env, i], min_depth, cutoff_distance) / cutoff_distance


@wp.func
def camera_rgb(state: Any, env: int, i: int, sensor_name: RgbImage) -> wp.vec3:  # noqa: ARG001
    """Return red, green and blue of a camera's pixel, each from 0 to 1."""
    pixel = sensor_name[env, i]
    colour = wp.vec3()
    for part in range(3):
        colour[part] = wp.float32((pixel >> wp.uint32(16 - 8 * part)) & wp.uint32(255)) / 255.0
    return colour


@wp.func
def camera_segmentation(state: Any, env: int, i: int, sensor_name: SegmentationImage) -> wp.vec2:  # noqa: ARG001
    """Return the index and MuJoCo's type of what a camera's pixel sees, a geom (5); -1 and -1 where it sees nothing."""
    seen = sensor_name[env, i]
    return wp.vec2(wp.float32(seen[0]), wp.float32(seen[1]))


@wp.func
def camera_mask(state: Any, env: int, i: int, sensor_name: SegmentationImage, geoms: Geoms) -> float:  # noqa: ARG001
    """Return 1 where a camera's pixel sees one of some geoms, else 0."""
    for at in range(geoms.shape[0]):
        if geoms[at].index == sensor_name[env, i][0]:
            return 1.0
    return 0.0


@wp.func
def ray_distances(state: Any, env: int, i: int, sensor_name: Rays) -> float:  # noqa: ARG001
    """Return the distance to what a ray hits [m]; the length of the ray where it hits nothing."""
    distance = sensor_name.distance[env, i]
    return wp.where(distance < 0.0, sensor_name.max_distance, distance)


@wp.func
def ray_normals(state: Any, env: int, i: int, sensor_name: Rays) -> wp.vec3:  # noqa: ARG001
    """Return the direction in the world that is upright on what a ray hits; 0 where it hits nothing."""
    return sensor_name.normal[env, i]


@wp.func
def contact_forces(state: Any, env: int, i: int, contact: Contacts) -> wp.vec3:
    """Return the force on a geom or body at all its contacts, in the world [N], of a contact with `netforce`."""
    return net_force(state, env, contact, i)


@wp.func
def foot_contact_forces(state: Any, env: int, i: int, contact: Contacts) -> wp.vec3:
    """Return `contact_forces` f as sign(f) log(1 + |f|)."""
    force = net_force(state, env, contact, i)
    for part in range(3):
        force[part] = wp.sign(force[part]) * wp.log(1.0 + wp.abs(force[part]))
    return force


@wp.func
def builtin_sensor(state: Any, env: int, i: int, sensors: SensorColumns) -> float:
    """Return the numbers of MuJoCo's sensors."""
    return state.sensordata[env, sensors[i]]


@wp.func
def foot_contact(state: Any, env: int, i: int, contact: Contacts) -> float:  # noqa: ARG001
    """Return 1 where a foot touches, else 0."""
    return wp.where(contact.found[env, i], 1.0, 0.0)


@wp.func
def foot_air_time(state: Any, env: int, i: int, contact: Contacts) -> float:  # noqa: ARG001
    """Return the time that a foot has been in the air [s]."""
    return contact.air_time[env, i]


@wp.func
def foot_height(state: Any, env: int, i: int, contact: Contacts) -> float:
    """Return the height of a foot above the ground [m]."""
    return clearance_of(state.ground, contact.position[env, i])
