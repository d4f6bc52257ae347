"""What is read from the metrics of a measured training."""

from __future__ import annotations

import pytest

from shoal.bench.training import checkpoint_costs, collective_part


def test_the_part_in_collectives_is_the_median_over_iterations() -> None:
    pairs = [(1.0, 4.0), (1.0, 2.0), (0.3, 1.0)]
    rows = [{"Perf/collective_time": inside, "Perf/iteration_time": whole} for inside, whole in pairs]
    assert collective_part(rows) == 0.3


def test_an_iteration_beside_a_checkpoint_is_compared_with_its_neighbours() -> None:
    # Checkpoints after 3, 6 and 9 iterations: the 4th and 7th run beside one, and the last has no second neighbour.
    seconds = [9.0, 2.0, 2.0, 2.2, 2.0, 1.0, 1.5, 2.0, 2.0, 5.0]
    assert checkpoint_costs(seconds, save_interval=3, warmup=1) == pytest.approx([0.1, 0.0])


def test_iterations_that_warm_up_are_not_compared() -> None:
    assert checkpoint_costs([1.0] * 8, save_interval=3, warmup=4) == [0.0]


def test_without_two_neighbours_beside_no_checkpoint_nothing_is_compared() -> None:
    assert checkpoint_costs([1.0] * 8, save_interval=2, warmup=1) == []
