"""What skrl's agents for torch and for JAX have in common as learners: rollout, advantages and losses."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
from rsl_rl.env import VecEnv

from shoal.config.skrl import SkrlConfig, SkrlJaxConfig
from shoal.learn.groups import World
from shoal.learn.inference import FlatObservations
from shoal.learn.learner import Learner
from shoal.learn.training_env import TrainingEnv, endings

LOSSES = {"Loss / Policy loss": "surrogate", "Loss / Value loss": "value", "Loss / Critic loss": "value"}
LOSSES |= {"Loss / Entropy loss": "entropy"}
"""skrl's names of losses, and those of Shoal's metrics."""


class AgentLearner(Learner):
    """One replica of an agent of skrl. Its rollout is written here, as its trainers step a fixed number of times."""

    agent: Any
    learns_each_step = False
    """As SAC and TD3 do; PPO learns at the end of the rollout."""
    steps = 0
    """Steps of each environment so far; skrl's own count begins at 0 in each process."""

    def __init__(self, env: VecEnv, config: SkrlConfig | SkrlJaxConfig, world: World) -> None:
        self.world = world
        self.check_for_nan, self.steps_per_iteration = config.check_for_nan, config.num_steps_per_env
        self.inputs = FlatObservations(env, config, "actor", "critic")

    @abstractmethod
    def act(self, inputs: Mapping[str, torch.Tensor], **times: int) -> torch.Tensor:
        """Return actions from observations and states by name, at skrl's time steps."""

    @abstractmethod
    def record(self, transition: Mapping[str, torch.Tensor], **times: int) -> None:
        """Store a transition, whose tensors are by name."""

    def iterate(self, env: TrainingEnv) -> dict[str, float]:
        """Step as skrl's trainers do; the agent learns in `post_interaction`."""
        self.agent.tracking_data.clear()
        for step in range(self.steps_per_iteration):
            times = {"timestep": self.steps, "timesteps": self.steps + 1}
            env.begin_rollout()
            self.agent.pre_interaction(**times)
            with torch.no_grad():
                inputs = self.inputs(env.observations)
                before = {"observations": inputs["actor"], "states": inputs["critic"]}
                actions = self.act(before, **times)
                observations, rewards, dones, extras = env.step(actions)
                ended, cut = endings(dones, extras)
                after = self.inputs.after_step(observations, cut, extras)
                transition = {
                    **before,
                    "next_observations": after["actor"],
                    "next_states": after["critic"],
                    "actions": actions,
                    "rewards": rewards.unsqueeze(1).clone(),
                    "terminated": (ended & ~cut).unsqueeze(1),
                    "truncated": cut.unsqueeze(1),
                }
                self.record(transition, **times)
            if self.learns_each_step or step + 1 == self.steps_per_iteration:
                env.end_rollout()
            self.agent.post_interaction(**times)
            self.steps += 1
        tracked: dict[str, list[float]] = self.agent.tracking_data
        return {ours: float(np.mean(tracked[name])) for name, ours in LOSSES.items() if name in tracked}


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
