"""What happens to a legged robot: a new episode, a new command, a push, another level, a body and a floor of its own.

Rows of ``qpos`` and ``qvel`` are as in `shoal.tasks.quadruped.kernels`. All random numbers come from ``rng``.
"""

# Kernel bodies are Warp's language, whose numbers and arrays pyright reads as Python's. Arrays come by position.
# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false, reportInvalidTypeForm=false
# pyright: reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

import warp as wp

from shoal.sim.engines.engine import vec10
from shoal.tasks.quadruped.ground import Ground, surface_at
from shoal.tasks.quadruped.kernels import command_to, speed_of


@wp.struct
class Commands:
    """How commands are drawn."""

    fastest: wp.vec3
    """Fastest forwards [m/s], sideways [m/s] and turning [rad/s]."""
    interval_min: wp.float32
    """Shortest time that a command lasts [s]."""
    interval_max: wp.float32
    """Longest time that a command lasts [s]."""
    standing_share: wp.float32
    """Share of the commands that are to stand still."""


@wp.func
def command_of(rules: Commands, luck: wp.vec4) -> wp.vec3:
    """Return the command that four random numbers from [0, 1) stand for."""
    command = wp.vec3(0.0, 0.0, 0.0)
    if luck[3] >= rules.standing_share:
        for axis in range(3):
            command[axis] = rules.fastest[axis] * (2.0 * luck[axis] - 1.0)
    return command


@wp.func
def give_command(commands: wp.array2d[wp.float32], env: wp.int32, command: wp.vec3) -> None:
    """Give one robot a command."""
    for axis in range(3):
        commands[env, axis] = command[axis]


@wp.kernel(enable_backward=False)
def place(
    done: wp.array[wp.bool],
    start: wp.array[wp.float32],
    joint_range: wp.float32,
    rules: Commands,
    rng: wp.array[wp.uint32],
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    ctrl: wp.array2d[wp.float32],
    commands: wp.array2d[wp.float32],
    command_left: wp.array[wp.float32],
    last_actions: wp.array2d[wp.float32],
    last_speeds: wp.array2d[wp.float32],
    air_times: wp.array2d[wp.float32],
) -> None:
    """Begin a new episode where the last one is done: in the keyframe, facing anywhere, with a new command."""
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
        last_speeds[env, joint] = 0.0
    for foot in range(air_times.shape[1]):
        air_times[env, foot] = -1.0
    luck = wp.vec4(wp.randf(random), wp.randf(random), wp.randf(random), wp.randf(random))
    give_command(commands, env, command_of(rules, luck))
    command_left[env] = wp.randf(random, rules.interval_min, rules.interval_max)
    rng[env] = random


@wp.kernel(enable_backward=False)
def disturb(
    done: wp.array[wp.bool],
    rules: Commands,
    step_dt: wp.float32,
    push_chance: wp.float32,
    push_speed: wp.float32,
    rng: wp.array[wp.uint32],
    qvel: wp.array2d[wp.float32],
    moved: wp.array[wp.bool],
    commands: wp.array2d[wp.float32],
    command_left: wp.array[wp.float32],
) -> None:
    """Give a new command where the last one's time is up, and push some robots."""
    env = wp.tid()
    if done[env]:
        return
    random = rng[env]
    command_left[env] = command_left[env] - step_dt
    if command_left[env] <= 0.0:
        luck = wp.vec4(wp.randf(random), wp.randf(random), wp.randf(random), wp.randf(random))
        give_command(commands, env, command_of(rules, luck))
        command_left[env] = wp.randf(random, rules.interval_min, rules.interval_max)
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
    trunk: wp.int32,
    usual_mass: wp.float32,
    usual_gains: wp.array2d[wp.float32],
    rng: wp.array[wp.uint32],
    geom_friction: wp.array2d[wp.vec3],
    body_mass: wp.array2d[wp.float32],
    gainprm: wp.array2d[vec10],
    biasprm: wp.array2d[vec10],
) -> None:
    """Give each environment a floor, a load and motors of its own."""
    env = wp.tid()
    random = rng[env]
    grip = wp.randf(random, friction[0], friction[1])
    for foot in range(feet.shape[0]):
        usual = geom_friction[env, feet[foot]]
        geom_friction[env, feet[foot]] = wp.vec3(grip, usual[1], usual[2])
    body_mass[env, trunk] = usual_mass + wp.randf(random, added_mass[0], added_mass[1])
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
    """How an environment goes from level to level."""

    is_on: wp.bool
    """Whether a robot's progress decides. If not, each episode is on any level."""
    lowest: wp.int32
    """The easiest level."""
    highest: wp.int32
    """The hardest level."""
    kinds: wp.int32
    """How many kinds of ground there are; environments take turns."""
    least_way: wp.float32
    """A robot that was told to go less than this shows nothing [m]."""
    promote_at: wp.float32
    """Share of the way from which on it goes up."""
    demote_at: wp.float32
    """Share of the way below which it goes down."""


@wp.kernel(enable_backward=False)
def follow(
    step_dt: wp.float32,
    edge: wp.vec2,
    levels: wp.array[wp.int32],
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    commands: wp.array2d[wp.float32],
    asked: wp.array[wp.float32],
    walked: wp.array[wp.float32],
    truncated: wp.array[wp.bool],
    measured: wp.array2d[wp.float32],
) -> None:
    """Add up the way that each robot was told to go and went, and cut off episodes at the edge of the ground."""
    env = wp.tid()
    command = command_to(commands, env)
    told = wp.sqrt(command[0] * command[0] + command[1] * command[1])
    if told > 0.0:
        turn = wp.quat(qpos[env, 4], qpos[env, 5], qpos[env, 6], qpos[env, 3])
        way = wp.quat_rotate(turn, wp.vec3(command[0] / told, command[1] / told, 0.0))
        # Faster than told is no further than told: what is late is not made good by haste.
        asked[env] = asked[env] + step_dt * told
        walked[env] = walked[env] + step_dt * wp.clamp(wp.dot(way, speed_of(qvel, env)), 0.0, told)
    truncated[env] = wp.abs(qpos[env, 0]) > edge[0] or wp.abs(qpos[env, 1]) > edge[1]
    measured[env, 2] = wp.float32(levels[env])


@wp.kernel(enable_backward=False)
def grade(
    done: wp.array[wp.bool],
    time_out: wp.array[wp.bool],
    rules: Curriculum,
    rng: wp.array[wp.uint32],
    asked: wp.array[wp.float32],
    walked: wp.array[wp.float32],
    levels: wp.array[wp.int32],
) -> None:
    """Send each environment whose episode is done to its next level. Whoever masters the hardest goes to any."""
    env = wp.tid()
    if not done[env]:
        return
    level = levels[env]
    random = rng[env]
    shown = asked[env] >= rules.least_way
    to_any = not rules.is_on
    if not time_out[env] or (shown and walked[env] < rules.demote_at * asked[env]):
        level -= 1
    elif shown and walked[env] >= rules.promote_at * asked[env]:
        level += 1
        to_any = to_any or level > rules.highest
    if to_any:
        level = rules.lowest + wp.int32(wp.randf(random) * wp.float32(rules.highest - rules.lowest + 1))
    levels[env] = wp.clamp(level, rules.lowest, rules.highest)
    asked[env] = 0.0
    walked[env] = 0.0
    rng[env] = random


@wp.kernel(enable_backward=False)
def set_on_tile(
    done: wp.array[wp.bool],
    rules: Curriculum,
    middles: wp.array2d[wp.vec2],
    levels: wp.array[wp.int32],
    spread: wp.float32,
    ground: Ground,
    rng: wp.array[wp.uint32],
    qpos: wp.array2d[wp.float32],
) -> None:
    """Carry robots that have just been placed at the origin to the middle of their tile."""
    env = wp.tid()
    if not done[env]:
        return
    random = rng[env]
    middle = middles[levels[env], env % rules.kinds]
    x = middle[0] + wp.randf(random, -spread, spread)
    y = middle[1] + wp.randf(random, -spread, spread)
    qpos[env, 0] = x
    qpos[env, 1] = y
    qpos[env, 2] = qpos[env, 2] + surface_at(ground, x, y)[0]
    rng[env] = random


@wp.kernel(enable_backward=False)
def draw_levels(lowest: wp.int32, count: wp.int32, rng: wp.array[wp.uint32], levels: wp.array[wp.int32]) -> None:
    """Send each environment to one of the `count` levels from `lowest` on."""
    env = wp.tid()
    random = rng[env]
    levels[env] = lowest + wp.int32(wp.randf(random) * wp.float32(count))
    rng[env] = random
