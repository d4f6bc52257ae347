"""The loop behind the page: steps that are due, buttons that were pressed, checkpoints that are new."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shoal.errors import ShoalError
from shoal.learn.evaluation import load_weights
from shoal.viewer.newest import Shown
from shoal.viewer.pacing import FRAME_S, Pacer

if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn

    from shoal.viewer.page import Page
    from shoal.viewer.player import Player
    from shoal.viewer.stage import Stage

TOLD_EVERY_S = 0.1
"""Time between two changes of the texts: faster ones cannot be read [s]."""
LOOK_FOR_NEWER_EVERY_S = 1.0
"""Time between two looks at the run's checkpoints [s]."""


class Show:
    """Does what the user wants, shows what became of it, and says what there is to know."""

    def __init__(self, player: Player, stage: Stage, page: Page, model: Path | None, agent: str) -> None:
        """Begin with a page on which nothing moves yet.

        Args:
            player: What plays.
            stage: What is seen.
            page: What is pressed and read.
            model: The checkpoint of a trained policy, or None for actions that need none.
            agent: Who acts, in a word.
        """
        self._player, self._stage, self._page = player, stage, page
        self._pacer = Pacer(player.env.step_dt)
        self._shown = Shown(model) if model else None
        self._told_at = self._looked_for_newer_at = 0.0
        self._view: tuple[int, bool, bool] | None = None
        page.tell_checkpoint(self._shown.name if self._shown else f"none: {agent} actions")
        if self._shown is None or self._shown.run is None:
            page.tell_no_run()

    def go_on(self) -> NoReturn:
        """Play until a signal comes."""
        while True:
            began = time.monotonic()
            self._turn(began)
            time.sleep(max(0.0, began + FRAME_S - time.monotonic()))

    def _turn(self, now: float) -> None:
        page = self._page
        if now - self._looked_for_newer_at >= LOOK_FOR_NEWER_EVERY_S:
            self._looked_for_newer_at = now
            if page.loads_newer:
                self._load_newer()
        changed = self._obey()
        self._pacer.speed = page.speed
        for _ in range(self._pacer.due(now)):
            self._player.step(page.commands)
            changed = True
        view = page.looked_at, page.follow, page.shows_hidden
        if changed or view != self._view:
            self._view = view
            self._stage.show(self._player.positions(), looked_at=page.looked_at, follow=page.follow)
            self._stage.show_hidden(visible=page.shows_hidden)
        if now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            page.tell(self._player.facts(page.looked_at))

    def _obey(self) -> bool:
        """Do what was pressed; return whether the environments have moved."""
        moved = False
        for press in self._page.presses():
            if press == "pause":
                self._pacer.paused = not self._pacer.paused
                self._page.tell_paused(paused=self._pacer.paused)
            elif press == "step":
                self._player.step(self._page.commands)
                moved = True
            elif press == "reset":
                self._player.restart()
                moved = True
            else:
                self._load_newer()
        return moved

    def _load_newer(self) -> None:
        """Give the policy the weights of the newest checkpoint, if there is a newer one."""
        newer = self._shown.newer() if self._shown else None
        if self._shown is None or newer is None:
            return
        try:
            load_weights(self._player.policy, newer.model)
        except ShoalError as error:  # Removed in this very moment, say. What is shown goes on.
            self._page.tell_checkpoint(self._shown.name, note=str(error))
        else:
            self._shown.show(newer)
            self._page.tell_checkpoint(self._shown.name)
