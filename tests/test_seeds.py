"""Seeds of ranks, iterations and episodes: streams of consecutive seeds have nothing in common."""

from __future__ import annotations

import numpy as np
from support.learners import tiny_config, tiny_loop

from shoal.learn.groups import World
from shoal.seeds import derived_seed


def test_rank_0_has_the_seed_itself() -> None:
    assert derived_seed(42) == derived_seed(42, 0) == derived_seed(42, 0, 0) == 42


def test_it_is_numpy_s_hash() -> None:
    assert derived_seed(42, 1) == int(np.random.SeedSequence((42, 1)).generate_state(1, np.uint32)[0]) // 2


def test_no_two_ranks_of_nearby_runs_share_a_stream() -> None:
    seeds = [
        derived_seed(seed, rank, iteration) for seed in range(20) for rank in range(16) for iteration in (0, 1, 150)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)  # What Warp's kernels and torch take.


def test_a_training_s_loop_seeds_rank_and_iteration() -> None:
    loops = {
        (seed, rank): tiny_loop(tiny_config(seed=seed), world=World(rank=rank)) for seed in (42, 43) for rank in (0, 1)
    }
    assert [loops[42, 0].seed, loops[43, 0].seed] == [42, 43]
    assert len({loop.seed for loop in loops.values()}) == 4
    loop = loops[42, 0]
    loop.iteration = 3
    assert loop.seed == derived_seed(42, 0, 3)
