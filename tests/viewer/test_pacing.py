"""Simulated time and the clock."""

from __future__ import annotations

import pytest

from shoal.viewer.pacing import MOST_AT_ONCE_S, Pacer


def steps_in(pacer: Pacer, seconds: float, *, start: float = 100.0, look_every_s: float = 1 / 60) -> int:
    """How many steps are due in some time, looked at again and again."""
    looks = round(seconds / look_every_s)
    return sum(pacer.due(start + look * look_every_s) for look in range(looks + 1))


@pytest.mark.parametrize(("speed", "steps"), [(0.1, 10), (0.5, 50), (1.0, 100), (4.0, 400)])
def test_steps_come_as_fast_as_asked(speed: float, steps: int) -> None:
    pacer = Pacer(0.02)
    pacer.speed = speed
    assert steps_in(pacer, 2.0) == steps


def test_long_steps_are_waited_for() -> None:
    pacer = Pacer(0.5)
    assert [pacer.due(100 + 0.1 * tenth) for tenth in range(11)] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_nothing_is_due_at_the_first_look() -> None:
    assert Pacer(0.001).due(1e6) == 0


def test_a_pause_is_not_made_up_for() -> None:
    pacer = Pacer(0.02)
    steps_in(pacer, 0.5)
    pacer.paused = True
    assert steps_in(pacer, 5.0, start=100.5) == 0
    pacer.paused = False
    assert pacer.due(105.51) == 0
    assert pacer.due(105.53) == 1


def test_a_machine_that_is_too_slow_does_not_fall_behind_for_ever() -> None:
    pacer = Pacer(0.01)
    pacer.due(100.0)
    assert pacer.due(160.0) == round(MOST_AT_ONCE_S / 0.01)
    assert pacer.due(160.0) == 0
