"""Keys of the page: which commands they change, and that neither the camera nor a focused box takes them."""

from __future__ import annotations

import pytest

from shoal.sim.task import CommandRange
from shoal.viewer.keys import steering_keys


@pytest.mark.parametrize(
    ("units", "keys"),
    [
        (["m/s", "m/s", "rad/s"], {"W": (0, 1), "S": (0, -1), "A": (1, 1), "D": (1, -1), "Q": (2, 1), "E": (2, -1)}),
        (["m/s", "rad/s"], {"W": (0, 1), "S": (0, -1), "Q": (1, 1), "E": (1, -1)}),
        (["m/s", "m/s", "m/s"], {"W": (0, 1), "S": (0, -1), "A": (1, 1), "D": (1, -1)}),
        ([], {}),
    ],
)
def test_letters_move_along_the_first_two_axes_and_turn(units: list[str], keys: dict[str, tuple[int, int]]) -> None:
    commands = {str(index): CommandRange(low=-1, high=1, unit=unit) for index, unit in enumerate(units)}
    assert steering_keys(commands) == keys
