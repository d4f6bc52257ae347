"""Curriculum state: pooled over all ranks for a checkpoint, and restored by a resume.

A checkpoint has the number of environments on each level, not the level of each environment, so it fits any number of
workers and environments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.learn.groups import World


def pool_curriculum(env: Any, world: World) -> dict[str, list[float]]:  # noqa: ANN401  Any environment of rsl_rl's.
    """Return the curriculum counts of all ranks by name. A collective if the task has a curriculum."""
    counts: Mapping[str, np.ndarray] = env.curriculum() if hasattr(env, "curriculum") else {}
    pooled: dict[str, list[float]] = {}
    for name, own in counts.items():
        total = torch.as_tensor(own, dtype=torch.float64, device=world.device)
        if world.is_distributed:
            dist.all_reduce(total)
        pooled[name] = total.tolist()
    return pooled


def restore_curriculum(env: Any, saved: Mapping[str, list[float]]) -> None:  # noqa: ANN401
    """Restore what `pool_curriculum` has returned in this rank's environments."""
    if saved and hasattr(env, "take_curriculum"):
        env.take_curriculum({name: np.array(counts) for name, counts in saved.items()})
