"""Environments whose best policy is known from a closed form, and which are learned in seconds."""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.envs.capabilities import Capabilities


class KnownOptimum(Capabilities, VecEnv):
    """Environments of numbers alone: `advance` writes rewards and ends of episodes, and `draw` begins new ones.

    `state` has shape (num_envs, n). The observation group `policy` has the columns of `observe`.
    """

    num_actions = 1
    max_episode_length = 1

    def __init__(self, num_envs: int = 64, seed: int = 0) -> None:
        """Begin an episode in every environment."""
        self.num_envs, self.device, self.cfg = num_envs, "cpu", {}
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.random = torch.randint(2**31, (num_envs,), generator=torch.Generator().manual_seed(seed))
        self.state = self.draw()

    def uniform(self) -> torch.Tensor:
        """Return random numbers between 0 and 1, which follow from the environment's row alone. Shape (num_envs, 1)."""
        # Constants of glibc's rand(), of which the high bits are good.
        self.random = (self.random * 1103515245 + 12345) % 2**31
        return (self.random.float() / 2**31).unsqueeze(1)

    def draw(self) -> torch.Tensor:
        """Return the states with which episodes begin. Shape (num_envs, n)."""
        return torch.zeros(self.num_envs, 1)

    def observe(self, state: torch.Tensor) -> torch.Tensor:
        """Return what a policy sees."""
        return torch.ones_like(state)

    def advance(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return reward and termination of a step with actions of shape (num_envs,), and write the state."""
        raise NotImplementedError

    def get_observations(self) -> TensorDict:
        """Return what is seen now."""
        return TensorDict({"policy": self.observe(self.state)}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment, and begin new episodes where one has ended."""
        reward, terminated = self.advance(actions[:, 0].detach())
        self.episode_length_buf += 1
        time_outs = (self.episode_length_buf >= self.max_episode_length) & ~terminated
        extras = {"time_outs": time_outs, "final_observation": self.get_observations()}
        done = terminated | time_outs
        self.state = torch.where(done.unsqueeze(1), self.draw(), self.state)
        self.episode_length_buf[done] = 0
        return self.get_observations(), reward, done, extras

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Begin new episodes."""
        del seed, first
        self.state = self.draw()
        self.episode_length_buf.zero_()

    def rows(self) -> dict[str, torch.Tensor]:
        """Return what GRPO repeats in each environment of a group: what the next episode is drawn from."""
        return {"random": self.random}

    def put_rows(self, rows: Any) -> None:
        """Restore such rows."""
        self.random = rows["random"].clone()


class Regulator(KnownOptimum):
    """A number is to be brought to 0 at little cost: x' = x + u / 2, and the reward is -(x² + u² / 2).

    With the discount gamma the best action is -K x, where K follows from the discrete algebraic Riccati equation. The
    observation is 50 + 10 x: without normalisation a small network learns nothing. Episodes are cut off, never ended.
    """

    max_episode_length = 8
    INFLUENCE, COST = 0.5, 0.5

    @classmethod
    def gain(cls, gamma: float) -> float:
        """Return K. Bertsekas, "Dynamic Programming and Optimal Control", vol. 1, section 3.1, with a discount."""
        value = 1.0
        for _ in range(1000):
            value = (
                1 + gamma * value - (gamma * cls.INFLUENCE * value) ** 2 / (cls.COST + gamma * cls.INFLUENCE**2 * value)
            )
        return gamma * cls.INFLUENCE * value / (cls.COST + gamma * cls.INFLUENCE**2 * value)

    @classmethod
    def cost(cls, gain: float, gamma: float) -> float:
        """Return the discounted cost of the actions -gain x from x = 1 on, a geometric series."""
        return (1 + cls.COST * gain**2) / (1 - gamma * (1 - cls.INFLUENCE * gain) ** 2)

    def draw(self) -> torch.Tensor:
        """Return numbers between -1 and 1."""
        return 2 * self.uniform() - 1

    def observe(self, state: torch.Tensor) -> torch.Tensor:
        """Return what must be normalised."""
        return 50 + 10 * state

    def advance(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Move the numbers."""
        number = self.state[:, 0]
        self.state = (number + self.INFLUENCE * action).unsqueeze(1)
        return -(number.square() + self.COST * action.square()), torch.zeros(self.num_envs, dtype=torch.bool)


class StayOrLeave(KnownOptimum):
    """With an action above 0 one leaves: it earns 1 and ends the episode. Else one stays, for 0.6, and is cut off.

    With gamma = 0.9 staying for ever is worth 6. A learner for which a cut episode has no future leaves: 1 is more than
    0.6. One for which an ended episode has a future leaves, too: 1 + 0.9 V is more than 0.6 + 0.9 V.
    """

    GAMMA = 0.9

    def advance(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pay."""
        leaves = action > 0
        return torch.where(leaves, 1.0, 0.6), leaves


class Leave(KnownOptimum):
    """After a first step that costs 10, one leaves with an action above 0 and earns 1, or stays and earns 0.05.

    With gamma = 0.9 staying for ever is worth 0.5. One for which the next episode counts stays, to put off its cost.
    """

    GAMMA, max_episode_length = 0.9, 8

    def observe(self, state: torch.Tensor) -> torch.Tensor:
        """Return whether the first step is done."""
        return state

    def advance(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Charge, or pay."""
        begins = self.state[:, 0] == 0
        leaves = ~begins & (action > 0)
        self.state = torch.ones_like(self.state)
        return torch.where(begins, -10.0, torch.where(leaves, 1.0, 0.05)), leaves


class Remember(KnownOptimum):
    """What was seen in the first step alone, -1 or 1, is half the best action of the third, which ends the episode."""

    max_episode_length = 4

    def draw(self) -> torch.Tensor:
        """Return cues, and steps since."""
        cues = (self.uniform() > 0.5).float() * 2 - 1
        return torch.cat([cues, torch.zeros_like(cues)], dim=1)

    def observe(self, state: torch.Tensor) -> torch.Tensor:
        """Return the cue in the first step, and the number of the step."""
        return torch.stack([state[:, 0] * (state[:, 1] == 0), state[:, 1]], dim=1)

    def advance(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Judge the third action."""
        cue, step = self.state.unbind(1)
        self.state = torch.stack([cue, step + 1], dim=1)
        return torch.where(step == 2, -(action - cue / 2).square(), 0.0), step == 2
