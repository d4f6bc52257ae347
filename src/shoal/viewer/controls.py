"""Control panel of the web viewer: buttons, sliders and texts."""

from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Literal

import viser

from shoal.sim.task import CommandRange
from shoal.viewer.playback import EnvStatus

Action = Literal["pause", "step", "reset", "load", "push"]


class ControlPanel:
    """The controls. Public ones are read by the viewer's loop; `clicks` returns each click of a button once."""

    def __init__(  # noqa: PLR0913  By name.
        self,
        gui: viser.GuiApi,
        *,
        num_envs: int,
        commands: Mapping[str, CommandRange],
        follow: bool,
        can_push: bool = False,
        menu: Sequence[str] = (),
    ) -> None:
        self._clicks: SimpleQueue[Action] = SimpleQueue()
        with gui.add_folder("Policy"):
            self.chosen = gui.add_dropdown("Show", menu, initial_value=menu[0]) if menu else None
            """The policy of the menu that is to be shown, the first of which is shown."""
            self._checkpoint = gui.add_text("Checkpoint", "", disabled=True)
            self._problem = gui.add_markdown("", visible=False)
            self.loads_newer = gui.add_checkbox("Load newer ones", initial_value=True)
            self._load = self._button(gui, "Load the newest", "load")
        with gui.add_folder("Time"):
            self._pause = self._button(gui, "Pause", "pause")
            self._button(gui, "Step", "step")
            self._button(gui, "Reset", "reset")
            self.speed = gui.add_slider("Speed", min=0.1, max=4.0, step=0.1, initial_value=1.0)
        with gui.add_folder("Environment"):
            self.selected = gui.add_slider("Look at", min=0, max=num_envs - 1, step=1, initial_value=0)
            self.follow = gui.add_checkbox("Follow it", initial_value=follow)
            self.shows_hidden = gui.add_checkbox("Collision shapes", initial_value=False)
            if can_push:
                self._button(gui, "Push", "push")
            self._texts = {
                name: gui.add_text(name, "", disabled=True) for name in ("Reward", "Step", "Return", "Last return")
            }
        self._commands: list[viser.GuiSliderHandle[float]] = []
        if commands:
            with gui.add_folder("Commands"):
                self._by_hand = gui.add_checkbox("By hand", initial_value=False)
                self._commands = [_slider(gui, name, command) for name, command in commands.items()]

    def _button(self, gui: viser.GuiApi, label: str, action: Action) -> viser.GuiButtonHandle:
        button = gui.add_button(label)
        button.on_click(lambda _: self._clicks.put(action))
        return button

    def clicks(self) -> Iterator[Action]:
        """Yield the buttons clicked since the last call."""
        while not self._clicks.empty():
            yield self._clicks.get()

    @property
    def commands(self) -> list[float] | None:
        """Commands of the sliders; None leaves them to the task."""
        return [slider.value for slider in self._commands] if self._commands and self._by_hand.value else None

    def set_paused(self, *, paused: bool) -> None:
        """Label the pause button with its next action."""
        self._pause.label = "Play" if paused else "Pause"

    def set_checkpoint(self, name: str, *, problem: str = "") -> None:
        """Show the name of the loaded checkpoint, and why a newer one was not loaded."""
        self._checkpoint.value = name
        self._problem.content = problem
        self._problem.visible = bool(problem)

    def hide_newer(self) -> None:
        """Hide the controls for newer checkpoints."""
        self.loads_newer.visible = self._load.visible = False

    def set_status(self, status: EnvStatus) -> None:
        """Show the status of the selected environment."""
        last = "-" if status.last_return is None else f"{status.last_return:.2f}"
        values = (f"{status.reward:.3f}", str(status.length), f"{status.episode_return:.2f}", last)
        for text, value in zip(self._texts.values(), values, strict=True):
            text.value = value
        if self._commands and not self._by_hand.value:
            for slider, value in zip(self._commands, status.commands, strict=True):
                slider.value = value


def _slider(gui: viser.GuiApi, name: str, command: CommandRange) -> viser.GuiSliderHandle[float]:
    label = f"{name} [{command.unit}]" if command.unit else name
    step = (command.high - command.low) / 200
    nearest_to_zero = min(max(0.0, command.low), command.high)
    return gui.add_slider(label, min=command.low, max=command.high, step=step, initial_value=nearest_to_zero)
