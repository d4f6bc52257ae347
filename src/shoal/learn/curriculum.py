"""Curriculum state: pooled over all ranks for a checkpoint, and restored by a resume.

A checkpoint has the number of environments on each level, not the level of each environment, so it fits any number of
workers and environments.
"""

from collections.abc import Mapping

import numpy as np
import torch

from shoal.envs.capabilities import Capabilities
from shoal.learn.groups import World


def pool_curriculum(env: Capabilities, world: World) -> dict[str, list[float]]:
    """Return what the curricula of all ranks have come to: counts by name. A collective where a task has any."""
    return {
        name: world.sum_(torch.as_tensor(own, dtype=torch.float64, device=world.device)).tolist()
        for name, own in env.curriculum().items()
    }


def restore_curriculum(env: Capabilities, saved: Mapping[str, list[float]]) -> None:
    """Hand what `pool_curriculum` has returned to this rank's environments."""
    if saved:
        env.set_curriculum({name: np.array(counts) for name, counts in saved.items()})
