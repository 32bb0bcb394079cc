"""Seeds of runs."""

import numpy as np

from tff_pfl.local.seeds import run_seed


def test_seeds_of_runs_are_all_their_own():
    """Small ones as they are; of large ones, every bit counts."""
    np.testing.assert_array_equal(run_seed(7, -1), [7, -1])
    seeds = [5, 5 + (1 << 31), 5 + (1 << 32), 5 + (1 << 61), 5 + (1 << 62), (1 << 63) - 1]
    assert len({tuple(run_seed(seed, 0).numpy()) for seed in seeds}) == len(seeds)
