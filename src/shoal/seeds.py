"""Seeds of random streams that have nothing in common, although users count seeds, ranks and episodes one by one."""

import numpy as np


def derived_seed(seed: int, *path: int) -> int:
    """Return the seed of one of the streams of `seed`, such as a rank's; `seed` itself where `path` is zeros.

    It is a hash, of 31 bits: with `seed + rank`, rank 1 of seed 42 would repeat rank 0 of seed 43. See
    `numpy.random.SeedSequence`.
    """
    return int(np.random.SeedSequence((seed, *path)).generate_state(1)[0] >> 1) if any(path) else seed
