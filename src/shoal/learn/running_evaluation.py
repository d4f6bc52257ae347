"""An evaluation in a thread of its own, while the training goes on."""

import math
from collections.abc import Callable
from concurrent.futures import CancelledError, wait

from shoal.heartbeat import Heartbeat
from shoal.learn.metrics import Row
from shoal.learn.statistics import EVALUATION_RETURN
from shoal.timing import POLL_S, in_background

_CANCEL_S = 2.0
"""How long a cancelled evaluation may take to end [s]: the steps that are queued on the device."""


class RunningEvaluation:
    """An evaluation that has begun. Its steps are progress of the training only while the training waits for it."""

    def __init__(self, evaluate: Callable[[Callable[[], None]], Row]) -> None:
        """Begin. `evaluate` gets a function to call after each step, which raises when the evaluation is cancelled."""
        self._steps = 0
        self._is_cancelled = False
        self._end = in_background(lambda: evaluate(self._count_step), "evaluation")

    def _count_step(self) -> None:
        self._steps += 1
        if self._is_cancelled:
            raise CancelledError

    @property
    def is_done(self) -> bool:
        """Whether it has ended, in whichever way."""
        return self._end.done()

    def wait(self, beat: Heartbeat, is_cancelled: Callable[[], bool]) -> None:
        """Wait for the end, or cancel the evaluation as soon as `is_cancelled` says so. Each step is progress."""
        before, seen = beat.enter("evaluate"), self._steps
        while not wait([self._end], POLL_S).done:
            if self._steps > seen:
                seen = self._steps
                beat.mark()
            self._is_cancelled |= is_cancelled()
        beat.enter(before)

    def cancel(self) -> None:
        """End it after its present step, without metrics, unless it has ended."""
        self._is_cancelled = True
        wait([self._end], _CANCEL_S)

    def metrics(self) -> Row:
        """Return the metrics once it is done, or raise what it raised. None were measured if it was cancelled."""
        return {} if isinstance(self._end.exception(), CancelledError) else self._end.result()

    def score(self) -> float | None:
        """Wait for the end, and return the score; None if there is none."""
        score = math.nan if self._end.exception() else self._end.result()[EVALUATION_RETURN]
        return score if math.isfinite(score) else None
