"""Time until a return, of a real training, which ends when an evaluation has it."""

from __future__ import annotations

import pytest

from shoal.bench.until_return import train_until_return
from shoal.config import BenchConfig
from shoal.tasks import registry


@pytest.mark.soak
def test_a_training_is_measured_up_to_the_first_evaluation_with_the_return() -> None:
    config = BenchConfig(task="Cartpole-Balance", gpu_ids=("None",), num_envs=128, save_interval=2)
    found = train_until_return(config, registry.resolve("Cartpole-Balance"), workers=1, seed=42, wanted=5.0)
    assert found.is_reached
    assert found.mean_return >= 5
    assert found.iteration % 2 == 0
    assert found.steps == found.iteration * 128 * 32
    assert 1 < found.seconds < 120


@pytest.mark.soak
def test_a_return_that_no_policy_earns_is_not_reached() -> None:
    config = BenchConfig(task="Cartpole-Balance", gpu_ids=("None",), num_envs=16, save_interval=100)
    spec = registry.resolve("Cartpole-Balance")
    found = train_until_return(config, spec, workers=1, seed=42, wanted=1e6)
    assert not found.is_reached
    assert found.iteration == spec.max_iterations
