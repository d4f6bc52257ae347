"""A vectorised environment without a simulator: small enough to build and step in milliseconds.

It has everything that rsl_rl reads from an environment, so that whatever a learner is told to use finds it.
"""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict


class TinyEnv(VecEnv):
    """Points on a line: an action's first entry is a velocity, the reward is near the middle.

    Observation groups, all on `device`:

    - `policy`      ``(num_envs, 3)``        position, velocity, and the age of the episode in [0, 1]
    - `privileged`  ``(num_envs, 5)``        the above and the last action
    """

    def __init__(
        self,
        *,
        num_envs: int = 4,
        device: str = "cpu",
        seed: int = 0,
        max_episode_length: int = 10,
    ) -> None:
        """Place all points by the seed."""
        self.num_envs = num_envs
        self.num_actions = 2
        self.max_episode_length = max_episode_length
        self.device = device
        self.cfg = {}
        self.step_dt = 0.02
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self._random = torch.Generator().manual_seed(seed)
        self._position = self._draw(num_envs)
        self._action = torch.zeros(num_envs, self.num_actions, device=device)

    @property
    def unwrapped(self) -> TinyEnv:
        """This environment; rsl_rl's RND asks it for `step_dt`."""
        return self

    def get_observations(self) -> TensorDict:
        """Return what is seen now."""
        age = self.episode_length_buf / self.max_episode_length
        policy = torch.stack((self._position, self._action[:, 0], age), dim=-1)
        groups = {"policy": policy, "privileged": torch.cat((policy, self._action), dim=-1)}
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Move all points; those that leave the line fail, those whose time is up are cut off."""
        self._action = actions.clone()
        self._position += self.step_dt * actions[:, 0]
        self.episode_length_buf += 1
        reward = 1.0 - self._position.abs()
        failed = self._position.abs() > 1.0
        time_outs = (self.episode_length_buf >= self.max_episode_length) & ~failed
        done = failed | time_outs
        self._position = torch.where(done, self._draw(self.num_envs), self._position)
        self.episode_length_buf[done] = 0
        extras = {"time_outs": time_outs, "log": {"/position": self._position.abs().mean()}}
        return self.get_observations(), reward, done, extras

    def _draw(self, count: int) -> torch.Tensor:
        return torch.rand(count, generator=self._random).to(self.device) - 0.5


def mirror(
    env: TinyEnv, obs: TensorDict | None, actions: torch.Tensor | None
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """Mirror the line: what rsl_rl's symmetry asks for, the originals first."""
    del env
    if obs is not None:
        flip = {name: -value if name != "camera" else value.flip(-1) for name, value in obs.items()}
        obs = torch.cat((obs, TensorDict(flip, batch_size=obs.batch_size, device=obs.device)))  # type: ignore[arg-type]
    if actions is not None:
        actions = torch.cat((actions, -actions))
    return obs, actions
