"""Environments of mjlab as rsl_rl's `VecEnv`, by mjlab's own wrapper, with what Shoal shows and saves of them."""

# pyright: reportMissingImports=false
# mjlab is not installed where types are checked.

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import torch
from mjlab.envs import ManagerBasedRlEnv
from mjlab.rl import RslRlVecEnvWrapper
from mjlab.rl.exporter_utils import get_base_metadata
from tensordict import TensorDict

from shoal.envs.capabilities import Capabilities
from shoal.envs.mjlab_spec import MjlabConfig, load_env_cfg
from shoal.seeds import derived_seed
from shoal.sim.engines.mjwarp_engine import SOLVER_LIMITS
from shoal.sim.render.rows import Picture


class MjlabEnv(Capabilities, RslRlVecEnvWrapper):
    """A task of mjlab."""

    can_restart = True

    def __init__(self, config: MjlabConfig, *, num_envs: int, device: str, seed: int) -> None:
        """Build the task's scene and managers."""
        cfg = load_env_cfg(config)
        cfg.scene.num_envs, cfg.seed = num_envs, seed
        _print_no_solver_limits(cfg.sim)
        with redirect_stdout(io.StringIO()):  # Tables of all managers.
            wrapped = ManagerBasedRlEnv(cfg, device=device)
            RslRlVecEnvWrapper.__init__(self, wrapped, clip_actions=config.clip_actions)

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Advance every environment by one action, as mjlab's wrapper does.

        What mjlab logs are means, and numbers of terminations, over the environments whose episode ended in this step:
        ``extras["log_weight"]`` is their number, and terminations become parts of it.
        """
        observations, rewards, dones, extras = super().step(actions)
        ended = dones.sum()
        log = {
            name: value / ended if name.startswith("Episode_Termination/") else value
            for name, value in extras.get("log", {}).items()
        }
        return observations, rewards, dones, {**extras, "log": log, "log_weight": ended}

    def restart(self, seed: int | None = None, first: int = 0) -> None:
        """Begin a new episode in every environment. mjlab draws all from one stream, that of `seed` and `first`."""
        with redirect_stdout(io.StringIO()):
            self.unwrapped.reset(seed=None if seed is None else derived_seed(seed, first))

    def curriculum(self) -> dict[str, np.ndarray]:
        """Return the steps of each environment, which mjlab's curricula count: their sum, and the number of ranks."""
        return {"common_step_counter": np.array([self.unwrapped.common_step_counter, 1])}

    def set_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Restore the steps of each environment."""
        steps, ranks = counts["common_step_counter"]
        self.unwrapped.common_step_counter = round(steps / ranks)

    def picture(self) -> Picture:
        """Return the scene of one environment, terrain included; mjlab draws its commands in its own viewer alone."""
        sim = self.unwrapped.sim
        arrays = {f"data/{name}": getattr(sim.wp_data, name) for name in ("qvel", "act", "ctrl")}
        return Picture(sim.mj_model, sim.wp_data.qpos, self.unwrapped.step_dt, arrays)

    def term_rewards(self) -> dict[str, torch.Tensor]:
        """Return what each reward term added to the reward of the last step, by name. Shapes (num_envs,)."""
        manager = self.unwrapped.reward_manager
        added = manager._step_reward * self.unwrapped.step_dt  # noqa: SLF001  Public ones copy from the device.
        return dict(zip(manager.active_terms, added.unbind(dim=1), strict=True))

    def deployment(self) -> dict[str, Any]:
        """Return mjlab's metadata of a policy whose actions are joint positions, and the control period [s]."""
        terms = self.unwrapped.action_manager.active_terms
        metadata = get_base_metadata(self.unwrapped, "") if terms == ["joint_pos"] else {}
        return {"control_period_s": self.unwrapped.step_dt, **{name: _plain(value) for name, value in metadata.items()}}


def _print_no_solver_limits(sim: Any) -> None:  # noqa: ANN401  mjlab's SimulationCfg.
    """Let MuJoCo Warp print nothing where the solver stops at its limits of iterations, as in most steps of mjlab."""
    apply = sim.apply_wp_opt

    def quietly(options: Any) -> None:  # noqa: ANN401  MuJoCo Warp's Option.
        apply(options)
        options.warn_overflow &= ~SOLVER_LIMITS

    sim.apply_wp_opt = quietly


def _plain(value: Any) -> Any:  # noqa: ANN401  Any metadata.
    """Return metadata in lists, with None for what is not finite."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
