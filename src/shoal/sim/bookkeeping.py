"""Kernels that every kernel task shares: seeding, counting steps, adding up rewards, and closing episodes.

They read and write arrays by row and know nothing of any task. `shoal.sim.kernel_task` launches them.
"""

# Kernel bodies are Warp's language, whose numbers and arrays pyright reads as Python's. Arrays come by position.
# pyright: reportIndexIssue=false, reportArgumentType=false

from __future__ import annotations

import warp as wp


@wp.kernel(enable_backward=False)
def seed_environments(seed: wp.int32, rng: wp.array[wp.uint32]) -> None:
    """Give each environment a random state of its own, from the seed and its index."""
    env = wp.tid()
    rng[env] = wp.rand_init(seed, env)


@wp.kernel(enable_backward=False)
def close_step(
    terms: wp.array2d[wp.float32],
    weights: wp.array[wp.float32],
    max_episode_length: wp.int32,
    terminated: wp.array[wp.bool],
    episode_length: wp.array[wp.int32],
    episode_sums: wp.array2d[wp.float32],
    reward: wp.array[wp.float32],
    done: wp.array[wp.bool],
    time_out: wp.array[wp.bool],
    finished_sums: wp.array2d[wp.float32],
) -> None:
    """Count the step, add up its reward, and close the episodes that it ended.

    A failure in the last step of an episode is a failure: a time-out promises that the task went on, and the
    learner would add the value of a state that was never reached.
    """
    env = wp.tid()
    length = episode_length[env] + 1
    failed = terminated[env]
    cut_off = length >= max_episode_length and not failed
    ended = failed or cut_off
    total = wp.float32(0.0)
    for term in range(weights.shape[0]):
        share = weights[term] * terms[env, term]
        total += share
        term_sum = episode_sums[env, term] + share
        if ended:
            finished_sums[env, term] = term_sum
            term_sum = 0.0
        episode_sums[env, term] = term_sum
    reward[env] = total
    done[env] = ended
    time_out[env] = cut_off
    if ended:
        length = 0
    episode_length[env] = length
    # So that a kernel may set the flag of those that failed, and need not clear it for the others.
    terminated[env] = False
