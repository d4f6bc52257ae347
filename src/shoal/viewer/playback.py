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
HISTORY_S = 10.0
"""Simulated time whose rewards and metrics are kept [s]."""
_MOST_STEPS = 500
"""Most steps of it: more are not seen in a plot."""


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


class History:
    """Named values of every environment in the last steps. They stay on the device until they are read."""

    def __init__(self, names: Sequence[str], *, steps: int, env: VecEnv) -> None:
        self.names = names
        self._rows = torch.zeros(steps, env.num_envs, len(names), device=env.device)
        self._count = 0

    def add(self, values: Sequence[torch.Tensor]) -> None:
        """Add the values of a step, in the order of the names. Shapes (num_envs,)."""
        if values:
            self._rows[self._count % len(self._rows)] = torch.stack([*values], dim=1)
            self._count += 1

    def clear(self) -> None:
        """Forget all steps."""
        self._count = 0

    def of(self, env: int) -> np.ndarray:
        """Return the values of one environment, the oldest step first. Shape (steps, number of names)."""
        rows = np.roll(self._rows[:, env].cpu().numpy(), -self._count, axis=0)
        return rows[max(0, len(rows) - self._count) :]


class Playback:
    """Environments with a policy that steps them."""

    def __init__(self, env: VecEnv, policy: Policy) -> None:
        self.env = env
        self.policy = policy
        self.picture = capabilities_of(env).picture()
        self.commands, self._commands = capabilities_of(env).commands()
        self._positions, self._read = self.picture.tensors()
        self._state = self.picture.state()
        self.has_scan = bool(self.picture.scan(self._rows()[0]))
        """Whether sensors look anywhere."""
        scene, self._velocities = self.picture.scene, capabilities_of(env).rows().get("data/qvel")
        """Live joint velocities, (num_envs, nv). None of tasks that MuJoCo does not simulate."""
        free = scene.jnt_dofadr[scene.jnt_type == 0]
        pushed = np.concatenate([free, free + 1]) if len(free) else np.arange(scene.nv)
        self._pushed = torch.as_tensor(pushed, dtype=torch.long, device=env.device)
        """Columns that a push changes: of what moves freely the horizontal ones."""
        self._observations = env.get_observations()
        self._rewards = torch.zeros(env.num_envs, device=env.device)
        self._returns = torch.zeros(env.num_envs, device=env.device)
        self._last_returns = torch.full_like(self._returns, torch.nan)
        steps = min(_MOST_STEPS, max(2, round(HISTORY_S / self.picture.step_dt)))
        self.rewards = History(["Reward", *capabilities_of(env).term_rewards()], steps=steps, env=env)
        """The reward of each step, and what each term added to it."""
        self.metrics = History(capabilities_of(env).metrics, steps=steps, env=env)

    def step(self, commands: Sequence[float] | None = None) -> None:
        """Step all environments once with the policy's actions. Without `commands` the task sets them."""
        with torch.inference_mode():
            if self._commands is not None:
                capabilities_of(self.env).hold_commands(held=commands is not None)
            if commands is not None and self._commands is not None:
                self._commands[:] = torch.tensor(commands, device=self._commands.device)
            self._observations, self._rewards, dones, extras = self.env.step(self.policy(self._observations))
            dones = dones.bool()
            self.policy.reset(dones)
            self._returns += self._rewards
            self._last_returns = torch.where(dones, self._returns, self._last_returns)
            self._returns.masked_fill_(dones, 0.0)
            self.rewards.add([self._rewards, *capabilities_of(self.env).term_rewards().values()])
            self.metrics.add([extras["log"][f"Metrics/{name}"] for name in self.metrics.names])

    @property
    def can_push(self) -> bool:
        """Whether `push` has an effect."""
        return self._velocities is not None

    def push(self) -> None:
        """Push each environment in a random direction."""
        if self._velocities is not None:
            with torch.inference_mode():
                drawn = torch.randn(self.env.num_envs, len(self._pushed), device=self._pushed.device)
                self._velocities.index_add_(1, self._pushed, PUSH * drawn / drawn.norm(dim=1, keepdim=True))

    def restart(self, seed: int | None = None) -> None:
        """Begin a new episode in every environment, and clear all returns. The same seed begins the same episodes."""
        if seed is not None:
            torch.manual_seed(seed)  # Of a random policy.
        with torch.inference_mode():
            capabilities_of(self.env).restart(seed)
            self._observations = self.env.get_observations()
            self.policy.reset(torch.ones(self.env.num_envs, dtype=torch.bool, device=self.env.device))
            self._rewards = torch.zeros_like(self._returns)
            self._returns.zero_()
            self._last_returns.fill_(torch.nan)
            self.rewards.clear()
            self.metrics.clear()

    def positions(self) -> np.ndarray:
        """Return the joint positions of all environments. Shape (num_envs, nq)."""
        return self._positions.cpu().numpy()

    def images(self, env: int) -> dict[str, np.ndarray]:
        """Return the images that the policy observes of one environment, as bytes of shape (rows, columns, 3)."""
        return {name: each.drawn(each.live[env].cpu().numpy()) for name, each in self.picture.images.items()}

    def state(self) -> dict[str, np.ndarray]:
        """Return the further state of all environments, from which forces follow, see `Picture.state`."""
        return {name: tensor.cpu().numpy() for name, tensor in self._state.items()}

    def marks(self, scan: int | None = None) -> list[list[Mark]]:
        """Return the marks of each environment, and where the sensors of environment `scan` look."""
        rows = self._rows()
        marks = [self.picture.marks(row) for row in rows]
        if scan is not None:
            marks[scan] += self.picture.scan(rows[scan])
        return marks

    def _rows(self) -> list[dict[str, np.ndarray]]:
        read = {name: tensor.cpu().numpy() for name, tensor in self._read.items()}
        return [{name: values[env] for name, values in read.items()} for env in range(self.env.num_envs)]

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
