"""The `play` command: find a policy's checkpoint and show it in a viewer, or count its episodes."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal.checks.optional import check_display, free_viewer_port, refuse_no_video
from shoal.config import PlayConfig
from shoal.config.commands import UNTRAINED
from shoal.machine.gpus import visible_gpus
from shoal.plan.launch import refuse_unwritable_file
from shoal.plan.nodes import one_device
from shoal.plan.resume import find_model
from shoal.tasks import registry
from shoal.tasks.registry import TaskSpec
from shoal.text import columns


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes of a policy that were counted."""

    episodes: list[dict[str, Any]]
    """See `shoal.learn.episodes.Episode`."""
    video: str | None = None
    """Video of the first environment."""

    def lines(self) -> Iterator[str]:
        """Yield each episode, and the statistics that `evaluate` would write of them."""
        from shoal.jobs.statistics import sentence_of, summarize

        rows = [
            (str(number), f"{each['return']:.2f}", str(each["length"]), each["ended"])
            for number, each in enumerate(self.episodes, start=1)
        ]
        yield from columns(("episode", "return", "length", "ended"), rows)
        yield sentence_of(summarize(self.episodes))
        if self.video is not None:
            yield f"Video: {self.video}"


def viewer_of(config: PlayConfig, *, in_terminal: bool) -> str | None:
    """Return the viewer that shows the policy, or None where its episodes are counted."""
    if config.viewer is not None or config.counts:
        return config.viewer
    return "web" if in_terminal and find_spec("viser") is not None else None


def play(config: PlayConfig) -> Episodes:
    """Count episodes of a policy, without exploration noise.

    Raises:
        UsageError: There is no such policy, or it cannot run here.
    """
    spec, model, device = _find(config)
    if config.video_path is not None:
        refuse_unwritable_file("--video-path", Path(config.video_path), "video.mp4")
        refuse_no_video(device, os.environ)

    from shoal.learn.evaluation import play_episodes

    return Episodes(play_episodes(config, spec, model, device), config.video_path)


def show(config: PlayConfig, viewer: str, print_line: Callable[[str], None]) -> None:
    """Show a policy in a viewer, until its window is closed or a signal comes.

    Raises:
        UsageError: There is no such policy, or it cannot be shown here.
    """
    if viewer == "native":
        check_display(os.environ)
    else:
        config = replace(config, viewer_port=free_viewer_port(config))
    spec, model, device = _find(config)
    if viewer == "native":
        from shoal.viewer.native import show as show_in_viewer
    else:
        from shoal.viewer.web import show as show_in_viewer
    show_in_viewer(config, spec, model, device, print_line=print_line)


def _find(config: PlayConfig) -> tuple[TaskSpec, Path | None, str]:
    """Return the task, the checkpoint of a trained policy, and the device."""
    spec = registry.resolve(config.task)
    device = one_device(config.gpu_ids, visible_gpus(os.environ))
    model = find_model(config.log_root, spec, config.checkpoint) if config.checkpoint not in UNTRAINED else None
    spec.check_env(config.env)
    return spec, model, device
