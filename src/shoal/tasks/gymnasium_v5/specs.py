"""Gymnasium's MuJoCo tasks as the registry knows them: names, summaries, and the learner that each is tuned for.

Importable without Warp, MuJoCo and Gymnasium. What they reach with these learners is in docs/tasks/gymnasium_v5.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.config import AgentConfig, DistributionConfig, ModelConfig, PpoConfig
from shoal.tasks.gymnasium_v5 import config
from shoal.tasks.registry import TaskSpec

if TYPE_CHECKING:
    from shoal.config.algorithm import Schedule
    from shoal.tasks.gymnasium_v5.config import GymnasiumConfig

_GREATEST_STD = 1e6
"""No bound: rsl_rl's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """What differs between the tasks' trainings."""

    max_iterations: int
    num_envs: int = 64
    steps: int = 64
    """Steps of each environment in one iteration."""
    width: int = 128
    """Neurons of each of two hidden layers."""
    init_std: float = 0.5
    """Standard deviation of the first actions; beyond the action space they are clipped."""
    least_std: float = 1e-6
    """What it never falls below; the default is rsl_rl's. Where a task asks for precision it would fall to hundredths
    of the action space, and then the smallest change of the mean is all the divergence that is aimed at."""
    gamma: float = 0.99
    """Discount of the future for each step."""
    lam: float = 0.95
    """Lambda of the generalised advantage estimate."""
    learning_rate: float = 1e-3
    """Learning rate, at first or always."""
    schedule: Schedule = "adaptive"
    """Whether it follows the divergence, or stays. With many actions, one that follows is mostly at its least."""

    def agent(self) -> AgentConfig:
        """Return the learner."""
        std_range = (self.least_std, _GREATEST_STD)
        gaussian = DistributionConfig(class_name="GaussianDistribution", init_std=self.init_std, std_range=std_range)
        layers = (self.width, self.width)
        return AgentConfig(
            num_steps_per_env=self.steps,
            actor=ModelConfig(hidden_dims=layers, activation="elu", obs_normalization=True, distribution=gaussian),
            critic=ModelConfig(hidden_dims=layers, activation="elu", obs_normalization=True),
            algorithm=PpoConfig(
                num_mini_batches=8,
                gamma=self.gamma,
                lam=self.lam,
                learning_rate=self.learning_rate,
                schedule=self.schedule,
                entropy_coef=0.0,
                # The bound on the critic's change is in units of the return, here in the hundreds and thousands.
                use_clipped_value_loss=False,
            ),
        )


def _spec(  # noqa: PLR0913  All of it differs between the tasks.
    name: str,
    summary: str,
    env: GymnasiumConfig,
    training: _Training,
    *,
    gpu_bytes_per_env: int,
    observation_size: int,
) -> TaskSpec:
    return TaskSpec(
        name=f"{name}-v5",
        summary=f"{summary}, as in Gymnasium.",
        env=env,
        agent=training.agent(),
        num_envs=training.num_envs,
        max_iterations=training.max_iterations,
        builder=f"shoal.tasks.gymnasium_v5.tasks:{name}",
        gpu_bytes_per_env=gpu_bytes_per_env,
        observation_size=observation_size,
        extra="gymnasium",
    )


_HUMANOID = _Training(
    max_iterations=500,
    width=256,
    # Actions end at 0.4.
    init_std=0.2,
    least_std=0.05,
    gamma=0.98,
    lam=0.9,
    learning_rate=3e-4,
    schedule="fixed",
)

SPECS = (
    _spec(
        "Ant",
        "Walk on four legs",
        config.ANT,
        # An action costs half its square: a wider distribution would cost more than the reward for not falling.
        _Training(max_iterations=500, init_std=0.4, least_std=0.2, learning_rate=3e-4, schedule="fixed"),
        gpu_bytes_per_env=32_900,
        observation_size=105,
    ),
    _spec(
        "HalfCheetah",
        "Run with two legs in a plane",
        config.HALF_CHEETAH,
        _Training(max_iterations=600, steps=128),
        gpu_bytes_per_env=24_800,
        observation_size=17,
    ),
    _spec(
        "Hopper",
        "Hop on one leg in a plane",
        config.HOPPER,
        _Training(max_iterations=400, least_std=0.2),
        gpu_bytes_per_env=20_800,
        observation_size=11,
    ),
    _spec(
        "Humanoid",
        "Walk on two legs",
        config.HUMANOID,
        _HUMANOID,
        gpu_bytes_per_env=46_800,
        observation_size=348,
    ),
    _spec(
        "HumanoidStandup",
        "Stand up from lying",
        config.StandupConfig(),
        replace(_HUMANOID, max_iterations=300, lam=0.95),
        gpu_bytes_per_env=46_600,
        observation_size=348,
    ),
    _spec(
        "InvertedPendulum",
        "Keep a pole upright on a cart",
        config.PendulumConfig(),
        # The action space is three times as wide as the others.
        _Training(max_iterations=50, width=64, init_std=1.0),
        gpu_bytes_per_env=17_100,
        observation_size=4,
    ),
    _spec(
        "InvertedDoublePendulum",
        "Keep a pole upright on a pole on a cart",
        config.DoublePendulumConfig(),
        _Training(max_iterations=250, width=64, least_std=0.2, gamma=0.98),
        gpu_bytes_per_env=18_000,
        observation_size=9,
    ),
    _spec(
        "Pusher",
        "Push a cylinder to a goal with an arm",
        config.PushConfig(),
        # Whole episodes.
        _Training(max_iterations=500, steps=100, least_std=0.1, gamma=0.98),
        gpu_bytes_per_env=339_000,
        observation_size=23,
    ),
    _spec(
        "Reacher",
        "Touch a target with the tip of an arm",
        config.ReachConfig(),
        # Whole episodes, of which what comes after twenty steps hardly depends on the present one.
        _Training(max_iterations=300, steps=50, width=64, least_std=0.1, gamma=0.95),
        gpu_bytes_per_env=18_800,
        observation_size=10,
    ),
    _spec(
        "Swimmer",
        "Swim with three links in a plane",
        config.SWIMMER,
        # A stroke is paid for by what comes long after it. Discount and lambda are those of RL Baselines3 Zoo.
        _Training(max_iterations=150, num_envs=16, steps=512, width=64, init_std=1.0, gamma=0.9999, lam=0.98),
        gpu_bytes_per_env=19_900,
        observation_size=8,
    ),
    _spec(
        "Walker2d",
        "Walk on two legs in a plane",
        config.WALKER2D,
        _Training(max_iterations=600, least_std=0.2),
        gpu_bytes_per_env=24_900,
        observation_size=17,
    ),
)
