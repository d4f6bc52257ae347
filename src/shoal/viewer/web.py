"""The page in the browser: serving it, to whom, and putting it together."""

from __future__ import annotations

import io
import logging
import socket
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING

import viser

from shoal.learn.evaluation import open_policy
from shoal.sim.render.shapes import SceneGeometry
from shoal.viewer.page import Page
from shoal.viewer.player import Player
from shoal.viewer.show import Show
from shoal.viewer.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import NoReturn

    from shoal.config import PlayConfig
    from shoal.tasks.registry import TaskSpec


def show(
    config: PlayConfig, spec: TaskSpec, model: Path | None, device: str, *, say: Callable[[str], None]
) -> NoReturn:
    """Serve the page until a signal ends it.

    Args:
        config: What is played. At its `viewer_host`, its `viewer_port` is free.
        spec: Its task.
        model: The checkpoint of a trained policy, or None for actions that need none.
        device: Where the environments run.
        say: Prints a line.
    """
    with open_policy(replace(config, episodes=config.num_envs), spec, model, device) as (env, policy):
        look, player = SceneGeometry(env.task.scene()), Player(env, policy)
        with _served(config, label=spec.name) as server:
            stage = Stage(server, look, player.positions())
            page = Page(server.gui, num_envs=env.num_envs, commands=env.task.commands, follow=look.has_free_joint)
            for line in where_to_look(config.viewer_host, server.get_port()):
                say(line)
            Show(player, stage, page, model, config.agent_kind).go_on()


def where_to_look(host: str, port: int) -> list[str]:
    """Return the page's address, and what reaches it from another machine."""
    local = host if host.startswith("127.") or host == "localhost" else ""
    lines = [f"Viewer: http://{local or host}:{port} (Ctrl-C ends it)"]
    if local:
        lines.append(
            f"From another machine: ssh -L {port}:{local}:{port} {socket.gethostname()}, then http://localhost:{port}"
        )
    return lines


class _Server(viser.ViserServer):
    """viser's server without a way out: any visitor can ask it for a public address, which a relay then serves."""

    def request_share_url(self, verbose: bool = True) -> str | None:  # noqa: FBT001, FBT002  viser's signature.
        del verbose
        return None


@contextmanager
def _served(config: PlayConfig, *, label: str) -> Iterator[_Server]:
    """Serve an empty page."""
    # Whoever sends it no HTTP is none of our user's business.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    with redirect_stdout(io.StringIO()):  # What it prints, we say in our own words.
        server = _Server(host=config.viewer_host, port=config.viewer_port, label=label, verbose=False)
    try:
        server.gui.configure_theme(show_share_button=False, show_logo=False)
        server.gui.main_panel.dock_right()
        yield server
    finally:
        with redirect_stdout(io.StringIO()):
            server.stop()
