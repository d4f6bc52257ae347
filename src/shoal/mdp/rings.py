"""The last values of an observation or action, for its delay and its history: a ring of rows of columns."""

from dataclasses import dataclass, field

import warp as wp

from shoal.mdp.binding import Binder
from shoal.mdp.random import shared_int
from shoal.mdp.terms import DelayedTerm


@wp.func
def remember(
    ring: wp.array2d[wp.float32],
    env: int,
    i: int,
    columns: int,
    slots: int,
    age: int,
    value: float,
) -> None:
    """Keep column `i` of what is observed `age` steps after the episode began."""
    ring[env, (age % slots) * columns + i] = value


@wp.func
def recall(
    ring: wp.array2d[wp.float32],
    env: int,
    i: int,
    columns: int,
    slots: int,
    age: int,
    back: int,
) -> float:
    """Return column `i` of what was observed `back` steps ago, or else first in the episode."""
    return ring[env, (wp.max(age - back, 0) % slots) * columns + i]


@dataclass(slots=True)
class Rings:
    """The rings of a task, and the text that fills them."""

    columns: dict[str, int] = field(default_factory=dict[str, int])
    """Columns of each ring, by its name in the text."""
    lags: int = 0
    """Columns of `lags`: the lags that hold, and where in its period an environment draws the next."""
    first: list[str] = field(default_factory=list[str])
    """Lines that draw the lags of a new episode."""
    next: list[str] = field(default_factory=list[str])
    """Lines that draw lags in a step."""

    def keep(self, ring: str, count: int, slots: int, value: str) -> str:
        """Return the line that keeps column `i` of `count` columns."""
        self.columns[ring] = count * slots
        return f"remember({ring}, env, i, {count}, {slots}, age[env], {value})"

    def delayed(self, binder: Binder, path: str, term: DelayedTerm, count: int, value: str) -> tuple[list[str], str]:
        """Return lines that keep column `i` of a value of `count` columns, and the expression of what is seen of it."""
        least, largest, period = term.delay_min_lag, term.delay_max_lag, term.delay_update_period
        if not largest:
            return [], value
        ring, lag = f"{path.replace('.', '_')}_delay", f"lags[env, {self.lags}]"
        drawn, hold = f"uniform_int(state, env, {largest - least + 1})", term.delay_hold_prob
        if not term.delay_per_env:
            advance = "state.shared_rng[env] = state.shared_rng[env] + wp.uint32(1)"
            self.next = [advance, *(line for line in self.next if line != advance)]
            drawn = f"{binder.name_function(shared_int)}(state, env, {self.lags}, {largest - least + 1})"
        draw = f"{lag} = {least} + {drawn}"
        self.lags += 1
        self.first.append(draw)
        if hold < 1.0 and largest > least:
            conditions = [f"not happens(state, env, {binder.number(f'{path}.delay_hold_prob', hold)})"] if hold else []
            if period > 1:
                phase = "0"
                if term.delay_per_env_phase:
                    phase = f"lags[env, {self.lags}]"
                    self.first.append(f"{phase} = uniform_int(state, env, {period})")
                    self.lags += 1
                conditions.insert(0, f"(age[env] - 1 + {phase}) % {period} == 0")
            lines = [*(f"if {each}:" for each in conditions), draw]
            self.next += ["    " * depth + line for depth, line in enumerate(lines)]
        slots = largest + 1
        seen = f"recall({ring}, env, i, {count}, {slots}, age[env], {lag})"
        return [self.keep(ring, count, slots, value)], seen
