"""An environment that writes the names of all imported modules in each step, to a file of each process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.envs.vec_env import WarpVecEnv
from shoal.tasks import registry

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

DIRECTORY = "SHOAL_TEST_MODULES"
"""Environment variable with the directory of the files."""


class WatchedEnv(WarpVecEnv):
    """Cart-poles of MuJoCo."""

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Write the names, and step."""
        Path(os.environ[DIRECTORY], str(os.getpid())).write_text("\n".join(sys.modules), encoding="utf-8")
        return super().step(actions)


def build(*, num_envs: int, device: str, seed: int) -> WatchedEnv:
    """Build the environments."""
    spec = registry.resolve("Cartpole-Swingup-Mujoco")
    return WatchedEnv(spec.build(spec.env, num_envs=num_envs, device=device, seed=seed))
