"""A small configuration of every learner for environments whose best policy is known, and trainings on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from support.learners import ALONE, train
from tensordict import TensorDict

from shoal.config import (
    AgentConfig,
    DistributionConfig,
    FastSacConfig,
    GrpoConfig,
    ModelConfig,
    PpoConfig,
    RlGamesConfig,
    RslRlConfig,
    SkrlConfig,
    SkrlJaxConfig,
    TrainConfig,
)
from shoal.config.learners import resolve_learner
from shoal.config.skrl import SkrlPpoConfig, SkrlSacConfig, SkrlTd3Config
from shoal.learn.learner import build_learner
from shoal.learn.loop import TrainingLoop
from shoal.user_code import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.optima import KnownOptimum

OWN = str(Path(__file__).parents[2] / "docs" / "examples" / "actor_critic.py:ActorCritic")
"""A user's own learner."""
ACTOR = ModelConfig(
    hidden_dims=(32,),
    obs_normalization=True,
    distribution=DistributionConfig(class_name="GaussianDistribution", learn_std=False),
)
CRITIC = ModelConfig(hidden_dims=(32,), obs_normalization=True)


def agents(gamma: float) -> dict[str, AgentConfig]:
    """Return a small configuration of every learner, with this discount."""
    own: Any = load(resolve_learner(OWN).builder)
    on_policy: dict[str, Any] = {"num_steps_per_env": 16, "hidden_dims": (32,)}
    ppo = SkrlPpoConfig(discount_factor=gamma, learning_rate=3e-3, adaptive_kl=None)
    off_policy: dict[str, Any] = {"num_steps_per_env": 8, "hidden_dims": (32,)}
    off: dict[str, Any] = {"batch_size": 256, "memory_size": 256, "discount_factor": gamma, "polyak": 0.05}
    off |= {"learning_rate": 3e-3, "gradient_steps": 4}
    return {
        "rsl_rl": RslRlConfig(
            num_steps_per_env=16,
            actor=ACTOR,
            critic=CRITIC,
            obs_groups={"actor": ("policy",), "critic": ("policy",)},
            algorithm=PpoConfig(gamma=gamma, learning_rate=2e-3, schedule="fixed"),
        ),
        "grpo": GrpoConfig(
            num_steps_per_env=8, actor=ACTOR, group_size=8, gamma=gamma, learning_rate=3e-3, kl_coef=0.0
        ),
        "fast_sac": FastSacConfig(
            num_steps_per_env=8,
            batch_size=256,
            replay_steps=256,
            gamma=gamma,
            learning_rate=1e-3,
            actor_hidden_dims=(32,),
            critic_hidden_dims=(32,),
            target_entropy=-1.0,
            initial_temperature=0.05,
        ),
        "skrl": SkrlConfig(**on_policy, initial_log_std=-0.7, ppo=ppo),
        "skrl SAC": SkrlConfig(**off_policy, class_name="SAC", sac=SkrlSacConfig(**off)),
        "skrl TD3": SkrlConfig(**off_policy, class_name="TD3", td3=SkrlTd3Config(**off)),
        "skrl_jax": SkrlJaxConfig(**on_policy, initial_log_std=-0.7, ppo=ppo),
        "rl_games": RlGamesConfig(**on_policy, gamma=gamma, learning_rate=3e-3, lr_schedule=None, num_mini_batches=2),
        OWN: replace(own.config, num_steps_per_env=16, gamma=gamma),
    }


ITERATIONS = {"fast_sac": 80, OWN: 200}
"""The others need 40. The example takes one step of its optimizer in each."""


def learned(
    agent: str,
    settings: AgentConfig,
    env: KnownOptimum,
    iterations: int = 0,
    prepare: Callable[[TrainingLoop], None] = lambda _: None,
) -> TrainingLoop:
    """Train on these environments, what `prepare` has prepared; return the training."""
    learner = agent if agent == OWN else agent.partition(" ")[0]
    config = TrainConfig(
        task="known",
        learner=learner,
        num_envs=env.num_envs,
        max_iterations=iterations or ITERATIONS.get(agent, 40),
        agent=settings,
    )
    torch.manual_seed(0)
    loop = TrainingLoop(env, build_learner(env, config, ALONE), config, ALONE)
    prepare(loop)
    train(loop)
    return loop


def actions_at(loop: TrainingLoop, env: KnownOptimum, states: list[list[float]]) -> list[float]:
    """What the policy does in these states, without noise."""
    observations = env.observe(torch.tensor(states))
    with torch.inference_mode():
        return loop.learner.policy()(TensorDict({"policy": observations}, batch_size=[len(states)]))[:, 0].tolist()
