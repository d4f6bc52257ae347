"""Kernels that all tasks share: seeding, counting steps, adding up rewards, closing episodes, and step history.

They read and write arrays by row and know nothing of any task.
"""

import warp as wp


@wp.kernel(enable_backward=False)
def seed_environments(seed: wp.int32, first: wp.int32, rng: wp.array[wp.uint32]) -> None:
    """Give each environment a random state of its own, from the seed and its index, counted from `first`."""
    env = wp.tid()
    rng[env] = wp.rand_init(seed, first + env)


LARGEST = wp.constant(1e10)
"""An environment has diverged when a position or velocity is not smaller: MuJoCo's own limit, mjMAXVAL."""


@wp.func
def is_bounded(row: wp.array[wp.float32]) -> wp.bool:
    """Whether all numbers of a row are finite and smaller than `LARGEST`."""
    bounded = wp.bool(True)
    for column in range(row.shape[0]):
        bounded = bounded and wp.abs(row[column]) < wp.float32(LARGEST)
    return bounded


@wp.kernel(enable_backward=False)
def close_step(
    terms: wp.array2d[wp.float32],
    weights: wp.array[wp.float32],
    max_episode_length: wp.int32,
    reset_diverged: wp.bool,
    qpos: wp.array2d[wp.float32],
    qvel: wp.array2d[wp.float32],
    diverged: wp.array[wp.bool],
    terminated: wp.array[wp.bool],
    truncated: wp.array[wp.bool],
    episode_length: wp.array[wp.int32],
    episode_sums: wp.array2d[wp.float32],
    reward: wp.array[wp.float32],
    done: wp.array[wp.bool],
    time_out: wp.array[wp.bool],
    finished_sums: wp.array2d[wp.float32],
    divergences: wp.array[wp.int32],
    bad_terms: wp.array[wp.int32],
) -> None:
    """Count the step, add up its reward, and close the episodes that it ended.

    A failure in the last step of an episode is a failure: a time-out promises that the task went on, and the
    learner would add the value of a state that was never reached. An environment whose state or reward is not
    finite fails, with a last reward of 0; or, unless `reset_diverged`, of NaN. Where the state is finite and a term is
    not, `bad_terms` gets the term's number, counted from 1, unless it has one.

    The state is not finite where `diverged` is set, or a number of `qpos` or `qvel` is not smaller than `LARGEST`.
    """
    env = wp.tid()
    is_lost = diverged[env] or not is_bounded(qpos[env]) or not is_bounded(qvel[env])
    total = wp.float32(0.0)
    for term in range(weights.shape[0]):
        value = weights[term] * terms[env, term]
        total += value
        if bad_terms[env] == 0 and not is_lost and not wp.isfinite(value):
            bad_terms[env] = term + 1
    is_diverged = is_lost or (reset_diverged and not wp.isfinite(total))
    length = episode_length[env] + 1
    failed = terminated[env] or is_diverged
    cut_off = (length >= max_episode_length or truncated[env]) and not failed
    ended = failed or cut_off
    if is_diverged:
        divergences[env] = divergences[env] + 1
        total = wp.where(reset_diverged, wp.float32(0.0), wp.NAN)
    for term in range(weights.shape[0]):
        term_sum = episode_sums[env, term]
        if not is_diverged:
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
    diverged[env] = False


@wp.struct
class RowCopy:
    """An array whose rows are copied to another one, both (num_envs, columns)."""

    source: wp.array2d[wp.float32]
    target: wp.array2d[wp.float32]


@wp.kernel(enable_backward=False)
def copy_rows_where(one: wp.array[wp.bool], other: wp.array[wp.bool], copies: wp.array[RowCopy]) -> None:
    """Copy the rows of several arrays where either mask is set. One thread for each number of an environment."""
    env, column = wp.tid()
    if not (one[env] or other[env]):
        return
    at = wp.int32(0)
    while column >= copies[at].source.shape[1]:
        column -= copies[at].source.shape[1]
        at += 1
    copies[at].target[env, column] = copies[at].source[env, column]


@wp.kernel(enable_backward=False)
def keep_rows(
    divergences: wp.array[wp.int32],
    kept: wp.array[wp.int32],
    source: wp.array2d[wp.uint32],
    ring: wp.array3d[wp.uint32],
) -> None:
    """Copy each row to its environment's next slot in `ring`, (num_envs, slots, words), unless it has diverged.

    One thread for each word of 32 bits.
    """
    env, word = wp.tid()
    if divergences[env] == 0:
        ring[env, kept[env] % ring.shape[1], word] = source[env, word]


@wp.kernel(enable_backward=False)
def advance(
    done: wp.array[wp.bool],
    moved: wp.array[wp.bool],
    divergences: wp.array[wp.int32],
    kept: wp.array[wp.int32],
    begins: wp.array2d[wp.bool],
) -> None:
    """Advance to the next slot, and mark it where the state was written by kernels, and not by the physics."""
    env = wp.tid()
    if divergences[env] == 0:
        kept[env] = kept[env] + 1
        begins[env, kept[env] % begins.shape[1]] = done[env] or moved[env]
