"""PPO (Schulman et al., arXiv:1707.06347) in one file, on the environments of `shoal.make`.

python docs/examples/ppo.py Cartpole-Swingup
"""

import argparse
import sys

import torch
from torch import nn
from torch.distributions import Normal

import shoal

STEPS = 64
"""Steps of each environment in one iteration."""
EPOCHS, MINI_BATCHES = 5, 8
GAMMA, LAMBDA = 0.99, 0.97
CLIP, ENTROPY, VALUE, LARGEST_GRADIENT = 0.2, 0.005, 1.0, 1.0


class Agent(nn.Module):
    """Two networks of two layers: means of normally distributed actions, and the value of the state."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = network(inputs, actions), network(inputs, 1)
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(self, seen: torch.Tensor) -> tuple[Normal, torch.Tensor]:
        """Return the distribution of actions, and values of shape (rows,)."""
        return Normal(self.actor(seen), self.log_std.exp(), validate_args=False), self.critic(seen).squeeze(-1)


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Return a perceptron."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, outputs))


def train(task: str, iterations: int, num_envs: int | None = None, device: str | None = None, seed: int = 1) -> float:
    """Train a policy, print the mean return of the episodes that ended, and return the last one."""
    env = shoal.make(task, num_envs, device, seed=seed)
    seen = env.get_observations()["policy"]
    agent = Agent(seen.shape[1], env.num_actions).to(env.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    earned, returns, mean = torch.zeros(env.num_envs, device=env.device), [], float("nan")
    for iteration in range(1, iterations + 1):
        rollout: dict[str, list[torch.Tensor]] = {
            name: [] for name in ("seen", "action", "log_prob", "value", "reward", "goes_on")
        }
        for _ in range(STEPS):
            with torch.no_grad():
                distribution, value = agent(seen)
                action = distribution.sample()
            observations, reward, dones, extras = env.step(action)
            # An episode whose time was up would have gone on: the critic says what it would have earned.
            step = {
                "seen": seen,
                "action": action,
                "log_prob": distribution.log_prob(action).sum(dim=-1),
                "value": value,
                "reward": reward + GAMMA * value * extras["time_outs"],
                "goes_on": (dones == 0).float(),
            }
            for name, each in step.items():
                rollout[name].append(each)
            earned += reward
            returns += earned[dones > 0].tolist()
            earned[dones > 0] = 0.0
            seen = observations["policy"].clone()  # The environments write their own again two steps later.
        with torch.no_grad():
            last = agent(seen)[1]
        update(agent, optimizer, {name: torch.stack(each) for name, each in rollout.items()}, last)
        if returns:
            mean = sum(returns) / len(returns)
            sys.stdout.write(f"[{iteration}/{iterations}] mean return {mean:.2f} of {len(returns)} episodes\n")
            returns = []
    return mean


def advantages_of(rollout: dict[str, torch.Tensor], last: torch.Tensor) -> torch.Tensor:
    """Return generalised advantages (Schulman et al., arXiv:1506.02438). Shape (steps, num_envs)."""
    after = torch.cat([rollout["value"][1:], last.unsqueeze(0)])
    errors = rollout["reward"] + GAMMA * rollout["goes_on"] * after - rollout["value"]
    found, advantage = torch.zeros_like(errors), torch.zeros_like(last)
    for step in reversed(range(len(errors))):
        advantage = errors[step] + GAMMA * LAMBDA * rollout["goes_on"][step] * advantage
        found[step] = advantage
    return found


def update(
    agent: Agent, optimizer: torch.optim.Optimizer, rollout: dict[str, torch.Tensor], last: torch.Tensor
) -> None:
    """Improve the networks by some epochs over a rollout. Shapes (steps, num_envs, ...)."""
    advantages = advantages_of(rollout, last)
    targets = (advantages + rollout["value"]).flatten()
    advantages = ((advantages - advantages.mean()) / (advantages.std() + 1e-8)).flatten()
    seen, action, log_prob = (rollout[name].flatten(0, 1) for name in ("seen", "action", "log_prob"))
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(seen), device=seen.device).chunk(MINI_BATCHES):
            distribution, value = agent(seen[rows])
            ratio = (distribution.log_prob(action[rows]).sum(dim=-1) - log_prob[rows]).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            gain = torch.minimum(ratio * advantages[rows], clipped * advantages[rows]).mean()
            loss = VALUE * (value - targets[rows]).square().mean() - gain
            loss -= ENTROPY * distribution.entropy().sum(dim=-1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), LARGEST_GRADIENT)
            optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", default="Cartpole-Swingup")
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--num-envs", type=int)
    parser.add_argument("--device")
    options = parser.parse_args()
    train(options.task, options.iterations, options.num_envs, options.device)
