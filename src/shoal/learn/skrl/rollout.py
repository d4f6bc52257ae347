"""Rollout, advantages and losses of skrl's agents, for torch and for JAX."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch

from shoal.learn.groups import World
from shoal.learn.inference import FlatObservations
from shoal.learn.training_env import TrainingEnv, endings

LOSSES = {"Loss / Policy loss": "surrogate", "Loss / Value loss": "value", "Loss / Critic loss": "value"}
LOSSES |= {"Loss / Entropy loss": "entropy"}
"""skrl's names of losses, and those of Shoal's metrics."""


class _SkrlLearner(Protocol):
    """What `transitions` needs of a learner."""

    agent: Any
    inputs: FlatObservations
    steps: int
    steps_per_iteration: int
    learns_each_step: bool


def transitions(
    learner: _SkrlLearner, env: TrainingEnv, act: Callable[..., torch.Tensor], record: Callable[..., None]
) -> None:
    """Step the environments for one iteration, as skrl's trainers do; the learner's agent learns in `post_interaction`.

    `act` returns actions; it is called with observations and states by name, and skrl's time steps. `record` stores a
    transition; it is called with its tensors by name, and these.
    """
    for step in range(learner.steps_per_iteration):
        times = {"timestep": learner.steps, "timesteps": learner.steps + 1}
        env.begin_rollout()
        learner.agent.pre_interaction(**times)
        with torch.no_grad():
            inputs = learner.inputs(env.observations)
            before = {"observations": inputs["actor"], "states": inputs["critic"]}
            actions = act(before, **times)
            observations, rewards, dones, extras = env.step(actions)
            ended, cut = endings(dones, extras)
            after = learner.inputs.after_step(observations, cut, extras)
            transition = {
                **before,
                "next_observations": after["actor"],
                "next_states": after["critic"],
                "actions": actions,
                "rewards": rewards.unsqueeze(1).clone(),
                "terminated": (ended & ~cut).unsqueeze(1),
                "truncated": cut.unsqueeze(1),
            }
            record(transition, **times)
        if learner.learns_each_step or step + 1 == learner.steps_per_iteration:
            env.end_rollout()
        learner.agent.post_interaction(**times)
        learner.steps += 1


@contextmanager
def pooled_advantages(module: ModuleType, name: str, world: World, normalise: Callable[..., Any]) -> Iterator[None]:
    """Have PPO `normalise` its advantages over all ranks in the body; skrl's function in `module` does it on each."""
    own = getattr(module, name)

    def compute(**named: Any) -> tuple[Any, Any]:  # noqa: ANN401  Tensors of torch or JAX, and settings.
        returns, _ = own(**named)
        return returns, normalise(returns - named["values"])

    setattr(module, name, compute if world.is_distributed else own)
    try:
        yield
    finally:
        setattr(module, name, own)


def mean_losses(agent: Any) -> dict[str, float]:  # noqa: ANN401  An agent of skrl.
    """Return the mean losses of an iteration, under the names of Shoal's metrics."""
    tracked: dict[str, list[float]] = agent.tracking_data
    return {ours: float(np.mean(tracked[name])) for name, ours in LOSSES.items() if name in tracked}
