"""Each task against the environment that it is made after: same states, same actions, same everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.gymnasium_twins import Twins

from shoal.tasks.gymnasium_v5.specs import SPECS

if TYPE_CHECKING:
    from shoal.tasks.registry import TaskSpec

ROUNDING = 2.0**-23
"""Twice the greatest relative error of a number that is rounded to 32 bits."""
COMPUTED = 4e-6
"""Relative and absolute: what is computed from rounded fields, the longest being sums of 84 squares."""


def tolerance(spec: TaskSpec, term: str, value: float, info: dict[str, Any], step_dt: float) -> float:
    """How far a term may be off. A speed is a difference of two rounded positions, divided by the time between."""
    if term == "reward_forward":
        env: Any = spec.env
        weight = env.rewards.reward_forward.weight
        # The centre of masses, or of the torso one physics step ago, is within a metre of the torso's.
        return weight * ROUNDING * (abs(info["x_position"]) + 1.0) / step_dt + COMPUTED * abs(value)
    return COMPUTED * (1.0 + abs(value))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_two_hundred_random_steps_are_gymnasiums(spec: TaskSpec) -> None:
    twins = Twins(spec, num_envs=4, seed=7)
    task = twins.task
    rng = np.random.default_rng(8)
    has_angles = spec.name.startswith(("InvertedDouble", "Reacher"))
    ended = 0
    for _ in range(200):
        # What is copied is Gymnasium's number, rounded; sines, cosines and differences are computed from such.
        np.testing.assert_allclose(
            task.obs["policy"].numpy(),
            twins.observations.astype(np.float32),
            rtol=0,
            atol=COMPUTED if has_angles else 0,
        )
        actions = twins.random_actions(rng)
        results = twins.step(actions)
        done, cut_off = task.done.numpy(), task.time_out.numpy()
        terms = task.terms.numpy() * task.weights.numpy()
        for env, (reward, terminated, info) in enumerate(results):
            assert bool(done[env] and not cut_off[env]) is terminated
            allowed = 0.0
            for column, term in enumerate(task.reward_terms):
                value = info.get(term, 1.0)  # The one that has no name of Gymnasium's is 1.
                atol = tolerance(spec, term, value, info, task.step_dt)
                np.testing.assert_allclose(terms[env, column], value, rtol=0, atol=atol)
                allowed += atol
            np.testing.assert_allclose(task.reward.numpy()[env], reward, rtol=0, atol=allowed)
            if not done[env]:
                # Both are MuJoCo: not a bit may differ.
                np.testing.assert_array_equal(twins.positions[env], twins.originals[env].data.qpos)
                np.testing.assert_array_equal(twins.speeds[env], twins.originals[env].data.qvel)
        twins.begin(np.flatnonzero(done).tolist())
        ended += int(done.sum())
    may_end = bool(task.terminations) or task.max_episode_length < 200
    assert (ended > 0) is may_end
