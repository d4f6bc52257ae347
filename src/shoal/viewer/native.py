"""Native viewer: one environment in MuJoCo's window. Space pauses, R resets."""

import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from shoal.config import PlayConfig
from shoal.learn.evaluation import open_policy
from shoal.sim.render.window import Window
from shoal.tasks.registry import TaskSpec
from shoal.viewer.playback import FRAME_S, Pacer, Playback


def show(
    config: PlayConfig, spec: TaskSpec, model: Path | None, device: str, *, print_line: Callable[[str], None]
) -> None:
    """Show one environment in a window until it is closed, or a signal comes. An untrained agent has no `model`."""
    keys: SimpleQueue[int] = SimpleQueue()
    with open_policy(config, spec, model, device, num_envs=1) as (env, policy):
        playback = Playback(env, policy)
        pacer = Pacer(playback.picture.step_dt)
        with Window(playback.picture.scene, keys.put) as window:
            print_line("The window is open: Space pauses, R begins again, Ctrl-C ends it.")
            while window.is_open:
                started = time.monotonic()
                _handle_keys(keys, playback, pacer)
                for _ in range(pacer.due(started)):
                    playback.step()
                window.show(playback.positions()[0], playback.marks()[0])
                time.sleep(max(0.0, started + FRAME_S - time.monotonic()))


def _handle_keys(keys: SimpleQueue[int], playback: Playback, pacer: Pacer) -> None:
    """Handle the keys pressed since the last call."""
    while not keys.empty():
        key = keys.get()
        if key == ord(" "):
            pacer.paused = not pacer.paused
        elif key == ord("R"):
            playback.restart()
