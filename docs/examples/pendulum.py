"""A task of your own in one file: swing a pendulum up with a motor too weak to lift it directly.

    train docs/examples/pendulum.py:Pendulum
    play docs/examples/pendulum.py:Pendulum

The plant is that of Gymnasium's Pendulum-v1: a rod of mass m and length l on an axle, theta measured from upright,
theta'' = 3 g / (2 l) sin(theta) + 3 / (m l^2) torque.
"""

# ruff: noqa: PLR0913, PLR0917 - a kernel takes its arrays by position

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import warp as wp

from shoal import DistributionConfig, EnvConfig, KernelTask, ModelConfig, RslRlConfig

# Small networks: this task needs no more, and on a CPU they learn many times faster than the default ones.
ACTOR = ModelConfig(hidden_dims=(64, 64), distribution=DistributionConfig(class_name="GaussianDistribution"))
CRITIC = ModelConfig(hidden_dims=(64, 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class PendulumConfig(EnvConfig):
    """What can be changed from the command line, such as ``--env.torque-limit 3``."""

    episode_length_s: float = 10.0
    """Length of an episode [s]."""
    mass: float = 1.0
    """Mass of the rod [kg]."""
    length: float = 1.0
    """Length of the rod [m]."""
    torque_limit: float = 2.0
    """Torque at action 1 [N m]. Holding the default rod level takes 4.9."""
    step_dt: float = 0.05
    """Time between two actions, and time step of the integrator [s]."""
    upright_weight: float = 1.0
    """Weight of the term that is 1 upright and 0 hanging down."""
    spin_weight: float = -0.01
    """Weight of the angular speed squared [s^2/rad^2]."""
    effort_weight: float = -0.01
    """Weight of the action squared."""


@wp.kernel(enable_backward=False)
def simulate(
    actions: wp.array2d[wp.float32],
    torque_limit: wp.float32,
    gravity_pull: wp.float32,
    per_inertia: wp.float32,
    dt: wp.float32,
    state: wp.array2d[wp.float32],
    terms: wp.array2d[wp.float32],
) -> None:
    """Apply one action to each pendulum, and judge where that led."""
    env = wp.tid()
    action = wp.clamp(actions[env, 0], -1.0, 1.0)
    acceleration = gravity_pull * wp.sin(state[env, 0]) + per_inertia * torque_limit * action
    speed = wp.clamp(state[env, 1] + dt * acceleration, -8.0, 8.0)
    theta = state[env, 0] + dt * speed
    state[env, 0] = theta
    state[env, 1] = speed
    terms[env, 0] = 0.5 + 0.5 * wp.cos(theta)
    terms[env, 1] = speed * speed
    terms[env, 2] = action * action


@wp.kernel(enable_backward=False)
def reset(done: wp.array[wp.bool], rng: wp.array[wp.uint32], state: wp.array2d[wp.float32]) -> None:
    """Begin again, at any angle, where an episode is done."""
    env = wp.tid()
    if not done[env]:
        return
    random = rng[env]
    state[env, 0] = wp.randf(random, -wp.PI, wp.PI)
    state[env, 1] = wp.randf(random, -1.0, 1.0)
    rng[env] = random


@wp.kernel(enable_backward=False)
def observe(state: wp.array2d[wp.float32], observation: wp.array2d[wp.float32]) -> None:
    """Observe the angle as sine and cosine, and the speed as a part of its limit."""
    env = wp.tid()
    observation[env, 0] = wp.sin(state[env, 0])
    observation[env, 1] = wp.cos(state[env, 0])
    observation[env, 2] = state[env, 1] / 8.0


class Pendulum(KernelTask[PendulumConfig]):
    """Swing a pendulum up and hold it there, with little torque."""

    config = PendulumConfig()
    agent = RslRlConfig(num_steps_per_env=32, actor=ACTOR, critic=CRITIC)
    num_envs = 512
    max_iterations = 50
    observations: ClassVar = {"policy": 3}
    num_actions = 1
    reward_terms = ("upright", "spin", "effort")

    @property
    def step_dt(self) -> float:
        """Simulated time between two actions [s]."""
        return self.config.step_dt

    def allocate(self) -> None:
        """Make the arrays of the state; the base class has made all others."""
        self.state = self.array("state", 2)  # Angle [rad] and angular speed [rad/s].

    def simulate(self) -> None:
        """Launch what turns actions into the next state and the reward terms."""
        config = self.config
        gravity_pull = 3.0 * 9.81 / (2.0 * config.length)
        per_inertia = 3.0 / (config.mass * config.length**2)
        self.launch(
            simulate,
            inputs=[self.actions, config.torque_limit, gravity_pull, per_inertia, config.step_dt],
            outputs=[self.state, self.terms],
        )

    def reset(self) -> None:
        """Launch what begins new episodes."""
        self.launch(reset, inputs=[self.done], outputs=[self.rng, self.state])

    def observe(self) -> None:
        """Launch what writes the observations."""
        self.launch(observe, inputs=[self.state], outputs=[self.obs["policy"]])
