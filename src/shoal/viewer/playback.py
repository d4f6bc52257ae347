"""Playback of a policy in real time: step all environments, and keep rewards and returns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from shoal.envs.capabilities import capabilities_of
from shoal.envs.vec_env import VecEnv
from shoal.learn.evaluation import Policy
from shoal.sim.render.marks import Mark

FRAME_S = 1 / 60
"""Period of the viewer's loop [s]."""
PUSH = 1.0
"""Change of velocity by a push [m/s]; where nothing moves freely, of all joints together [m/s, rad/s]."""
MAX_CATCH_UP_S = 0.1
"""Most time that is caught up at once [s]; a slow machine drops the rest."""


class Pacer:
    """Keeps simulated time, of `step_dt` a step [s], in step with the clock, at an adjustable speed."""

    def __init__(self, step_dt: float) -> None:
        self.speed = 1.0
        """Real-time factor: simulated seconds in a second."""
        self.paused = False
        self._step_dt = step_dt
        self._last: float | None = None
        self._pending_s = 0.0

    def due(self, now: float) -> int:
        """Return how many steps are due at the time `now` of a monotonic clock [s]."""
        passed = min(now - self._last, MAX_CATCH_UP_S) if self._last is not None else 0.0
        self._last = now
        if self.paused:
            self._pending_s = 0.0
            return 0
        self._pending_s += passed * self.speed
        # Sums of times are slightly off; a step that is due must not wait for the next call.
        steps = int(self._pending_s / self._step_dt + 1e-6)
        self._pending_s -= steps * self._step_dt
        return steps


@dataclass(frozen=True, slots=True)
class EnvStatus:
    """Rewards and commands of one environment."""

    reward: float
    """Reward of the last step."""
    length: int
    """Steps of the running episode."""
    episode_return: float
    """Return of the running episode so far."""
    last_return: float | None
    """Return of the previous episode; None in the first one."""
    commands: list[float]


class Playback:
    """Environments with a policy that steps them."""

    def __init__(self, env: VecEnv, policy: Policy) -> None:
        self.env = env
        self.policy = policy
        self.picture = capabilities_of(env).picture()
        self.commands, self._commands = capabilities_of(env).commands()
        self._positions, self._read = self.picture.tensors()
        scene, self._velocities = self.picture.scene, capabilities_of(env).rows().get("data/qvel")
        """Live joint velocities, (num_envs, nv). None of tasks that MuJoCo does not simulate."""
        free = scene.jnt_dofadr[scene.jnt_type == 0]
        self._pushed = np.concatenate([free, free + 1]) if len(free) else np.arange(scene.nv)
        """Columns that a push changes: of what moves freely the horizontal ones."""
        self._observations = env.get_observations()
        self._rewards = torch.zeros(env.num_envs, device=env.device)
        self._returns = torch.zeros(env.num_envs, device=env.device)
        self._last_returns = torch.full_like(self._returns, torch.nan)

    def step(self, commands: Sequence[float] | None = None) -> None:
        """Step all environments once with the policy's actions. Without `commands` the task sets them."""
        with torch.inference_mode():
            if self._commands is not None:
                capabilities_of(self.env).hold_commands(held=commands is not None)
            if commands is not None and self._commands is not None:
                self._commands[:] = torch.tensor(commands, device=self._commands.device)
            self._observations, self._rewards, dones, _ = self.env.step(self.policy(self._observations))
            dones = dones.bool()
            self.policy.reset(dones)
            self._returns += self._rewards
            self._last_returns = torch.where(dones, self._returns, self._last_returns)
            self._returns.masked_fill_(dones, 0.0)

    @property
    def can_push(self) -> bool:
        """Whether `push` has an effect."""
        return self._velocities is not None

    def push(self) -> None:
        """Push each environment in a random direction."""
        if self._velocities is not None:
            drawn = torch.randn(self.env.num_envs, len(self._pushed))
            change = PUSH * drawn / drawn.norm(dim=1, keepdim=True)
            with torch.inference_mode():
                self._velocities[:, self._pushed] += change.to(self._velocities.device)

    def restart(self) -> None:
        """Begin a new episode in every environment, and clear all returns."""
        with torch.inference_mode():
            capabilities_of(self.env).restart()
            self._observations = self.env.get_observations()
            self.policy.reset(torch.ones(self.env.num_envs, dtype=torch.bool, device=self.env.device))
            self._rewards = torch.zeros_like(self._returns)
            self._returns.zero_()
            self._last_returns.fill_(torch.nan)

    def positions(self) -> np.ndarray:
        """Return the joint positions of all environments. Shape (num_envs, nq)."""
        return self._positions.cpu().numpy()

    def marks(self) -> list[list[Mark]]:
        """Return the marks of each environment."""
        read = {name: tensor.cpu().numpy() for name, tensor in self._read.items()}
        rows = ({name: values[env] for name, values in read.items()} for env in range(self.env.num_envs))
        return [self.picture.marks(row) for row in rows]

    def status(self, env: int) -> EnvStatus:
        """Return the status of one environment. Synchronises with the device."""
        last = float(self._last_returns[env])
        return EnvStatus(
            reward=float(self._rewards[env]),
            length=int(self.env.episode_length_buf[env]),
            episode_return=float(self._returns[env]),
            last_return=None if last != last else last,  # noqa: PLR0124  NaN is no return yet.
            commands=[] if self._commands is None else self._commands[env].tolist(),
        )
