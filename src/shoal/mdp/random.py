"""Random numbers of one environment."""

from typing import Any

import warp as wp


@wp.func
def uniform(state: Any, env: int, low: float, high: float) -> float:
    """Return a number drawn uniformly; nothing is drawn where `low` is `high`."""
    if low == high:
        return low
    rng = state.rng[env]
    drawn = wp.randf(rng, low, high)
    state.rng[env] = rng
    return drawn


@wp.func
def happens(state: Any, env: int, probability: float) -> bool:
    """Whether something happens that has a probability."""
    return uniform(state, env, 0.0, 1.0) < probability


@wp.func
def uniform_int(state: Any, env: int, count: int) -> int:
    """Return a whole number from 0 to `count` - 1, drawn uniformly."""
    rng = state.rng[env]
    drawn = wp.randi(rng, 0, count)
    state.rng[env] = rng
    return drawn


@wp.func
def shared_int(state: Any, env: int, stream: int, count: int) -> int:
    """Return a whole number from 0 to `count` - 1: in a step the same for all environments, another of each stream."""
    return wp.randi(wp.rand_init(wp.int32(state.shared_rng[env]), stream), 0, count)
