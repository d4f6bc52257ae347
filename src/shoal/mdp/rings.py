"""The last values of an observation or action, for its delay and its history: a ring of rows of columns."""

import warp as wp


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
