"""What happens to a legged robot: a new episode, a new command, a push, and a body and a floor of its own.

Rows of ``qpos`` and ``qvel`` are as in `shoal.tasks.quadruped.kernels`. All random numbers come from ``rng``.
"""

# Kernel bodies are Warp's language, whose numbers and arrays pyright reads as Python's. Arrays come by position.
# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false, reportInvalidTypeForm=false
# pyright: reportOperatorIssue=false, reportAssignmentType=false

from __future__ import annotations

import warp as wp

from shoal.sim.engine import vec10


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
