"""Environments of MuJoCo Playground as rsl_rl's `VecEnv`: stepped by JAX, with tensors that share its memory."""

# pyright: reportMissingImports=false
# MuJoCo Playground is not installed where types are checked.

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from shoal.envs.capabilities import Capabilities
from shoal.envs.playground_spec import PlaygroundConfig, changed_config, import_playground
from shoal.errors import UsageError
from shoal.files import folder_of
from shoal.machine.host import kernel_cache
from shoal.sim.engines.mjwarp_engine import SOLVER_LIMITS
from shoal.sim.render.rows import Picture

_PLAYGROUND = import_playground()

import jax  # noqa: E402  After what it reads of the environment is set.
from brax.envs.wrappers.training import EpisodeWrapper, VmapWrapper  # noqa: E402
from mujoco_playground import wrapper  # noqa: E402

_LAST = "last_observation"
"""Where the state has the observations of each step, of episodes that ended, too."""


class PlaygroundEnv(Capabilities, VecEnv):
    """Environments of MuJoCo Playground, wrapped as for Playground's own trainers.

    The group `policy` is Playground's observation `state`, or the only one; `critic` is `privileged_state`, if there is
    one, and else the same. Actions are clipped to -1 and 1.
    """

    can_restart = True

    def __init__(self, config: PlaygroundConfig, *, num_envs: int, device: str, seed: int) -> None:
        """Compile `reset` and `step`, and begin episodes."""
        settings = changed_config(config)
        self.cfg, self.num_envs, self.device = config, num_envs, device
        self._drawn: torch.Tensor | None = None
        self._jax_device = _jax_device(device)
        # Of the whole process: what is compiled within a context is compiled again outside of it.
        jax.config.update("jax_default_device", self._jax_device)
        cache = kernel_cache(os.environ)
        with folder_of(cache / "models").locked(cache):  # The first load of all downloads models, for every rank.
            self._env = _PLAYGROUND.registry.load(config.env_name, config=settings)
        _print_no_solver_limits(self._env)
        self._wrap(config, seed, settings)
        self.num_actions = self._env.action_size
        self.max_episode_length = -(-settings.episode_length // settings.action_repeat)
        self._repeat = settings.action_repeat
        self.restart(seed)
        self.metrics = tuple(sorted(self._state.metrics))
        self.step(torch.zeros(num_envs, self.num_actions, device=device))
        self.restart(seed)

    def _wrap(self, config: PlaygroundConfig, seed: int, settings: Any) -> None:  # noqa: ANN401  A ConfigDict.
        """Make the compiled functions of a batch of environments."""
        draw = _PLAYGROUND.registry.get_domain_randomizer(config.env_name) if config.randomize else None
        if draw is None:
            batch = VmapWrapper(self._env)
        else:
            keys = jax.random.split(jax.random.PRNGKey(seed), self.num_envs)
            batch = wrapper.BraxDomainRandomizationVmapWrapper(self._env, lambda model: draw(model, rng=keys))
        episodes = EpisodeWrapper(batch, settings.episode_length, settings.action_repeat)
        last = _KeepsLast(episodes)
        wrapped = wrapper.BraxAutoResetWrapper(last, full_reset=config.full_reset)
        self._reset_fn, self._step_fn = jax.jit(wrapped.reset), jax.jit(wrapped.step)

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Steps since each episode began. Shape (num_envs,)."""
        steps = torch.where(_tensor(self._state.done) > 0, 0, _tensor(self._state.info["steps"]))
        return (steps / self._repeat).to(torch.int64)

    @episode_length_buf.setter
    def episode_length_buf(self, lengths: torch.Tensor) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Let each episode end as if it had begun so many steps ago."""
        steps = lengths.to(self.device, torch.float32) * self._repeat
        self._state.info["steps"] = jax.dlpack.from_dlpack(steps.contiguous())

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Begin a new episode everywhere. With a seed, each follows from it and its index, counted from `first`."""
        if seed is not None:
            self._key = jax.random.PRNGKey(seed)
        else:
            self._key, _ = jax.random.split(self._key)
        indices = jax.numpy.arange(first, first + self.num_envs)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(self._key, indices)
        # Put on a device, as actions are: what was not would be compiled for separately.
        self._advance(self._reset_fn(jax.device_put(keys, self._jax_device)))

    def keep_final_observations(self) -> None:
        """Do nothing: `step` always gives ``extras["final_observation"]``."""

    def get_observations(self) -> TensorDict:
        """Return the observations of the last step or reset."""
        return TensorDict(_groups(self._state.obs), batch_size=[self.num_envs], device=self.device)

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment by one action, shape (num_envs, num_actions)."""
        clipped = jax.dlpack.from_dlpack(actions.detach().clamp(-1, 1).contiguous())
        self._advance(self._step_fn(self._state, clipped))
        extras = {
            "time_outs": _tensor(self._state.info["truncation"]) > 0,
            "final_observation": _groups(self._state.info[_LAST]),
            "log": {f"Metrics/{name}": _tensor(self._state.metrics[name]) for name in self.metrics},
        }
        return self.get_observations(), _tensor(self._state.reward), _tensor(self._state.done) > 0, extras

    def picture(self) -> Picture:
        """Return what videos and viewers draw."""
        if self._drawn is None:
            self._drawn = _tensor(self._state.data.qpos).clone()
        return Picture(self._env.mj_model, self._drawn, self._env.dt)

    def _advance(self, state: Any) -> None:  # noqa: ANN401  Playground's State.
        """Take the state of the last step or reset, and show it."""
        self._state = state
        if self._drawn is not None:
            self._drawn.copy_(_tensor(self._state.data.qpos))


class _KeepsLast(wrapper.Wrapper):
    """Keeps the observations of each step, those of a new episode aside."""

    def reset(self, rng: jax.Array) -> Any:  # noqa: ANN401  Playground's State.
        state = self.env.reset(rng)
        state.info[_LAST] = state.obs
        return state

    def step(self, state: Any, action: jax.Array) -> Any:  # noqa: ANN401
        state = self.env.step(state, action)
        state.info[_LAST] = state.obs
        return state


def _print_no_solver_limits(env: Any) -> None:  # noqa: ANN401  Playground's MjxEnv.
    """Let MuJoCo Warp print nothing where the solver stops at its limits of iterations, as in most steps."""
    model = env.mjx_model
    kinds = getattr(model.opt._impl, "warn_overflow", None)  # noqa: SLF001  Of the implementation `warp` alone.
    if kinds is not None:
        quiet = model.tree_replace({"opt._impl.warn_overflow": kinds & ~int(SOLVER_LIMITS)})
        env._mjx_model = quiet  # noqa: SLF001  Where Playground's own wrappers put another one.


def _jax_device(device: str) -> Any:  # noqa: ANN401  A jax.Device.
    """Return JAX's name of a device of torch."""
    kind, _, index = device.partition(":")
    try:
        return jax.local_devices(backend="gpu" if kind == "cuda" else "cpu")[int(index or 0)]
    except RuntimeError as error:
        raise UsageError(
            f"JAX, which steps MuJoCo Playground, finds no GPU ({error}): run `uv pip install 'jax[cuda12]'`, or pass "
            "--gpu-ids None."
        ) from error


def _groups(observation: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401  An array, or a mapping of them.
    """Return the groups of an observation of Playground."""
    groups = observation if isinstance(observation, Mapping) else {"state": observation}
    policy = _tensor(groups["state"])
    return {"policy": policy, "critic": _tensor(groups["privileged_state"]) if "privileged_state" in groups else policy}


def _tensor(array: jax.Array) -> torch.Tensor:
    """Return a tensor in the array's memory, which JAX does not write again."""
    return torch.from_dlpack(array)
