"""A small configuration of every learner, on the cart-pole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import yaml
from support.learners import ALONE

from shoal.config import (
    AgentConfig,
    DistillationConfig,
    DistributionConfig,
    FastSacConfig,
    GrpoConfig,
    ModelConfig,
    RlGamesConfig,
    SkrlConfig,
    SkrlJaxConfig,
    TrainConfig,
)
from shoal.config.rsl_rl import DistillationAlgorithmConfig
from shoal.config.skrl import SkrlSacConfig, SkrlTd3Config
from shoal.envs.vec_env import WarpVecEnv
from shoal.learn.learner import build_learner
from shoal.learn.loop import TrainingLoop
from shoal.tasks import registry

if TYPE_CHECKING:
    from shoal.learn.groups import World

NUM_ENVS = 8
SPEC = registry.resolve("Cartpole-Swingup")
ACTOR = ModelConfig(
    hidden_dims=(8,), obs_normalization=True, distribution=DistributionConfig(class_name="GaussianDistribution")
)
OFF_POLICY: dict[str, Any] = {"batch_size": 16, "memory_size": 64, "random_timesteps": 2, "learning_starts": 2}
RL_GAMES = RlGamesConfig(num_steps_per_env=6, num_mini_batches=2, hidden_dims=(8,))


def rl_games_file(*, network: dict[str, Any] | None = None, **config: Any) -> str:
    """A configuration file of rl_games: that of `RL_GAMES`, with other entries in two of its sections."""
    params = RL_GAMES.to_params()
    params["network"] |= network or {}
    params["config"] |= config
    return yaml.safe_dump({"params": params})


CENTRAL_VALUE: dict[str, Any] = {
    "minibatch_size": 32768,  # As in Isaac Lab's files: far more than there are samples.
    "mini_epochs": 2,
    "learning_rate": 1e-3,
    "lr_schedule": "linear",
    "normalize_input": True,
    "clip_value": True,
    "network": RL_GAMES.to_params()["network"] | {"central_value": True},
}
AGENTS: dict[str, AgentConfig] = {
    "distillation": DistillationConfig(
        num_steps_per_env=6,
        algorithm=DistillationAlgorithmConfig(num_learning_epochs=2, gradient_length=3),
        student=replace(ACTOR, class_name="RNNModel", rnn_hidden_dim=8),
        teacher=ACTOR,
    ),
    "grpo": GrpoConfig(num_steps_per_env=6, num_learning_epochs=2, num_mini_batches=2, actor=ACTOR, reference="start"),
    "fast_sac": FastSacConfig(
        num_steps_per_env=4,
        updates_per_step=1,
        batch_size=16,
        replay_steps=32,
        warmup_steps=4,
        actor_hidden_dims=(8,),
        critic_hidden_dims=(8,),
        num_step_returns=2,
    ),
    "skrl": SkrlConfig(num_steps_per_env=6, hidden_dims=(8,)),
    "skrl SAC": SkrlConfig(num_steps_per_env=4, hidden_dims=(8,), class_name="SAC", sac=SkrlSacConfig(**OFF_POLICY)),
    "skrl TD3": SkrlConfig(num_steps_per_env=4, hidden_dims=(8,), class_name="TD3", td3=SkrlTd3Config(**OFF_POLICY)),
    "skrl_jax": SkrlJaxConfig(num_steps_per_env=6, hidden_dims=(8,)),
    "rl_games": RL_GAMES,
    "rl_games central value": replace(RL_GAMES, yaml=rl_games_file(central_value_config=CENTRAL_VALUE)),
}


def config_of(agent: str, /, **changes: Any) -> TrainConfig:
    """A training of four iterations."""
    learner = agent.partition(" ")[0]
    small = TrainConfig(task=SPEC.name, learner=learner, env=SPEC.env, agent=AGENTS[agent], num_envs=NUM_ENVS)
    return replace(small, **({"max_iterations": 4} | changes))


def new_loop(agent: str, /, *, world: World = ALONE, seed: int = 0, **changes: Any) -> TrainingLoop:
    """A training whose first weights follow from `seed`."""
    config = config_of(agent, **changes)
    env = WarpVecEnv(SPEC.build(SPEC.env, num_envs=NUM_ENVS, device="cpu", seed=1 + world.rank))
    if config.agent.needs_final_observations:
        env.keep_final_observations()
    torch.manual_seed(seed)
    return TrainingLoop(env, build_learner(env, config, world), config, world)


def tensors_of(value: object) -> list[torch.Tensor]:
    """All tensors of floating-point numbers in a learner's state."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]
