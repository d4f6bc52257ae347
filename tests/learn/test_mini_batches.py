"""What rsl_rl's mini-batches hold, by its own generators, and what is refused because they would hold too little."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from rsl_rl.storage import RolloutStorage
from support.learners import tiny_agent
from tensordict import TensorDict

from shoal.config import ModelConfig, PpoConfig, RslRlConfig
from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

RECURRENT = ModelConfig(class_name="RNNModel", distribution=tiny_agent().actor.distribution)


def config(num_mini_batches: int, num_steps: int, *, recurrent: bool = False, **ppo: Any) -> RslRlConfig:
    networks: dict[str, Any] = {"actor": RECURRENT} if recurrent else {}
    algorithm = PpoConfig(num_mini_batches=num_mini_batches, **ppo)
    return RslRlConfig(num_steps_per_env=num_steps, algorithm=algorithm, **networks)


def batches(num_envs: int, num_steps: int, num_mini_batches: int, *, recurrent: bool = False) -> Sequence[Any]:
    """Mini-batches of one epoch, whose actions are numbers of the samples."""
    observations = TensorDict({"policy": torch.zeros(num_envs, 1)}, batch_size=[num_envs])
    storage = RolloutStorage("rl", num_envs, num_steps, observations, (1,))
    storage.distribution_params = ()
    storage.actions.copy_(torch.arange(num_steps * num_envs).view(num_steps, num_envs, 1))
    name = "recurrent_mini_batch_generator" if recurrent else "mini_batch_generator"
    return list(getattr(storage, name)(num_mini_batches, num_epochs=1))


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize(("num_envs", "num_steps", "number"), [(16, 24, 8), (4, 5, 2), (6, 3, 1)])
def test_the_plan_prints_the_size_of_rsl_rls_mini_batches(
    num_envs: int, num_steps: int, number: int, recurrent: bool
) -> None:
    agent = config(number, num_steps, recurrent=recurrent)
    agent.check_samples(num_envs)
    sizes = {batch.actions.numel() for batch in batches(num_envs, num_steps, number, recurrent=recurrent)}
    assert [agent.plan_entries(num_envs)] == [{"mini_batch_size": size} for size in sizes]


def test_the_plan_prints_the_samples_that_rsl_rl_leaves_out() -> None:
    found = batches(5, 5, 4)
    assert [batch.actions.numel() for batch in found] == [6, 6, 6, 6]
    assert 24 not in torch.cat([batch.actions for batch in found])  # The last of 0 to 24.
    assert config(4, 5).plan_entries(5) == {"mini_batch_size": 6, "samples_left_out": 1}


def test_a_recurrent_policy_would_learn_from_8_of_15_environments_and_is_refused() -> None:
    learned = torch.cat([batch.actions for batch in batches(15, 24, 8, recurrent=True)], dim=1)
    assert learned[0].flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(UsageError, match=r"8 was asked for, but a worker has 15 environments, .*: pass --num-envs 16,"):
        config(8, 24, recurrent=True).check_samples(15)
    config(8, 24, recurrent=True).check_samples(16)


def test_a_recurrent_mini_batch_of_one_environment_would_compare_each_step_with_all_and_is_refused() -> None:
    for num_envs, shape in ((4, (24, 2)), (2, (24, 24))):
        batch = batches(num_envs, 24, 2, recurrent=True)[0]
        new_log_prob = batch.actions.sum(dim=-1)  # As of a distribution, and then as in rsl_rl's loss:
        assert (new_log_prob - torch.squeeze(batch.old_actions_log_prob)).shape == shape
    with pytest.raises(UsageError, match=r"2 was asked for, but a worker has 2 environments, .*: pass --num-envs 4,"):
        config(2, 24, recurrent=True).check_samples(2)


def test_a_recurrent_policy_needs_two_steps() -> None:
    with pytest.raises(UsageError, match=r"per-env 1 was asked for, .*: pass 2 or more"):
        config(1, 1, recurrent=True).check_samples(2)
    config(1, 2, recurrent=True).check_samples(2)


def test_one_sample_has_no_standard_deviation_and_is_refused() -> None:
    assert torch.ones(1).std().isnan()
    with pytest.raises(UsageError, match="which takes two samples: pass more steps or environments"):
        config(1, 1).check_samples(1)
    config(1, 2).check_samples(1)
    config(1, 1).check_samples(2)


def test_advantages_of_each_mini_batch_are_normalised_only_if_it_has_two_samples() -> None:
    agent = config(4, 1, normalize_advantage_per_mini_batch=True)
    assert [batch.advantages.std().isnan().item() for batch in batches(4, 1, 4)] == [True] * 4
    with pytest.raises(UsageError, match=r"advantages of one sample cannot be normalised: pass .*-mini-batches 2 or"):
        agent.check_samples(4)
    agent.check_samples(8)
    config(4, 1).check_samples(4)
