"""`play` and `evaluate`: find a policy's checkpoint, run episodes, and return statistics or show a viewer."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from shoal.checks.film import refuse_no_film
from shoal.checks.viewer import check_display, free_viewer_port
from shoal.config import PlayConfig
from shoal.machine.gpus import visible_gpus
from shoal.plan.devices import one_device
from shoal.plan.launch import refuse_unwritable
from shoal.plan.resume import find_model
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec


@dataclass(frozen=True, slots=True)
class Episodes:
    """Returns and lengths of a policy's episodes."""

    returns: list[float]
    lengths: list[int]
    """Length of each episode [environment steps]."""
    video: str | None = None
    """Video of the first environment."""

    def summary(self) -> str:
        """Return means and standard deviations in words."""
        return f"return {_spread(self.returns, '.2f')}, length {_spread(self.lengths, '.1f')}"


def _spread(values: Sequence[float], form: str) -> str:
    """Return mean and standard deviation of what the values are a sample of; NaN for the deviation of one value."""
    return f"{fmean(values):{form}} ± {stdev(values) if len(values) > 1 else math.nan:{form}}"


def play(config: PlayConfig) -> Episodes:
    """Run episodes of a policy, without exploration noise.

    Raises:
        UsageError: There is no such policy, or it cannot run here.
    """
    spec, model, device = _find(config)
    if config.video_path is not None:
        refuse_no_film(device, os.environ)
        refuse_unwritable("--video-path", Path(config.video_path).parent)

    from shoal.learn.evaluation import play_episodes

    episodes = play_episodes(config, spec, model, device)
    returns, lengths = ([each[name] for each in episodes] for name in ("return", "length"))
    return Episodes(returns, lengths, config.video_path)


def show(config: PlayConfig, print_line: Callable[[str], None]) -> None:
    """Show a policy in a viewer, until its window is closed or a signal comes.

    Raises:
        UsageError: There is no such policy, or it cannot be shown here.
    """
    if config.viewer == "native":
        check_display(os.environ)
    else:
        config = replace(config, viewer_port=free_viewer_port(config))
    spec, model, device = _find(config)
    if config.viewer == "native":
        from shoal.viewer.native import show as show_in_viewer
    else:
        from shoal.viewer.web import show as show_in_viewer
    show_in_viewer(config, spec, model, device, print_line=print_line)


def _find(config: PlayConfig) -> tuple[TaskSpec, Path | None, str]:
    """Return the task, the checkpoint of a trained policy, and the device."""
    spec = registry.resolve(config.task)
    device = one_device(config.gpu_ids, visible_gpus(os.environ))
    model = find_model(config.log_root, spec, config.checkpoint) if config.agent_kind == "trained" else None
    spec.check_env(config.env)
    return spec, model, device
