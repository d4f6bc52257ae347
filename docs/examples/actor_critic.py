"""A learner of one's own: the advantage actor-critic of Mnih et al., arXiv:1602.01783, over several ranks.

train Cartpole-Swingup --learner docs/examples/actor_critic.py:ActorCritic
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from rsl_rl.env import VecEnv
from torch import nn

from shoal import AgentConfig, InferencePolicy, TorchLearner, TrainingEnv, World, above, concatenated, within


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorCriticConfig(AgentConfig):
    """Its fields are flags: `--agent.learning-rate 1e-3`."""

    learning_rate: Annotated[float, above(0)] = 3e-3
    """Step size of Adam."""
    gamma: Annotated[float, within(0, 1)] = 0.99
    """Discount of the future for each environment step."""


class ActorCritic(TorchLearner):
    """One gradient step for each rollout."""

    config = ActorCriticConfig()
    learning_rate_flag = "--agent.learning-rate"

    def __init__(self, env: VecEnv, config: ActorCriticConfig, world: World) -> None:
        self.world, self.gamma, self.check_for_nan = world, config.gamma, config.check_for_nan
        self.steps_per_iteration, self.groups = config.num_steps_per_env, list(config.obs_groups["actor"])
        self.inputs = concatenated(env.get_observations(), self.groups).shape[1]
        self.actor, self.critic = _network(self.inputs, env.num_actions), _network(self.inputs, 1)
        self.noise = nn.Embedding.from_pretrained(torch.full((1, env.num_actions), 0.5), freeze=False)
        parameters = [weight for module in self.modules.values() for weight in module.to(world.device).parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=config.learning_rate)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What is saved, sent to all ranks at the start, and compared."""
        return {"actor": self.actor, "critic": self.critic, "noise": self.noise}

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """What is saved and compared, too."""
        return {"optimizer": self.optimizer}

    def iterate(self, env: TrainingEnv) -> dict[str, float]:
        """Collect one rollout, and learn from it; the losses are pooled over ranks and logged."""
        log_probs, values, rewards, going_on = [], [], [], []
        for _ in range(self.steps_per_iteration):
            inputs = concatenated(env.observations, self.groups).clone()
            actions = torch.distributions.Normal(self.actor(inputs), self.noise.weight[0].exp())
            drawn = actions.sample()
            _, reward, dones, extras = env.step(drawn)
            log_probs.append(actions.log_prob(drawn).sum(dim=1))
            values.append(self.critic(inputs).squeeze(1))
            # An episode that is cut off goes on, for all that the critic knows.
            rewards.append(reward + self.gamma * values[-1].detach() * extras["time_outs"])
            going_on.append(dones == 0)
        env.end_rollout()
        value = self.critic(concatenated(env.observations, self.groups)).squeeze(1).detach()
        backwards = zip(rewards[::-1], going_on[::-1], strict=True)
        returns = [value := reward + self.gamma * value * goes for reward, goes in backwards]
        advantages = torch.stack(returns[::-1]) - torch.stack(values)
        critic_loss = advantages.square().mean()
        actor_loss = -(advantages.detach() * torch.stack(log_probs)).mean()
        self.optimizer.zero_grad()
        (actor_loss + critic_loss).backward()
        for group in self.optimizer.param_groups:
            for weight in group["params"]:
                self.world.sum_(weight.grad).div_(self.world.size)
        self.optimizer.step()
        return {"surrogate": actor_loss.item(), "value": critic_loss.item()}

    def policy(self) -> InferencePolicy:
        """Return what play, evaluate and export use."""
        return InferencePolicy(self.actor, self.groups, self.inputs)


def _network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
