"""Events of a legged robot, as Warp kernels: reset, commands, pushes, startup randomisation and terrain levels.

Rows of ``qpos`` and ``qvel`` are as in `shoal.tasks.quadruped.kernels`. All random numbers come from ``rng``.
"""

# Kernel bodies are Warp's language, whose numbers and arrays pyright reads as Python's. Arrays come by position.
# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false, reportInvalidTypeForm=false
# pyright: reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

import warp as wp

from shoal.mdp.ground import Ground, surface_at
from shoal.sim.engines.engine import vec10
from shoal.tasks.quadruped.kernels import command_of, lin_vel_of


@wp.struct
class CommandDistribution:
    """Distribution of commands."""

    limits: wp.vec3
    """Largest velocity along x and y [m/s], and about z [rad/s]."""
    interval_min: wp.float32
    interval_max: wp.float32
    standing_share: wp.float32


@wp.func
def write_command(
    commands: wp.array2d[wp.float32], env: wp.int32, distribution: CommandDistribution, draws: wp.vec4
) -> None:
    """Write the command of one robot from four random numbers in [0, 1)."""
    stands = draws[3] < distribution.standing_share
    for axis in range(3):
        commands[env, axis] = wp.where(stands, 0.0, distribution.limits[axis] * (2.0 * draws[axis] - 1.0))


@wp.kernel(enable_backward=False)
def reset_state(
    done: wp.array[wp.bool],
    start: wp.array[wp.float32],
    joint_range: wp.float32,
    distribution: CommandDistribution,
    rng: wp.array[wp.uint32],
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    ctrl: wp.array2d[wp.float32],
    commands: wp.array2d[wp.float32],
    command_left: wp.array[wp.float32],
    last_actions: wp.array2d[wp.float32],
    last_joint_vel: wp.array2d[wp.float32],
    air_times: wp.array2d[wp.float32],
) -> None:
    """Reset where done: to the keyframe, with a random heading and a new command."""
    env = wp.tid()
    if not done[env]:
        return
    random = rng[env]
    for column in range(7):
        qpos[env, column] = start[column]
    heading = wp.randf(random, -wp.PI, wp.PI)
    qpos[env, 3] = wp.cos(0.5 * heading)
    qpos[env, 4] = 0.0
    qpos[env, 5] = 0.0
    qpos[env, 6] = wp.sin(0.5 * heading)
    for column in range(6):
        qvel[env, column] = 0.0
    for joint in range(ctrl.shape[1]):
        qpos[env, 7 + joint] = start[7 + joint] + wp.randf(random, -joint_range, joint_range)
        qvel[env, 6 + joint] = 0.0
        ctrl[env, joint] = start[7 + joint]
        last_actions[env, joint] = 0.0
        last_joint_vel[env, joint] = 0.0
    for foot in range(air_times.shape[1]):
        air_times[env, foot] = -1.0
    draws = wp.vec4(wp.randf(random), wp.randf(random), wp.randf(random), wp.randf(random))
    write_command(commands, env, distribution, draws)
    command_left[env] = wp.randf(random, distribution.interval_min, distribution.interval_max)
    rng[env] = random


@wp.kernel(enable_backward=False)
def interval_events(
    done: wp.array[wp.bool],
    distribution: CommandDistribution,
    step_dt: wp.float32,
    push_chance: wp.float32,
    push_speed: wp.float32,
    rng: wp.array[wp.uint32],
    qvel: wp.array2d[wp.float32],
    moved: wp.array[wp.bool],
    commands: wp.array2d[wp.float32],
    command_left: wp.array[wp.float32],
) -> None:
    """Interval events: a new command where the time of the last one is up, and random pushes."""
    env = wp.tid()
    if done[env]:
        return
    random = rng[env]
    command_left[env] = command_left[env] - step_dt
    if command_left[env] <= 0.0:
        draws = wp.vec4(wp.randf(random), wp.randf(random), wp.randf(random), wp.randf(random))
        write_command(commands, env, distribution, draws)
        command_left[env] = wp.randf(random, distribution.interval_min, distribution.interval_max)
    if wp.randf(random) < push_chance:
        qvel[env, 0] = qvel[env, 0] + wp.randf(random, -push_speed, push_speed)
        qvel[env, 1] = qvel[env, 1] + wp.randf(random, -push_speed, push_speed)
        moved[env] = True
    rng[env] = random


@wp.kernel(enable_backward=False)
def randomize(
    friction: wp.vec2,
    added_mass: wp.vec2,
    gain_range: wp.float32,
    feet: wp.array[wp.int32],
    base: wp.int32,
    usual_mass: wp.float32,
    usual_gains: wp.array2d[wp.float32],
    rng: wp.array[wp.uint32],
    geom_friction: wp.array2d[wp.vec3],
    body_mass: wp.array2d[wp.float32],
    gainprm: wp.array2d[vec10],
    biasprm: wp.array2d[vec10],
) -> None:
    """Startup randomisation: foot friction, added base mass, PD gains."""
    env = wp.tid()
    random = rng[env]
    sliding = wp.randf(random, friction[0], friction[1])
    for foot in range(feet.shape[0]):
        usual = geom_friction[env, feet[foot]]
        geom_friction[env, feet[foot]] = wp.vec3(sliding, usual[1], usual[2])
    body_mass[env, base] = usual_mass + wp.randf(random, added_mass[0], added_mass[1])
    for joint in range(usual_gains.shape[1]):
        stiffness = usual_gains[0, joint] * wp.randf(random, 1.0 - gain_range, 1.0 + gain_range)
        damping = usual_gains[1, joint] * wp.randf(random, 1.0 - gain_range, 1.0 + gain_range)
        gain = gainprm[env, joint]
        gain[0] = stiffness
        gainprm[env, joint] = gain
        bias = biasprm[env, joint]
        bias[1] = -stiffness
        bias[2] = -damping
        biasprm[env, joint] = bias
    rng[env] = random


@wp.struct
class Curriculum:
    """Parameters of the terrain curriculum."""

    is_on: wp.bool
    """Whether a robot's progress decides. If not, the level of each episode is drawn uniformly."""
    lowest: wp.int32
    highest: wp.int32
    kinds: wp.int32
    """Number of terrain types; environments take turns."""
    min_distance: wp.float32
    """Shortest commanded distance that counts [m]."""
    promote_at: wp.float32
    """Share of the commanded distance above which the level goes up."""
    demote_at: wp.float32
    """Share of the commanded distance below which the level goes down."""


@wp.kernel(enable_backward=False)
def track_progress(
    step_dt: wp.float32,
    edge: wp.vec2,
    levels: wp.array[wp.int32],
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    commands: wp.array2d[wp.float32],
    commanded_distance: wp.array[wp.float32],
    walked_distance: wp.array[wp.float32],
    truncated: wp.array[wp.bool],
    metrics: wp.array2d[wp.float32],
) -> None:
    """Add up commanded and walked distances, and cut off episodes at the edge of the terrain."""
    env = wp.tid()
    command = command_of(commands, env)
    speed = wp.sqrt(command[0] * command[0] + command[1] * command[1])
    if speed > 0.0:
        turn = wp.quat(qpos[env, 4], qpos[env, 5], qpos[env, 6], qpos[env, 3])
        direction = wp.quat_rotate(turn, wp.vec3(command[0] / speed, command[1] / speed, 0.0))
        # Clamped: a faster step does not make up for a slower one.
        commanded_distance[env] = commanded_distance[env] + step_dt * speed
        walked_distance[env] = walked_distance[env] + step_dt * wp.clamp(
            wp.dot(direction, lin_vel_of(qvel, env)), 0.0, speed
        )
    truncated[env] = wp.abs(qpos[env, 0]) > edge[0] or wp.abs(qpos[env, 1]) > edge[1]
    metrics[env, 2] = wp.float32(levels[env])


@wp.kernel(enable_backward=False)
def update_terrain_levels(
    done: wp.array[wp.bool],
    time_out: wp.array[wp.bool],
    params: Curriculum,
    rng: wp.array[wp.uint32],
    commanded_distance: wp.array[wp.float32],
    walked_distance: wp.array[wp.float32],
    levels: wp.array[wp.int32],
) -> None:
    """Update the terrain level where done. Past the highest level, the level is drawn uniformly."""
    env = wp.tid()
    if not done[env]:
        return
    level = levels[env]
    random = rng[env]
    counts = commanded_distance[env] >= params.min_distance
    to_any = not params.is_on
    if not time_out[env] or (counts and walked_distance[env] < params.demote_at * commanded_distance[env]):
        level -= 1
    elif counts and walked_distance[env] >= params.promote_at * commanded_distance[env]:
        level += 1
        to_any = to_any or level > params.highest
    if to_any:
        level = params.lowest + wp.int32(wp.randf(random) * wp.float32(params.highest - params.lowest + 1))
    levels[env] = wp.clamp(level, params.lowest, params.highest)
    commanded_distance[env] = 0.0
    walked_distance[env] = 0.0
    rng[env] = random


@wp.kernel(enable_backward=False)
def move_to_tiles(
    first: wp.array[wp.int32],
    done: wp.array[wp.bool],
    params: Curriculum,
    centers: wp.array2d[wp.vec2],
    levels: wp.array[wp.int32],
    spread: wp.float32,
    ground: Ground,
    rng: wp.array[wp.uint32],
    qpos: wp.array2d[wp.float32],
) -> None:
    """Move robots that were reset at the origin to the middle of their tile; they take turns with the types."""
    env = wp.tid()
    if not done[env]:
        return
    random = rng[env]
    center = centers[levels[env], (first[0] + env) % params.kinds]
    x = center[0] + wp.randf(random, -spread, spread)
    y = center[1] + wp.randf(random, -spread, spread)
    qpos[env, 0] = x
    qpos[env, 1] = y
    qpos[env, 2] = qpos[env, 2] + surface_at(ground, x, y)[0]
    rng[env] = random


@wp.kernel(enable_backward=False)
def randomize_levels(lowest: wp.int32, count: wp.int32, rng: wp.array[wp.uint32], levels: wp.array[wp.int32]) -> None:
    """Draw each environment's level uniformly from the `count` levels from `lowest` on."""
    env = wp.tid()
    random = rng[env]
    levels[env] = lowest + wp.int32(wp.randf(random) * wp.float32(count))
    rng[env] = random
