"""Control panel of the web viewer: buttons, sliders and texts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from math import isfinite
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import viser

from shoal.sim.render.images import enlarged
from shoal.sim.render.instances import Shown
from shoal.sim.task import CommandRange
from shoal.viewer.keys import STEPS, STOP, hand_keys_to_hotkeys, steering_keys
from shoal.viewer.playback import EnvStatus
from shoal.viewer.terms import TermsTab, bars

_MOST_SEED = 2**31 - 1
_IMAGE_SIZE = (512, 512)
"""Largest width and height of an image that the policy observes [pixels]."""
Action = Literal["pause", "step", "reset", "again", "load", "push"]


class ControlPanel:
    """The controls. Public ones are read by the viewer's loop; `clicks` returns each click of a button once."""

    def __init__(  # noqa: PLR0913  By name.
        self,
        gui: viser.GuiApi,
        *,
        num_envs: int,
        commands: Mapping[str, CommandRange],
        rewards: Sequence[str],
        metrics: Sequence[str],
        limits: Mapping[str, float] | None,
        scans: bool,
        seed: int | None,
        follow: bool,
        can_push: bool = False,
        images: Mapping[str, np.ndarray] = MappingProxyType({}),
        menu: Sequence[str] = (),
    ) -> None:
        """Add them. Without `limits` of actuators no forces are known, and without `seed` no episodes are repeated.

        The first policy of the `menu` is shown, and of `images` those that it observes of the first environment.
        """
        self._clicks: SimpleQueue[Action] = SimpleQueue()
        self._keys: SimpleQueue[Callable[[], None]] = SimpleQueue()
        """What the keys do. It is done in the viewer's loop, which writes the sliders, too."""
        self.checkpoints: SimpleQueue[str] = SimpleQueue()
        """Names of checkpoints that were chosen."""
        tabs = gui.add_tab_group()
        with tabs.add_tab("Controls"):
            with gui.add_folder("Policy"):
                self.chosen = gui.add_dropdown("Show", menu, initial_value=menu[0]) if menu else None
                """The policy of the menu that is to be shown."""
                self._checkpoint: viser.GuiDropdownHandle[Any] = gui.add_dropdown("Checkpoint", ("",))
                self._checkpoint.on_update(self._choose)
                self._problem = gui.add_html("", visible=False)
                self.loads_newer = gui.add_checkbox("Load newer ones", initial_value=True)
                self._load = self._button(gui, "Load the newest", "load")
            self._add_controls(gui, num_envs, commands, seed, follow=follow)
            if can_push:
                self._button(gui, "Push", "push")
        with tabs.add_tab("Visualization"):
            boxes = [gui.add_checkbox(name, initial_value=False) for name in ("Collision shapes", "Frames")]
            self._collisions, self._frames = boxes
            self.forces = gui.add_checkbox("Contact forces", initial_value=False, visible=limits is not None)
            self.scan = gui.add_checkbox("Height scan", initial_value=True, visible=scans)
            self.efforts = gui.add_checkbox("Actuator forces", initial_value=False, visible=bool(limits))
            self._efforts, self._limits = gui.add_html(""), limits or {}
            self._images = {
                name: gui.add_image(enlarged(image, _IMAGE_SIZE), label=f"Observed: {name}", format="png")
                for name, image in images.items()
            }
        self.rewards = TermsTab(gui, tabs.add_tab("Rewards"), rewards, together=True)
        self.metrics = TermsTab(gui, tabs.add_tab("Metrics"), metrics, together=False) if metrics else None

    def _add_controls(
        self, gui: viser.GuiApi, num_envs: int, commands: Mapping[str, CommandRange], seed: int | None, *, follow: bool
    ) -> None:
        with gui.add_folder("Time"):
            self._pause = self._button(gui, "Pause", "pause")
            self._button(gui, "Step", "step")
            self._button(gui, "Reset", "reset")
            self._seed = gui.add_number("Seed", seed or 0, min=0, step=1, visible=seed is not None)
            if seed is not None:
                self._button(gui, "Again the same", "again")
            self.speed = gui.add_slider("Speed", min=0.1, max=4.0, step=0.1, initial_value=1.0)
        with gui.add_folder("Environment"):
            self.selected = gui.add_slider("Look at", min=0, max=num_envs - 1, step=1, initial_value=0)
            self.follow = gui.add_checkbox("Follow it", initial_value=follow)
            self._texts = {
                name: gui.add_text(name, "", disabled=True) for name in ("Reward", "Step", "Return", "Last return")
            }
        self._commands: list[viser.GuiSliderHandle[float]] = []
        keys = steering_keys(commands)
        if commands:
            with gui.add_folder("Commands"):
                self._by_hand = gui.add_checkbox("By hand", initial_value=False)
                self._commands = [_slider(gui, name, command) for name, command in commands.items()]
                self._rest = [slider.value for slider in self._commands]
                names = [*commands]
                gui.add_markdown(f"Keys: {', '.join(f'{k} {names[at]}' for k, (at, _) in keys.items())}, {STOP} stop")
            for key, (at, sign) in keys.items():
                self._hotkey(gui, f"{names[at]} {'+' if sign > 0 else '-'}", key, partial(self._steer, at, sign))
            self._hotkey(gui, "Stop", STOP, self._stop)
        self._hotkey(gui, "Pause or play", "space", partial(self._clicks.put, "pause"))
        hand_keys_to_hotkeys(gui, " " + "".join(keys) + (STOP if commands else ""))

    def _hotkey(self, gui: viser.GuiApi, label: str, key: Any, act: Callable[[], None]) -> None:  # noqa: ANN401  viser's.
        async def run(_: viser.CommandEvent) -> None:  # In one thread: presses keep their order.
            self._keys.put(act)

        gui.add_command(label, hotkey=key).on_trigger(run)

    def _stop(self) -> None:
        for slider, value in zip(self._commands, self._rest, strict=True):
            slider.value = value
        self._by_hand.value = True

    def _steer(self, index: int, sign: int) -> None:
        if not self._by_hand.value:
            self._stop()
        slider = self._commands[index]
        step = max(-slider.min, slider.max) / STEPS
        slider.value = min(max(slider.value + sign * step, slider.min), slider.max)

    def _button(self, gui: viser.GuiApi, label: str, action: Action) -> viser.GuiButtonHandle:
        button = gui.add_button(label)
        button.on_click(lambda _: self._clicks.put(action))
        return button

    def clicks(self) -> Iterator[Action]:
        """Do what the keys do that were pressed since the last call, and yield the buttons clicked."""
        while not self._keys.empty():
            self._keys.get()()
        while not self._clicks.empty():
            yield self._clicks.get()

    @property
    def commands(self) -> list[float] | None:
        """Commands of the sliders; None leaves them to the task."""
        return [slider.value for slider in self._commands] if self._commands and self._by_hand.value else None

    def set_paused(self, *, paused: bool) -> None:
        """Label the pause button with its next action."""
        self._pause.label = "Play" if paused else "Pause"

    def seed(self, *, new: bool) -> int:
        """Return the seed in its field, or write the next one and return that."""
        value = self._seed.value
        # A field without a number, or one that a page has filled with something else, is 0.
        seed = (int(value) if isinstance(value, int | float) and isfinite(value) else 0) + new
        self._seed.value = seed = min(max(seed, 0), _MOST_SEED)
        return seed

    @property
    def shown(self) -> Shown:
        """What is to be drawn beside the visible geoms."""
        return Shown(collisions=self._collisions.value, forces=self.forces.value, frames=self._frames.value)

    async def _choose(self, event: viser.GuiEvent[viser.GuiDropdownHandle[Any]]) -> None:
        if event.client is not None:  # And not `set_checkpoints`, which may write over the choice before it is read.
            self.checkpoints.put(event.target.value.partition(" ")[0])

    def set_checkpoints(self, labels: Sequence[str], name: str) -> None:
        """Offer checkpoints, whose labels begin with their names and a space, and show which is loaded."""
        if self._checkpoint.options != (options := (*labels,)):
            self._checkpoint.options = options
        self._checkpoint.value = next(label for label in labels if label.partition(" ")[0] == name)

    def set_problem(self, problem: str) -> None:
        """Show what is wrong with the run or with a checkpoint; nothing if it is empty."""
        if self._problem.visible or problem:
            self._problem.content = f'<p style="color: #c92a2a; margin: 0.5em 1em">{escape(problem)}</p>'
            self._problem.visible = bool(problem)

    def set_efforts(self, forces: np.ndarray | None) -> None:
        """Show the force or torque of each actuator against its limit. Shape (nu,)."""
        self._efforts.visible = forces is not None
        if forces is not None:
            names = [f"{name} (±{limit:.4g})" for name, limit in self._limits.items()]
            self._efforts.content = bars(names, forces, np.array([*self._limits.values()]))

    def set_images(self, images: Mapping[str, np.ndarray]) -> None:
        """Show the images that the policy observes. Shapes (rows, columns, 3)."""
        for name, image in images.items():
            self._images[name].image = enlarged(image, _IMAGE_SIZE)

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
