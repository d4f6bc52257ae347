"""Keys of the page: the space bar pauses, and W, A, S, D, Q, E and X change the commands."""

import json
from collections.abc import Mapping
from html import escape

import viser

from shoal.sim.task import CommandRange

STEPS = 10
"""Presses of a key from zero to the end of a range."""
STOP = "X"
_MOVES, _TURNS = ("WS", "AD"), ("QE",)
"""Keys that raise and lower a command: those along an axis, forward and left, and those about one."""

# viser's camera takes letters, too, and a button or a box that has the focus takes the space bar: the key is withdrawn
# from them, and handed to viser's hotkeys alone. Those read the key, and the camera its code. With Caps Lock
# the key is a capital.
_SCRIPT = """
const isFirst = !window.shoalKeys;
window.shoalKeys = KEYS;
if (isFirst) {
  window.addEventListener("keydown", (event) => {
    if (!event.isTrusted || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (!window.shoalKeys.includes(event.key.toLowerCase())) return;
    if (event.target.closest("input:not([type=checkbox], [aria-expanded=false]), textarea")) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    document.documentElement.dispatchEvent(new KeyboardEvent("keydown", { key: event.key, bubbles: true }));
  }, true);
}
"""


def steering_keys(commands: Mapping[str, CommandRange]) -> dict[str, tuple[int, int]]:
    """Return the keys that change commands: of each the number of the command, and 1 to raise it or -1 to lower it.

    A and Q are to the left, which is positive.
    """
    turns = [index for index, command in enumerate(commands.values()) if command.unit == "rad/s"]
    moves = [index for index in range(len(commands)) if index not in turns]
    pairs = [*zip(_MOVES, moves, strict=False), *zip(_TURNS, turns, strict=False)]
    return {key: (index, sign) for keys, index in pairs for key, sign in zip(keys, (1, -1), strict=True)}


def hand_keys_to_hotkeys(gui: viser.GuiApi, keys: str) -> None:
    """Let the page hand these keys to the hotkeys of `gui` alone, wherever the focus is, except where text is typed.

    A list that is closed keeps the focus after a choice, and would take the key as text to search for.
    """
    script = _SCRIPT.replace("KEYS", json.dumps([*keys.lower()]))
    gui.add_html(f'<img hidden alt="" src="data:," onerror="{escape(script)}">')
