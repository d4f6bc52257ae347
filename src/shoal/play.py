"""The story of playing a policy: find its checkpoint, build its environments, run episodes, count."""

from __future__ import annotations

import os
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.plan.devices import parse_gpu_ids, plan_workers, visible_gpus
from shoal.plan.training import find_model
from shoal.tasks import registry

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.config import PlayConfig


@dataclass(frozen=True, slots=True)
class Episodes:
    """Returns and lengths of a policy's episodes."""

    task: str
    checkpoint: Path
    returns: list[float]
    lengths: list[int]
    """Length of each episode [environment steps]."""

    def summary(self) -> dict[str, float | str | int]:
        """Return means, standard deviations and extremes."""
        return {
            "task": self.task,
            "checkpoint": str(self.checkpoint),
            "episodes": len(self.returns),
            "return_mean": fmean(self.returns),
            "return_std": pstdev(self.returns),
            "return_min": min(self.returns),
            "return_max": max(self.returns),
            "length_mean": fmean(self.lengths),
            "length_std": pstdev(self.lengths),
        }


def play(config: PlayConfig) -> Episodes:
    """Run episodes of a trained policy without exploration noise.

    Raises:
        UsageError: There is no such policy, or it cannot be run here.
    """
    spec = registry.resolve(config.task)
    gpu_ids = "auto" if config.gpu_ids == ("auto",) else parse_gpu_ids(config.gpu_ids)
    if gpu_ids == "all" or (isinstance(gpu_ids, tuple) and len(gpu_ids) > 1):
        asked = " ".join(config.gpu_ids)
        message = f"A policy plays on one device, but --gpu-ids {asked} may name several: pass one index, or None."
        raise UsageError(message)
    model = find_model(config.log_root, spec, config.checkpoint)
    device = plan_workers(gpu_ids, 1, visible_gpus(os.environ)).devices[0]

    from shoal.learn.evaluation import run_episodes

    returns, lengths = run_episodes(config, spec, model, device)
    return Episodes(task=config.task, checkpoint=model.parent, returns=returns, lengths=lengths)
