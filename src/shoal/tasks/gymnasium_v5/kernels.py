"""Actions, observations, rewards, terminations and resets of Gymnasium's MuJoCo tasks, as Warp kernels.

Each kernel serves several tasks: columns, limits and the column of `terms` are arguments. Fields come as rows of
numbers. The formulas are those of gymnasium/envs/mujoco/*_v5.py of Gymnasium 1.4 with its default arguments.
"""

import warp as wp

AS_IT_IS = 0
SINE = 1
COSINE = 2
SINCE_A_STEP = 3
"""Transformations of `show`; the last is 0 in an episode's first observation."""


@wp.kernel(enable_backward=False)
def clip_actions(actions: wp.array2d[wp.float32], ranges: wp.array[wp.vec2], ctrl: wp.array2d[wp.float32]) -> None:
    """Clip actions to the action space. One thread for each action."""
    env, column = wp.tid()
    ctrl[env, column] = wp.clamp(actions[env, column], ranges[column][0], ranges[column][1])


@wp.kernel(enable_backward=False)
def remember(field: wp.array2d[wp.float32], column: wp.int32, before: wp.array[wp.float32]) -> None:
    """Store a coordinate before a step."""
    env = wp.tid()
    before[env] = field[env, column]


# Observations ---------------------------------------------------------------------------------------------------------


@wp.kernel(enable_backward=False)
def show(
    field: wp.array2d[wp.float32],
    first: wp.int32,
    limit: wp.float32,
    how: wp.int32,
    episode_length: wp.array[wp.int32],
    at: wp.int32,
    observations: wp.array2d[wp.float32],
) -> None:
    """Write columns of a field from `first` on, clipped to ±limit, from column `at` on. One thread for each number."""
    env, column = wp.tid()
    value = wp.clamp(field[env, first + column], -limit, limit)
    if how == SINE:
        value = wp.sin(value)
    if how == COSINE:
        value = wp.cos(value)
    if how == SINCE_A_STEP and episode_length[env] == 0:
        value = 0.0
    observations[env, at + column] = value


@wp.kernel(enable_backward=False)
def show_difference(
    field: wp.array2d[wp.float32],
    one: wp.int32,
    other: wp.int32,
    at: wp.int32,
    observations: wp.array2d[wp.float32],
) -> None:
    """Write how far columns from `one` on exceed those from `other` on. One thread for each number."""
    env, column = wp.tid()
    observations[env, at + column] = field[env, one + column] - field[env, other + column]


# Rewards and terminations ---------------------------------------------------------------------------------------------


@wp.kernel(enable_backward=False)
def reward_velocity(
    field: wp.array2d[wp.float32],
    column: wp.int32,
    before: wp.array[wp.float32],
    step_dt: wp.float32,
    term: wp.int32,
    terms: wp.array2d[wp.float32],
) -> None:
    """Reward the mean velocity of a coordinate over the step."""
    env = wp.tid()
    terms[env, term] = (field[env, column] - before[env]) / step_dt


@wp.kernel(enable_backward=False)
def penalise_squares(
    field: wp.array2d[wp.float32],
    limit: wp.float32,
    most: wp.float32,
    term: wp.int32,
    terms: wp.array2d[wp.float32],
) -> None:
    """Penalise the squares of a field's numbers, each clipped to ±limit; the sum is at most `most`."""
    env = wp.tid()
    total = wp.float32(0.0)
    for column in range(field.shape[1]):
        value = wp.clamp(field[env, column], -limit, limit)
        total += value * value
    terms[env, term] = -wp.min(total, most)


@wp.kernel(enable_backward=False)
def penalise_distance(
    xpos: wp.array2d[wp.vec3], one: wp.int32, other: wp.int32, term: wp.int32, terms: wp.array2d[wp.float32]
) -> None:
    """Penalise the distance between two bodies [m]."""
    env = wp.tid()
    terms[env, term] = -wp.length(xpos[env, one] - xpos[env, other])


@wp.kernel(enable_backward=False)
def reward_health(
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    healthy: wp.array[wp.vec2],
    term: wp.int32,
    terms: wp.array2d[wp.float32],
    terminated: wp.array[wp.bool],
) -> None:
    """Reward 1 while each position and velocity is inside its range of `healthy`, (nq + nv,); terminate otherwise.

    Comparisons with NaN are false, and infinity is inside no range.
    """
    env = wp.tid()
    is_healthy = wp.bool(True)
    for column in range(qpos.shape[1]):
        inside = healthy[column]
        is_healthy = is_healthy and inside[0] < qpos[env, column] and qpos[env, column] < inside[1]
    for column in range(qvel.shape[1]):
        inside = healthy[qpos.shape[1] + column]
        is_healthy = is_healthy and inside[0] < qvel[env, column] and qvel[env, column] < inside[1]
    terms[env, term] = wp.where(is_healthy, wp.float32(1.0), wp.float32(0.0))
    terminated[env] = not is_healthy


@wp.kernel(enable_backward=False)
def reward_balance(
    site_xpos: wp.array2d[wp.vec3],
    qvel: wp.array2d[wp.float32],
    healthy_height: wp.float32,
    terms: wp.array2d[wp.float32],
    terminated: wp.array[wp.bool],
) -> None:
    """Reward a double pendulum whose tip, the first site, is above `healthy_height` [m]; terminate otherwise.

    The other two terms penalise the tip's distance from 2 m above the middle, and the joints' velocities.
    """
    env = wp.tid()
    tip = site_xpos[env, 0]
    fallen = tip[2] <= healthy_height
    missing = tip[2] - 2.0
    lower = qvel[env, 1]
    upper = qvel[env, 2]
    terms[env, 0] = wp.where(fallen, wp.float32(0.0), wp.float32(1.0))
    terms[env, 1] = -(0.01 * tip[0] * tip[0] + missing * missing)
    terms[env, 2] = -(1.0e-3 * lower * lower + 5.0e-3 * upper * upper)
    terminated[env] = fallen


# Resets ---------------------------------------------------------------------------------------------------------------


@wp.kernel(enable_backward=False)
def scatter(
    done: wp.array[wp.bool],
    position_noise: wp.float32,
    vel_noise: wp.float32,
    vel_is_normal: wp.bool,
    joints: wp.vec2i,
    rng: wp.array[wp.uint32],
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
) -> None:
    """Add uniform noise to the first positions where done, and draw the first velocities.

    `joints` are the numbers of positions and velocities that get noise, counted from the first. Velocities are uniform
    in ±`vel_noise`, or normal with that standard deviation.
    """
    env = wp.tid()
    if not done[env]:
        return
    state = rng[env]
    for column in range(joints[0]):
        qpos[env, column] = qpos[env, column] + wp.randf(state, -position_noise, position_noise)
    for column in range(joints[1]):
        if vel_is_normal:
            qvel[env, column] = vel_noise * wp.randn(state)
        else:
            qvel[env, column] = wp.randf(state, -vel_noise, vel_noise)
    rng[env] = state


@wp.kernel(enable_backward=False)
def place_target(
    done: wp.array[wp.bool],
    x_range: wp.vec2,
    y_range: wp.vec2,
    distance_range: wp.vec2,
    column: wp.int32,
    rng: wp.array[wp.uint32],
    qpos: wp.array2d[wp.float32],
) -> None:
    """Write x and y of a point where done: uniform in a rectangle, at a distance from the origin within the range."""
    env = wp.tid()
    if not done[env]:
        return
    state = rng[env]
    x = wp.float32(0.0)
    y = wp.float32(0.0)
    is_placed = wp.bool(False)
    while not is_placed:
        x = wp.randf(state, x_range[0], x_range[1])
        y = wp.randf(state, y_range[0], y_range[1])
        distance = wp.sqrt(x * x + y * y)
        is_placed = distance_range[0] < distance < distance_range[1]
    qpos[env, column] = x
    qpos[env, column + 1] = y
    rng[env] = state
