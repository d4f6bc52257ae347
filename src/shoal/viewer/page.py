"""The page's buttons, sliders and texts: what its user wants, and what its user is told."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import viser

    from shoal.sim.kernel_task import Command
    from shoal.viewer.player import Facts

Press = Literal["pause", "step", "reset", "load"]


class Page:
    """Reads as the user left it at any time; what is pressed is asked for, and told once."""

    def __init__(self, gui: viser.GuiApi, *, num_envs: int, commands: Mapping[str, Command], follow: bool) -> None:
        """Build it.

        Args:
            gui: Where it is built.
            num_envs: Number of environments to look at.
            commands: What the policy can be told to follow.
            follow: Whether the environment that is looked at is followed at first.
        """
        self._presses: SimpleQueue[Press] = SimpleQueue()
        with gui.add_folder("Policy"):
            self._checkpoint = gui.add_text("Checkpoint", "", disabled=True)
            self._note = gui.add_markdown("", visible=False)
            self._automatic = gui.add_checkbox("Load newer ones", initial_value=True)
            self._load = self._button(gui, "Load the newest", "load")
        with gui.add_folder("Time"):
            self._pause = self._button(gui, "Pause", "pause")
            self._button(gui, "Step", "step")
            self._button(gui, "Reset", "reset")
            self._speed = gui.add_slider("Speed", min=0.1, max=4.0, step=0.1, initial_value=1.0)
        with gui.add_folder("Environment"):
            self._looked_at = gui.add_slider("Look at", min=0, max=num_envs - 1, step=1, initial_value=0)
            self._follow = gui.add_checkbox("Follow it", initial_value=follow)
            self._hidden = gui.add_checkbox("Collision shapes", initial_value=False)
            self._told = {
                name: gui.add_text(name, "", disabled=True) for name in ("Reward", "Step", "Return", "Last return")
            }
        self._commands: list[viser.GuiSliderHandle[float]] = []
        if commands:
            with gui.add_folder("Commands"):
                self._by_hand = gui.add_checkbox("By hand", initial_value=False)
                self._commands = [_slider(gui, name, command) for name, command in commands.items()]

    def _button(self, gui: viser.GuiApi, label: str, press: Press) -> viser.GuiButtonHandle:
        button = gui.add_button(label)
        button.on_click(lambda _: self._presses.put(press))
        return button

    # What the user wants.

    def presses(self) -> Iterator[Press]:
        """Yield what was pressed since the last time."""
        while True:
            try:
                yield self._presses.get_nowait()
            except Empty:
                return

    @property
    def speed(self) -> float:
        """Simulated seconds in a second."""
        return self._speed.value

    @property
    def looked_at(self) -> int:
        """The environment that is looked at."""
        return self._looked_at.value

    @property
    def follow(self) -> bool:
        """Whether that environment is kept in the middle."""
        return self._follow.value

    @property
    def shows_hidden(self) -> bool:
        """Whether geoms for collisions are shown."""
        return self._hidden.value

    @property
    def loads_newer(self) -> bool:
        """Whether newer checkpoints are loaded as they appear."""
        return self._automatic.value

    @property
    def commands(self) -> list[float] | None:
        """What the policy is told to follow; None leaves that to the task."""
        return [slider.value for slider in self._commands] if self._commands and self._by_hand.value else None

    # What the user is told.

    def tell_paused(self, *, paused: bool) -> None:
        """Name the button after what it does next."""
        self._pause.label = "Play" if paused else "Pause"

    def tell_checkpoint(self, name: str, *, note: str = "") -> None:
        """Say which checkpoint is shown, and what is wrong with another one."""
        self._checkpoint.value = name
        self._note.content = note
        self._note.visible = bool(note)

    def tell_no_run(self) -> None:
        """Say that no newer checkpoint will come."""
        self._automatic.visible = self._load.visible = False

    def tell(self, facts: Facts) -> None:
        """Say how the environment that is looked at does."""
        last = "-" if facts.last_return is None else f"{facts.last_return:.2f}"
        values = (f"{facts.reward:.3f}", str(facts.length), f"{facts.episode_return:.2f}", last)
        for text, value in zip(self._told.values(), values, strict=True):
            text.value = value
        if self._commands and not self._by_hand.value:
            for slider, value in zip(self._commands, facts.commands, strict=True):
                slider.value = value


def _slider(gui: viser.GuiApi, name: str, command: Command) -> viser.GuiSliderHandle[float]:
    label = f"{name} [{command.unit}]" if command.unit else name
    step = (command.high - command.low) / 200
    nearest_to_rest = min(max(0.0, command.low), command.high)
    return gui.add_slider(label, min=command.low, max=command.high, step=step, initial_value=nearest_to_rest)
