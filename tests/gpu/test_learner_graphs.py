"""Steps and updates of learners as CUDA graphs: the numbers that single kernels give, few launches, and no graphs."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import emulated_gpu
from support.learner_agents import AGENTS
from support.learners import loop_on, tiny_config
from support.tiny_env import TinyEnv

from shoal.config import RndConfig, SymmetryConfig
from shoal.learn.graphs import TensorGraph
from shoal.learn.groups import World
from shoal.sim.isolation import isolated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.learners import RslRlLoop

    from shoal.learn.loop import TrainingLoop

pytestmark = pytest.mark.emulated_gpu

GPU = "cuda:1"


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """This process as rank of GPU 1."""
    with isolated(GPU):
        yield


def state() -> Any:
    """The emulated machine's side of torch."""
    return emulated_gpu.machine().torch


@pytest.fixture(autouse=True)
def no_launches() -> None:
    """No launch so far."""
    state().launches.clear()


def trained(algorithm: dict[str, Any], **changes: Any) -> RslRlLoop:
    """A training of four iterations."""
    config = tiny_config(max_iterations=4)
    agent: Any = config.agent
    algorithm = dataclasses.replace(agent.algorithm, **algorithm)
    groups = {**agent.obs_groups, "rnd_state": ("policy",)}
    agent = dataclasses.replace(agent, algorithm=algorithm, obs_groups=groups, **changes)
    loop = loop_on(TinyEnv(device=GPU), dataclasses.replace(config, agent=agent), World(device=GPU))
    loop.train(on_row=lambda _: None, save=lambda _: None, stop_requests=dict)
    return loop


def trained_fast_sac(**changes: Any) -> TrainingLoop:
    """A training of 12 iterations, in which all episodes are cut off in each step, long before their time is up."""
    agent = dataclasses.replace(AGENTS["fast_sac"], replay_steps=8, **changes)
    env = TinyEnv(device=GPU)
    env.max_episode_length, step = 1000, env.step

    def step_with_final(actions: torch.Tensor) -> Any:
        observations, rewards, dones, extras = step(actions)
        cut, final = torch.ones_like(dones), observations.apply(lambda rows: rows + 1)
        return observations, rewards, cut, extras | {"time_outs": cut, "final_observation": final}

    env.step = step_with_final
    config = tiny_config(max_iterations=7, learner="fast_sac", agent=agent)
    loop = loop_on(env, config, World(device=GPU))
    loop.train(on_row=lambda _: None, save=lambda _: None, stop_requests=dict)
    return loop


def numbers(loop: TrainingLoop) -> dict[str, list[Any]]:
    """Everything that is learned."""
    return {name: each.tolist() for name, each in loop.learner.replicated()}


MIRRORED = SymmetryConfig(
    enabled=True,
    data_augmentation_func="support.tiny_env:mirror",
    use_data_augmentation=True,
    use_mirror_loss=True,
    mirror_loss_coeff=0.1,
)


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"schedule": "fixed", "normalize_advantage_per_mini_batch": True, "optimizer": "adamw"},
        {"rnd": RndConfig(enabled=True, weight=1.0, state_normalization=True)},
        {"symmetry": MIRRORED},
        {"optimizer": "sgd"},
    ],
)
def test_graphs_learn_what_the_same_operations_learn_one_by_one(algorithm: dict[str, Any]) -> None:
    captured, launches = trained(algorithm), state().launches["graph"]
    plain = trained(algorithm, cuda_graphs=False)
    assert numbers(captured) == numbers(plain)
    assert launches > 0
    assert state().launches["graph"] == launches
    assert emulated_gpu.machine().violations == []


def test_a_resumed_training_learns_in_graphs_what_it_learns_one_by_one() -> None:
    def resumed(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        first = trained({}, **changes)
        config = dataclasses.replace(first.config, max_iterations=8)
        loop = loop_on(TinyEnv(device=GPU), config, World(device=GPU))
        loop.restore(first.state())
        before = numbers(loop)
        loop.train(on_row=lambda _: None, save=lambda _: None, stop_requests=dict)
        return before, numbers(loop)

    before, after = resumed()
    assert before != after
    assert (before, after) == resumed(cuda_graphs=False)
    assert [name for name, each in after.items() if "mlp" in name and each == before[name]] == []


def test_rmsprop_which_reads_its_learning_rate_back_is_not_captured(caplog: pytest.LogCaptureFixture) -> None:
    trained({"optimizer": "rmsprop"})
    assert state().launches["graph"] == 0
    assert caplog.records == []


def test_a_capture_that_fails_costs_one_warning_and_the_training_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = numbers(trained({}, cuda_graphs=False))
    monkeypatch.setattr(state(), "settings", dataclasses.replace(state().settings, can_instantiate=False))
    with caplog.at_level(logging.WARNING):
        assert numbers(trained({})) == plain
    assert [record.message for record in caplog.records] == [
        f"{what} cannot be captured as a CUDA graph (CUDA error: out of memory): its kernels are launched one by one, "
        "which is slower."
        for what in ("A step of the policy", "An update from a mini-batch")
    ]


def test_a_function_that_waits_for_the_device_is_not_captured(caplog: pytest.LogCaptureFixture) -> None:
    total = torch.zeros(1, device=GPU)

    def add_one() -> None:
        total.add_(1.0)
        assert total.item() > 0.0

    function = TensorGraph(add_one, GPU, name="A sum")
    for _ in range(5):
        function()
    assert total.item() == 5.0
    assert [record.message for record in caplog.records] == [
        (
            "A sum cannot be captured as a CUDA graph (CUDA error: operation not permitted when stream is capturing "
            "(item)): its kernels are launched one by one, which is slower."
        )
    ]


def test_a_mini_batch_is_two_launches_and_a_step_of_the_policy_one_more_than_its_observations() -> None:
    algorithm: Any = trained({}).learner.alg
    observations = algorithm._observations.clone()
    launches = state().launches
    launches.clear()
    with torch.inference_mode():
        algorithm.act(observations)
    assert dict(launches) == {"copy_.default": len(observations.keys()), "fill_.Scalar": 1, "graph": 1}
    launches.clear()
    algorithm._rows.copy_(algorithm._rows.flip(0))
    algorithm._update_graph()
    assert launches["graph"] == 1
    assert launches.total() == 3, launches


@pytest.mark.parametrize("changes", [{}, {"policy_delay": 1, "num_step_returns": 1}])
def test_graphs_of_fast_sac_learn_what_the_same_operations_learn_one_by_one(changes: dict[str, Any]) -> None:
    captured, launches = trained_fast_sac(**changes), state().launches["graph"]
    plain = trained_fast_sac(**changes, cuda_graphs=False)
    assert numbers(captured) == numbers(plain)
    assert launches > 0
    assert state().launches["graph"] == launches
    assert emulated_gpu.machine().violations == []


def test_a_step_of_fast_sac_is_few_launches_and_an_update_two() -> None:
    learner: Any = trained_fast_sac().learner
    launches = state().launches
    for graph in (learner._critic_graph, learner._both_graph):
        launches.clear()
        learner._rows.copy_(learner._rows.flip(0))
        graph()
        assert launches["graph"] == 1
        assert launches.total() == 3, launches
