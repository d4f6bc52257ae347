"""Dynamics, reset, observations and rewards of the cart-pole, as Warp kernels.

A pole, hinged to a cart, without friction, as in Barto, Sutton and Anderson (1983). The accelerations are
those of Florian, "Correct equations for the dynamics of the cart-pole system" (2007), equations 23 and 24,
which without friction are the original ones::

    x      position of the cart            F   force on the cart, positive towards positive x
    theta  angle of the pole from upright  l   half the length of the pole
    M, m   masses of cart and pole         g   acceleration of free fall

    p       = F + m l theta'^2 sin(theta)
    theta'' = ((M + m) g sin(theta) - p cos(theta)) / (l (4/3 (M + m) - m cos(theta)^2))
    x''     = (p - m l theta'' cos(theta)) / (M + m)

They are integrated by the semi-implicit Euler method, as MuJoCo's Euler integrator does: speeds first, and
then positions with the new speeds.

Rows of `qpos` are x and theta, rows of `qvel` x' and theta', as in MuJoCo.
"""

import warp as wp

from shoal.tasks.cartpole.config import CartpoleConfig


@wp.struct
class Plant:
    """Constants of the equations of motion."""

    force_limit: wp.float32
    pole_moment: wp.float32
    """m l [kg m]."""
    total_weight: wp.float32
    """(M + m) g [N]."""
    fixed_inertia: wp.float32
    """4/3 (M + m) l [kg m]."""
    per_total_mass: wp.float32
    """1 / (M + m) [1/kg]."""
    dt: wp.float32
    decimation: wp.int32


def plant_of(config: CartpoleConfig) -> Plant:
    """Return the constants of a configuration."""
    total_mass = config.cart_mass + config.pole_mass
    plant = Plant()
    plant.force_limit = config.force_limit
    plant.pole_moment = config.pole_mass * config.pole_half_length
    plant.total_weight = total_mass * config.gravity
    plant.fixed_inertia = 4.0 / 3.0 * total_mass * config.pole_half_length
    plant.per_total_mass = 1.0 / total_mass
    plant.dt = config.physics_dt
    plant.decimation = config.decimation
    return plant


@wp.func
def pushed(state: wp.vec4, action: wp.float32, plant: Plant) -> wp.vec4:
    """Return the state after one action."""
    force = plant.force_limit * wp.clamp(action, -1.0, 1.0)
    x = state[0]
    theta = state[1]
    x_speed = state[2]
    theta_speed = state[3]
    for _ in range(plant.decimation):
        sine = wp.sin(theta)
        cosine = wp.cos(theta)
        push = force + plant.pole_moment * theta_speed * theta_speed * sine
        theta_acceleration = (plant.total_weight * sine - push * cosine) / (
            plant.fixed_inertia - plant.pole_moment * cosine * cosine
        )
        x_acceleration = (push - plant.pole_moment * theta_acceleration * cosine) * plant.per_total_mass
        x_speed += plant.dt * x_acceleration
        theta_speed += plant.dt * theta_acceleration
        x += plant.dt * x_speed
        theta += plant.dt * theta_speed
    return wp.vec4(x, theta, x_speed, theta_speed)


@wp.func
def near_zero(value: wp.float32, margin: wp.float32) -> wp.float32:
    """Return 1 at 0 and 0.1 at `margin`: the Control Suite's long-tailed tolerance."""
    part = value / margin
    return 1.0 / (1.0 + 9.0 * part * part)


@wp.func
def swung_up(state: wp.vec4, action: wp.float32, centred_margin: wp.float32, slow_margin: wp.float32) -> wp.float32:
    """Return the smooth reward for an upright and slow pole over a centred cart, at little force."""
    upright = 0.5 * (1.0 + wp.cos(state[1]))
    centred = 0.5 * (1.0 + near_zero(state[0], centred_margin))
    little_force = 0.2 * (5.0 - action * action)
    slow = 0.5 * (1.0 + near_zero(state[3], slow_margin))
    return upright * centred * little_force * slow


@wp.func
def simulated(
    qpos: wp.array2d[wp.float32], qvel: wp.array2d[wp.float32], env: wp.int32, action: wp.float32, plant: Plant
) -> wp.vec4:
    """Simulate one action in one environment, and return its new state."""
    after = pushed(wp.vec4(qpos[env, 0], qpos[env, 1], qvel[env, 0], qvel[env, 1]), action, plant)
    for joint in range(2):
        qpos[env, joint] = after[joint]
        qvel[env, joint] = after[2 + joint]
    return after


@wp.kernel(enable_backward=False)
def simulate_balance(
    actions: wp.array2d[wp.float32],
    plant: Plant,
    rail_half_length: wp.float32,
    fallen_angle: wp.float32,
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    terms: wp.array2d[wp.float32],
    terminated: wp.array[wp.bool],
) -> None:
    """Simulate one action; reward an upright pole, a centred cart and little force."""
    env = wp.tid()
    action = wp.clamp(actions[env, 0], -1.0, 1.0)
    after = simulated(qpos, qvel, env, action, plant)
    off_centre = after[0] / rail_half_length
    terms[env, 0] = 1.0
    terms[env, 1] = off_centre * off_centre
    terms[env, 2] = action * action
    terminated[env] = wp.abs(after[0]) > rail_half_length or wp.abs(after[1]) > fallen_angle


@wp.kernel(enable_backward=False)
def simulate_swingup(
    actions: wp.array2d[wp.float32],
    plant: Plant,
    rail_half_length: wp.float32,
    centred_margin: wp.float32,
    slow_margin: wp.float32,
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    terms: wp.array2d[wp.float32],
    terminated: wp.array[wp.bool],
) -> None:
    """Simulate one action; reward an upright and slow pole over a centred cart, at little force."""
    env = wp.tid()
    action = wp.clamp(actions[env, 0], -1.0, 1.0)
    after = simulated(qpos, qvel, env, action, plant)
    terms[env, 0] = swung_up(after, action, centred_margin, slow_margin)
    terminated[env] = wp.abs(after[0]) > rail_half_length


@wp.kernel(enable_backward=False)
def reset_cartpole(
    done: wp.array[wp.bool],
    start_angle: wp.float32,
    ranges: wp.vec4,
    rng: wp.array[wp.uint32],
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
) -> None:
    """Begin a new episode where the last one is done: near the middle, with the pole near `start_angle`."""
    env = wp.tid()
    if not done[env]:
        return
    random = rng[env]
    for joint in range(2):
        qpos[env, joint] = ranges[joint] * wp.randf(random, -1.0, 1.0)
    for joint in range(2):
        qvel[env, joint] = ranges[2 + joint] * wp.randf(random, -1.0, 1.0)
    qpos[env, 1] += start_angle
    rng[env] = random


@wp.kernel(enable_backward=False)
def observe_cartpole(
    qpos: wp.array2d[wp.float32], qvel: wp.array2d[wp.float32], scales: wp.vec3, observation: wp.array2d[wp.float32]
) -> None:
    """Observe position, sine and cosine of the angle, and both speeds, each about as large as 1."""
    env = wp.tid()
    observation[env, 0] = qpos[env, 0] * scales[0]
    observation[env, 1] = wp.sin(qpos[env, 1])
    observation[env, 2] = wp.cos(qpos[env, 1])
    observation[env, 3] = qvel[env, 0] * scales[1]
    observation[env, 4] = qvel[env, 1] * scales[2]
