"""The `demo` command: the policies that ship, on a page with a menu of them, or in a video."""

import os
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shoal.checks.optional import free_viewer_port
from shoal.commands.play import Episodes, play
from shoal.config import DemoConfig, PlayConfig
from shoal.config.plain import from_plain
from shoal.errors import UsageError
from shoal.reading import parse_json, read_bytes
from shoal.tasks import registry
from shoal.tasks.registry import POLICIES, TaskSpec

VIDEO_STEPS = 250
"""Five seconds of tasks with 50 actions a second."""
VIDEO_SIZE = (854, 480)
"""Of a first look [pixels]: without a GPU the time to draw grows with them."""

Shown = tuple[PlayConfig, TaskSpec, Path | None]


def offered(config: DemoConfig) -> dict[str, Shown]:
    """Return configuration, task and file of each policy that can run here by its name, the one asked for first.

    Raises:
        UsageError: There is no policy of the task that is asked for, or it cannot run here.
    """
    manifest = parse_json(read_bytes(POLICIES / "manifest.json"))
    if config.task is not None:
        registry.shipped_policy(config.task)
    shown: dict[str, Shown] = {}
    for name in sorted(manifest, key=lambda name: name != config.task):
        spec = registry.resolve(manifest[name]["task"])
        env = from_plain(spec.env, manifest[name]["env"], "env")
        file = registry.shipped_policy(name)
        try:
            spec.check_env(env)
        except UsageError:  # A robot of a package that is not installed.
            if name == config.task:
                raise
            continue
        playing = PlayConfig(
            task=spec.name,
            checkpoint=str(file),
            env=env.in_play().undisturbed(),
            learner=spec.learner,
            agent=spec.agent,
            num_envs=config.num_envs,
            viewer_host=config.viewer_host,
            viewer_port=config.viewer_port,
            seed=config.seed,
            gpu_ids=("None",),
        )
        shown[name] = (playing, spec, file)
    return shown


def record(config: DemoConfig) -> Episodes:
    """Write a video of one policy."""
    playing, *_ = next(iter(offered(config).values()))
    return play(replace(playing, video_path=config.record, video_length=VIDEO_STEPS, video_size=VIDEO_SIZE, episodes=1))


def show(config: DemoConfig, print_line: Callable[[str], None]) -> None:
    """Show the policies until a signal comes, in the browser where there is a display."""
    policies = offered(replace(config, viewer_port=free_viewer_port(config)))
    from shoal.viewer.web import show_one_of

    opens = config.browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    show_one_of(policies, "cpu", print_line=print_line, on_served=webbrowser.open if opens else lambda _: None)
