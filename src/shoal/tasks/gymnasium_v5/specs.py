"""Gymnasium's MuJoCo tasks as the registry knows them: names, summaries, and the learner that each begins with.

Importable without Warp, MuJoCo and Gymnasium. What they reached with these learners is in docs/tasks.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.config import AgentConfig, DistributionConfig, ModelConfig, PpoConfig
from shoal.tasks.gymnasium_v5 import config
from shoal.tasks.registry import TaskSpec

if TYPE_CHECKING:
    from shoal.tasks.gymnasium_v5.config import GymnasiumConfig


def _agent(*, steps: int, width: int, init_std: float = 1.0) -> AgentConfig:
    """Return a learner with two hidden layers.

    Args:
        steps: Steps of each environment in one iteration.
        width: Neurons of each layer.
        init_std: Standard deviation of the first actions; beyond the action space they are clipped.
    """
    gaussian = DistributionConfig(class_name="GaussianDistribution", init_std=init_std)
    layers = (width, width)
    return AgentConfig(
        num_steps_per_env=steps,
        actor=ModelConfig(hidden_dims=layers, activation="elu", obs_normalization=True, distribution=gaussian),
        critic=ModelConfig(hidden_dims=layers, activation="elu", obs_normalization=True),
        # The bound on the critic's change is in units of the return, which here is in the hundreds and thousands.
        algorithm=PpoConfig(entropy_coef=0.0, num_mini_batches=8, use_clipped_value_loss=False),
    )


def _spec(name: str, summary: str, env: GymnasiumConfig, agent: AgentConfig, *, max_iterations: int) -> TaskSpec:
    return TaskSpec(
        name=f"{name}-v5",
        summary=f"{summary}, as in Gymnasium.",
        env=env,
        agent=agent,
        num_envs=64,
        max_iterations=max_iterations,
        builder=f"shoal.tasks.gymnasium_v5.tasks:{name}",
        extra="gymnasium",
    )


_SMALL = _agent(steps=64, width=64)
_PLANAR = _agent(steps=128, width=128)
_HUMANOID = _agent(steps=128, width=256, init_std=0.4)

SPECS = (
    _spec("Ant", "Walk on four legs", config.ANT, _agent(steps=128, width=256), max_iterations=1000),
    _spec("HalfCheetah", "Run with two legs in a plane", config.HALF_CHEETAH, _PLANAR, max_iterations=300),
    _spec("Hopper", "Hop on one leg in a plane", config.HOPPER, _PLANAR, max_iterations=300),
    _spec("Humanoid", "Walk on two legs", config.HUMANOID, _HUMANOID, max_iterations=2000),
    _spec("HumanoidStandup", "Stand up from lying", config.StandupConfig(), _HUMANOID, max_iterations=2000),
    _spec("InvertedPendulum", "Keep a pole upright on a cart", config.PendulumConfig(), _SMALL, max_iterations=100),
    _spec(
        "InvertedDoublePendulum",
        "Keep a pole upright on a pole on a cart",
        config.DoublePendulumConfig(),
        _SMALL,
        max_iterations=200,
    ),
    _spec("Pusher", "Push a cylinder to a goal with an arm", config.PushConfig(), _PLANAR, max_iterations=500),
    _spec("Reacher", "Touch a target with the tip of an arm", config.ReachConfig(), _SMALL, max_iterations=300),
    _spec("Swimmer", "Swim with three links in a plane", config.SWIMMER, _SMALL, max_iterations=300),
    _spec("Walker2d", "Walk on two legs in a plane", config.WALKER2D, _PLANAR, max_iterations=500),
)
