"""How many steps are due, so that simulated time keeps up with the clock."""

from __future__ import annotations

FRAME_S = 1 / 60
"""Time between two looks at what is due [s]."""

MOST_AT_ONCE_S = 0.1
"""Time that is made up for at once, at most [s]. What a slow machine loses beyond it is not run after."""


class Pacer:
    """Turns time that has passed into steps that are due."""

    def __init__(self, step_dt: float) -> None:
        """Begin at normal speed.

        Args:
            step_dt: Simulated time of a step [s].
        """
        self.speed = 1.0
        """Simulated seconds in a second."""
        self.paused = False
        self._step_dt = step_dt
        self._then: float | None = None
        self._owed_s = 0.0

    def due(self, now: float) -> int:
        """Return how many steps are due.

        Args:
            now: What a clock that never goes back shows [s].
        """
        passed = min(now - self._then, MOST_AT_ONCE_S) if self._then is not None else 0.0
        self._then = now
        if self.paused:
            self._owed_s = 0.0
            return 0
        self._owed_s += passed * self.speed
        # Times that are added up are a little off, and a step that is due must not wait for the next turn.
        steps = int(self._owed_s / self._step_dt + 1e-6)
        self._owed_s -= steps * self._step_dt
        return steps
