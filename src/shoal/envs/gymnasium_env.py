"""Environments of Gymnasium as rsl_rl's `VecEnv`: numpy arrays on the CPU, copied to the device of the learner."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker
from gymnasium.wrappers import FlattenObservation
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.envs.capabilities import Capabilities
from shoal.envs.gymnasium_spec import GymConfig, is_image

_UNLIMITED = 1000
"""Steps of an episode that are evaluated of an environment without a limit."""


class GymEnv(Capabilities, VecEnv):
    """A vector environment of Gymnasium. Observations are flattened into one group, `policy`, except for an image.

    An image has its channels first, and bytes become numbers from 0 to 1.

    Actions of a bounded `Box` are scaled: -1 and 1 are its ends, and beyond them they are clipped; those of another one
    are passed on. They are rounded where the `Box` has integers. Of a `Discrete` space there is a column for each
    action, and the largest counts; of a `MultiDiscrete` one, the columns of its parts follow each other. Of a
    `MultiBinary` one, columns above 0 are 1.
    """

    can_restart = True

    def __init__(self, config: GymConfig, *, num_envs: int, device: str, seed: int) -> None:
        settings: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}
        if config.vectorization == "async":
            settings["worker"] = _quiet_worker
        self._envs: Any = gymnasium.make_vec(
            config.env_id,
            num_envs,
            config.vectorization,
            settings,
            [_flattened],
            max_episode_steps=config.max_episode_steps,
        )
        self.cfg, self.num_envs, self.device = config, num_envs, device
        seen = self._envs.single_observation_space
        self._is_last = is_image(seen) and seen.shape[2] < seen.shape[0]
        self._white = 255 if is_image(seen) and seen.dtype == np.uint8 else 1
        self.num_actions, self._to_action = _actions_of(self._envs.single_action_space)
        spec = self._envs.spec
        self.max_episode_length = config.max_episode_steps or (spec and spec.max_episode_steps) or _UNLIMITED
        self._final: torch.Tensor | None = None
        self.restart(seed)

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Steps since each episode began. Shape (num_envs,)."""
        return self._lengths

    @episode_length_buf.setter
    def episode_length_buf(self, lengths: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Do nothing: Gymnasium counts the steps itself."""

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Begin a new episode everywhere. With a seed, each follows from it and its index, counted from `first`."""
        each = (np.random.SeedSequence([seed or 0, first + index]) for index in range(self.num_envs))
        seeds = None if seed is None else [int(sequence.generate_state(1)[0]) for sequence in each]
        self._policy = self._observed(self._envs.reset(seed=seeds)[0])
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)

    def keep_final_observations(self) -> None:
        """Give ``extras["final_observation"]`` from now on."""
        self._final = self._policy.clone()

    def get_observations(self) -> TensorDict:
        """Return the observations of the last step or reset."""
        return TensorDict({"policy": self._policy}, batch_size=[self.num_envs], device=self.device)

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment by one action, shape (num_envs, num_actions)."""
        taken = self._to_action(actions.detach().cpu().numpy())
        observations, rewards, terminated, truncated, infos = self._envs.step(taken)
        self._policy = self._observed(observations)
        dones = torch.from_numpy(terminated | truncated).to(self.device)
        extras: dict[str, Any] = {"time_outs": torch.from_numpy(truncated & ~terminated).to(self.device)}
        if self._final is not None and "final_obs" in infos:
            ended = infos["_final_obs"]
            self._final = self._final.clone()
            self._final[torch.from_numpy(ended)] = self._observed(np.stack(infos["final_obs"][ended]))
        if self._final is not None:
            extras["final_observation"] = {"policy": self._final}
        self._lengths = torch.where(dones, 0, self._lengths + 1)
        return self.get_observations(), self._tensor(rewards), dones, extras

    def _observed(self, values: np.ndarray) -> torch.Tensor:
        """Return observations. Shape (num_envs, columns), of images (num_envs, channels, height, width)."""
        return self._tensor(np.moveaxis(values, 3, 1) if self._is_last else values) / self._white

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        """Return a copy on the device, in 32 bits: Gymnasium may write its arrays again."""
        return torch.tensor(values, dtype=torch.float32, device=self.device)


def _flattened(env: Any) -> Any:  # noqa: ANN401  An environment of Gymnasium.
    return env if is_image(env.observation_space) else FlattenObservation(env)


def _quiet_worker(*arguments: Any) -> None:  # noqa: ANN401  What Gymnasium hands to a process of one environment.
    """Run Gymnasium's loop of a process. Signals are the parent's, and without it the process ends without a word."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(BrokenPipeError, ConnectionResetError):
        _async_worker(*arguments)


def _actions_of(space: gymnasium.Space[Any]) -> tuple[int, Any]:
    """Return the number of columns for a space of actions, and a function from them to actions."""
    if isinstance(space, spaces.Discrete):
        return int(space.n), lambda columns: space.start + columns.argmax(axis=1)
    if isinstance(space, spaces.MultiDiscrete):
        parts = np.cumsum(space.nvec)[:-1]

        def largest(columns: np.ndarray) -> np.ndarray:
            chosen = [part.argmax(axis=1) for part in np.split(columns, parts, axis=1)]
            return space.start + np.stack(chosen, axis=1).reshape(-1, *space.shape)

        return int(space.nvec.sum()), largest
    if isinstance(space, spaces.MultiBinary):
        return int(np.prod(space.shape)), lambda columns: (columns > 0).astype(space.dtype).reshape(-1, *space.shape)
    if not isinstance(space, spaces.Box):
        raise TypeError(space)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    bounded = space.bounded_below & space.bounded_above

    def scaled(columns: np.ndarray) -> np.ndarray:
        plain = columns.reshape(-1, *space.shape)
        with np.errstate(invalid="ignore"):
            inside = low + (plain.clip(-1, 1) + 1) / 2 * (high - low)
        actions = np.where(bounded, inside, plain.clip(low, high))
        return (actions if np.issubdtype(space.dtype, np.floating) else np.rint(actions)).astype(space.dtype)

    return int(np.prod(space.shape)), scaled
