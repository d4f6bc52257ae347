"""Kernels that every kernel task shares: seeding, counting steps, adding up rewards, and closing episodes.

They read and write arrays by row and know nothing of any task. `shoal.sim.kernel_task` launches them.
"""

# Kernel bodies are Warp's language, whose numbers and arrays pyright reads as Python's. Arrays come by position.
# pyright: reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

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
    reset_lost: wp.bool,
    lost: wp.array[wp.bool],
    terminated: wp.array[wp.bool],
    truncated: wp.array[wp.bool],
    episode_length: wp.array[wp.int32],
    episode_sums: wp.array2d[wp.float32],
    reward: wp.array[wp.float32],
    done: wp.array[wp.bool],
    time_out: wp.array[wp.bool],
    finished_sums: wp.array2d[wp.float32],
    losses: wp.array[wp.int32],
) -> None:
    """Count the step, add up its reward, and close the episodes that it ended.

    A failure in the last step of an episode is a failure: a time-out promises that the task went on, and the
    learner would add the value of a state that was never reached. An environment that is lost, because its state
    or its reward is not finite, earns nothing in its last step, and fails; or, unless `reset_lost`, earns NaN.
    """
    env = wp.tid()
    total = wp.float32(0.0)
    for term in range(weights.shape[0]):
        total += weights[term] * terms[env, term]
    is_lost = lost[env] or (reset_lost and not wp.isfinite(total))
    length = episode_length[env] + 1
    failed = terminated[env] or is_lost
    cut_off = (length >= max_episode_length or truncated[env]) and not failed
    ended = failed or cut_off
    if is_lost:
        losses[env] = losses[env] + 1
        total = wp.where(reset_lost, wp.float32(0.0), wp.NAN)
    for term in range(weights.shape[0]):
        term_sum = episode_sums[env, term]
        if not is_lost:
            term_sum += weights[term] * terms[env, term]
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
    # So that a kernel may set the flags of those that failed, and need not clear them for the others.
    terminated[env] = False
    truncated[env] = False
    lost[env] = False


@wp.kernel(enable_backward=False)
def copy_rows_where(
    one: wp.array[wp.bool], other: wp.array[wp.bool], source: wp.array2d[wp.float32], target: wp.array2d[wp.float32]
) -> None:
    """Copy the rows where either mask is set. One thread for each number."""
    env, column = wp.tid()
    if one[env] or other[env]:
        target[env, column] = source[env, column]


@wp.kernel(enable_backward=False)
def find_lost(
    qpos: wp.array2d[wp.float32], qvel: wp.array2d[wp.float32], limit: wp.float32, lost: wp.array[wp.bool]
) -> None:
    """Mark environments whose state is not finite, or so large that the next step will not be.

    A comparison with NaN is false, and so is that of its size with the limit.
    """
    env = wp.tid()
    sound = wp.bool(True)
    for column in range(qpos.shape[1]):
        sound = sound and wp.abs(qpos[env, column]) < limit
    for column in range(qvel.shape[1]):
        sound = sound and wp.abs(qvel[env, column]) < limit
    if not sound:
        lost[env] = True


@wp.kernel(enable_backward=False)
def record_rows(
    losses: wp.array[wp.int32],
    taken: wp.array[wp.int32],
    source: wp.array2d[wp.uint32],
    ring: wp.array3d[wp.uint32],
) -> None:
    """Copy every row of `source` into the next of its environment's places in `ring`, (num_envs, places, words).

    Where an environment was lost, what led there stays. One thread for each word of 32 bits, whatever it means.
    """
    env, word = wp.tid()
    if losses[env] == 0:
        ring[env, taken[env] % ring.shape[1], word] = source[env, word]


@wp.kernel(enable_backward=False)
def count_recorded(losses: wp.array[wp.int32], taken: wp.array[wp.int32]) -> None:
    """Go on to the next place, where `record_rows` has written one."""
    env = wp.tid()
    if losses[env] == 0:
        taken[env] = taken[env] + 1


@wp.kernel(enable_backward=False)
def mark_written(
    done: wp.array[wp.bool],
    moved: wp.array[wp.bool],
    losses: wp.array[wp.int32],
    taken: wp.array[wp.int32],
    begins: wp.array2d[wp.bool],
) -> None:
    """Say of the next place of each environment whether its state is one that kernels have written."""
    env = wp.tid()
    if losses[env] == 0:
        begins[env, taken[env] % begins.shape[1]] = done[env] or moved[env]
