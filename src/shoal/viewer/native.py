"""One environment in MuJoCo's own window, until it is closed. Space pauses, R begins anew."""

from __future__ import annotations

import time
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from shoal.learn.evaluation import open_policy
from shoal.sim.render.window import Window
from shoal.viewer.pacing import FRAME_S, Pacer
from shoal.viewer.player import Player

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shoal.config import PlayConfig
    from shoal.tasks.registry import TaskSpec


def show(config: PlayConfig, spec: TaskSpec, model: Path | None, device: str, *, say: Callable[[str], None]) -> None:
    """Show one environment until its window is closed, or a signal comes.

    Args:
        config: What is played.
        spec: Its task.
        model: The checkpoint of a trained policy, or None for actions that need none.
        device: Where the environment runs.
        say: Prints a line.
    """
    keys: SimpleQueue[int] = SimpleQueue()
    with open_policy(replace(config, episodes=1), spec, model, device) as (env, policy):
        scene, player, pacer = env.task.scene(), Player(env, policy), Pacer(env.step_dt)
        with Window(scene, keys.put) as window:
            say("The window is open: Space pauses, R begins anew, Ctrl-C ends it.")
            while window.is_open:
                began = time.monotonic()
                _obey(keys, player, pacer)
                for _ in range(pacer.due(began)):
                    player.step()
                window.show(player.positions()[0])
                time.sleep(max(0.0, began + FRAME_S - time.monotonic()))


def _obey(keys: SimpleQueue[int], player: Player, pacer: Pacer) -> None:
    """Do what the keys ask for that were pressed since the last time."""
    while True:
        try:
            key = keys.get_nowait()
        except Empty:
            return
        if key == ord(" "):
            pacer.paused = not pacer.paused
        elif key == ord("R"):
            player.restart()
