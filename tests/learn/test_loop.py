"""The loop around rsl_rl's learner on one rank: counting, saving, stopping, going on, and refusing NaN."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.learners import ALONE, NUM_ENVS, NUM_STEPS, tiny_agent, tiny_config, tiny_loop, train
from support.tiny_env import TinyEnv

from shoal.config import ModelConfig, MujocoConfig, PpoConfig, RndConfig
from shoal.envs.capabilities import Capabilities
from shoal.errors import TrainingFailedError, UsageError
from shoal.heartbeat import Heartbeat
from shoal.learn.groups import World
from shoal.learn.loop import Totals
from shoal.learn.replicas import fingerprints
from shoal.tasks.cartpole.config import SwingupConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.learn.loop import TrainingLoop

SAMPLES = NUM_STEPS * NUM_ENVS


# Counting, saving and stopping


def test_a_single_worker_marks_each_mini_batch_as_progress() -> None:
    beat = Heartbeat()
    agent = tiny_agent(algorithm=PpoConfig(num_learning_epochs=3, num_mini_batches=2))
    loop = tiny_loop(tiny_config(max_iterations=1, agent=agent), world=World(beat=beat))
    marks: list[int] = []
    update = loop.learner.alg.update
    loop.learner.alg.update = lambda: (marks.append(beat.marks), update(), marks.append(beat.marks))[1]
    train(loop)
    assert marks[1] - marks[0] == 3 * 2


def test_every_iteration_is_told_once() -> None:
    loop = tiny_loop()
    story = train(loop)
    assert story.iterations == [1, 2, 3]
    assert [row["Train/total_steps"] for row in story.rows] == [SAMPLES, 2 * SAMPLES, 3 * SAMPLES]
    assert story.stopped_by is None
    assert loop.iteration == 3


def test_a_row_has_what_rsl_rl_logs_under_its_names() -> None:
    row = train(tiny_loop()).rows[-1]
    assert {
        "Train/mean_reward",
        "Train/mean_episode_length",
        "Loss/value",
        "Loss/surrogate",
        "Loss/entropy",
        "Loss/learning_rate",
        "Policy/mean_std",
        "Perf/total_fps",
        "Perf/collection_time",
        "Perf/learning_time",
        "Perf/collective_time",
        "/position",
    } <= row.keys()
    assert row["max_iterations"] == 3
    # A rollout of 8 steps of 4 environments, whose episodes last 10 steps at most, and which begin at random ages.
    assert 0 < row["Train/mean_episode_length"] <= 10
    assert row["Perf/collective_time"] == 0  # One rank asks nobody.
    assert row["Perf/total_fps"] == pytest.approx(SAMPLES / row["Perf/iteration_time"])


@pytest.mark.parametrize(
    ("max_iterations", "save_interval", "saved"),
    [(3, 2, [2, 3]), (4, 2, [2, 4]), (3, 50, [3]), (2, 1, [1, 2])],
)
def test_checkpoints_come_at_each_interval_and_at_the_end(
    max_iterations: int, save_interval: int, saved: list[int]
) -> None:
    config = tiny_config(max_iterations=max_iterations, agent=tiny_agent(save_interval=save_interval))
    assert list(train(tiny_loop(config)).saved) == saved


class Costly(Capabilities, TinyEnv):
    """Each step costs 1, and no episode fails: each return is minus its length."""

    def step(self, actions: torch.Tensor) -> Any:
        """Step as ever, but for the reward."""
        observations, rewards, dones, extras = super().step(0.0 * actions)
        return observations, torch.full_like(rewards, -1.0), dones, extras


class CostlyOnLevels(Costly):
    def curriculum(self) -> dict[str, np.ndarray]:
        """Return how many environments are on each of three levels."""
        return {"levels": np.array([1, 2, 1])}


def scores(env: TinyEnv, iterations: int = 4) -> list[tuple[str | None, float | None]]:
    """Train, and return by which metric each checkpoint was scored, and its score."""
    saved: list[Any] = []
    config = tiny_config(max_iterations=iterations, agent=tiny_agent(save_interval=1))
    tiny_loop(config, env=env).train(on_row=lambda _: None, save=saved.append, stop_requests=dict)
    return [(each.metadata.get("metric"), each.metadata["score"]) for each in saved]


def test_the_best_is_chosen_by_whole_episodes() -> None:
    # They begin at random ages: those that are cut short cost least, and would make the first checkpoint the best.
    found = scores(Costly())
    assert {score for _, score in found} <= {None, -10.0}
    assert found[-1] == ("Train/mean_whole_reward", -10.0)


def test_a_checkpoint_that_is_scored_by_a_return_tells_what_the_return_counts() -> None:
    config = replace(tiny_config(max_iterations=1), env=SwingupConfig(swung_up_weight=3.0))
    told: dict[str | None, Any] = {}
    for best_metric in (None, "/position"):
        env, saved = Costly(), list[Any]()
        env.best_metric = best_metric
        tiny_loop(config, env=env).train(on_row=lambda _: None, save=saved.append, stop_requests=dict)
        told[saved[-1].metadata["metric"]] = saved[-1].metadata["counted"]
    assert told["Train/mean_whole_reward"]["env.swung_up_weight"] == 3.0
    assert "env.engine" not in told["Train/mean_whole_reward"]
    assert told["/position"] is None


def test_with_a_curriculum_only_the_metric_that_the_task_names_is_compared() -> None:
    env = CostlyOnLevels()
    assert scores(env) == [(None, None)] * 4
    env.best_metric = "/position"
    assert all(metric == "/position" and score is not None for metric, score in scores(env))


def test_other_ranks_save_nothing() -> None:
    loop = tiny_loop(world=World(rank=1))
    assert list(train(loop).saved) == []


def test_a_request_to_stop_is_heard_after_the_iteration_and_its_checkpoint() -> None:
    requests = iter([False, True])
    loop = tiny_loop(tiny_config(max_iterations=50, agent=tiny_agent(save_interval=50)))
    story = train(loop, lambda: {"SIGINT": False, "SIGTERM": next(requests)})
    assert story.stopped_by == "SIGTERM"
    assert story.iterations == [1, 2]
    assert list(story.saved) == [2]


def test_a_run_that_is_done_was_not_stopped() -> None:
    story = train(tiny_loop(tiny_config(max_iterations=1)), lambda: {"SIGINT": True})
    assert story.stopped_by is None
    assert list(story.saved) == [1]


def test_nothing_is_done_when_all_iterations_are_done() -> None:
    loop = tiny_loop()
    loop.iteration = 3
    story = train(loop)
    assert story.rows == []
    assert story.saved == {}


def test_what_the_library_prints_goes_to_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="shoal"):
        tiny_loop()
    assert capsys.readouterr().out == ""
    assert "Actor Model:" in caplog.text


# The same again


def story_of(loop: TrainingLoop) -> tuple[list[dict[str, float]], dict[str, int]]:
    """All that a training tells but for times, and the bits of what it learned."""
    rows = [{name: value for name, value in row.items() if "time" not in name} for row in train(loop).rows]
    for row in rows:
        del row["Perf/total_fps"]
    return rows, fingerprints(loop.learner)


def test_the_same_seed_gives_the_same_bits() -> None:
    # 64-bit sums of rewards, 32-bit weights: on one thread there is one order to add them up in.
    assert story_of(tiny_loop(seed=3)) == story_of(tiny_loop(seed=3))


def test_another_seed_gives_other_weights() -> None:
    assert story_of(tiny_loop(seed=3)) != story_of(tiny_loop(seed=4))


@pytest.mark.parametrize("rnn_type", ["lstm", "gru"])
def test_recurrent_networks_train(rnn_type: Any) -> None:
    recurrent = {"class_name": "RNNModel", "rnn_hidden_dim": 4, "rnn_type": rnn_type, "hidden_dims": (8,)}
    actor = ModelConfig(**recurrent, distribution=tiny_agent().actor.distribution)
    agent = tiny_agent(actor=actor, critic=ModelConfig(**recurrent))
    assert story_of(tiny_loop(tiny_config(agent=agent))) == story_of(tiny_loop(tiny_config(agent=agent)))


# Going on


def test_a_restored_learner_is_the_saved_one() -> None:
    first = tiny_loop()
    story = train(first)
    second = tiny_loop(tiny_config(max_iterations=5), seed=9)
    assert fingerprints(second.learner) != fingerprints(first.learner)
    second.restore(dict(story.saved[3]))
    # Weights, normalisers, moments and both learning rates, by their bits.
    assert fingerprints(second.learner) == fingerprints(first.learner)
    assert second.iteration == 3
    assert second.totals == first.totals
    assert first.learner.alg.learning_rate != pytest.approx(
        0.001
    )  # Where the schedule began, and where a new one would.


def test_a_restored_run_repeats_no_iteration_and_goes_on_counting() -> None:
    first = tiny_loop(tiny_config(max_iterations=2))
    before = train(first)
    second = tiny_loop(tiny_config(max_iterations=5))
    second.restore(dict(before.saved[2]))
    story = train(second)
    assert story.iterations == [3, 4, 5]
    assert list(story.saved) == [4, 5]
    assert [row["Train/total_steps"] for row in story.rows] == [3 * SAMPLES, 4 * SAMPLES, 5 * SAMPLES]
    assert story.rows[0]["Train/total_time"] > before.rows[-1]["Train/total_time"]
    assert story.rows[0]["Train/total_episodes"] >= before.rows[-1]["Train/total_episodes"] > 0


class Leveled(Capabilities, TinyEnv):
    """Environments that have levels, and remember what they were told of them."""

    def __init__(self, levels: list[int]) -> None:
        """Begin on those."""
        super().__init__()
        self.levels = np.array(levels)
        self.taken: dict[str, list[float]] = {}

    def curriculum(self) -> dict[str, np.ndarray]:
        """Return how many environments are on each of three levels."""
        return {"levels": np.bincount(self.levels, minlength=3)}

    def set_curriculum(self, counts: Mapping[str, np.ndarray]) -> None:
        """Remember."""
        self.taken = {name: count.tolist() for name, count in counts.items()}


def test_a_curriculum_goes_on_where_it_was() -> None:
    saved = train(tiny_loop(env=Leveled([0, 2, 2, 1]))).saved[3]
    assert saved["infos"]["curriculum"] == {"levels": [1.0, 1.0, 2.0]}
    env = Leveled([0, 0, 0, 0])
    tiny_loop(env=env).restore(dict(saved), weights_only=True)
    assert env.taken == {}, "weights alone begin a new training"
    tiny_loop(env=env).restore(dict(saved))
    assert env.taken == {"levels": [1.0, 1.0, 2.0]}
    tiny_loop().restore(dict(saved))  # A task that has none, by now.


def test_steps_are_numbered_over_the_whole_run() -> None:
    steps: list[int] = []
    first = tiny_loop(tiny_config(max_iterations=2))
    first.train(on_row=lambda _: None, save=lambda *_: None, stop_requests=dict, on_step=steps.append)
    second = tiny_loop(tiny_config(max_iterations=3))
    second.restore(first.state())
    second.train(on_row=lambda _: None, save=lambda *_: None, stop_requests=dict, on_step=steps.append)
    assert steps == list(range(3 * NUM_STEPS))


def test_a_saved_state_counts_iterations_as_rsl_rl_does() -> None:
    loop = tiny_loop()
    story = train(loop)
    assert story.saved[3]["iter"] == 2  # The last one done, from 0.


def test_weights_alone_start_a_new_run() -> None:
    story = train(tiny_loop())
    fresh = tiny_loop(seed=9)
    fresh.restore(dict(story.saved[3]), weights_only=True)
    assert torch.equal(
        fresh.learner.alg.actor.get_parameter("mlp.0.weight"), story.saved[3]["actor_state_dict"]["mlp.0.weight"]
    )
    assert fresh.learner.alg.actor.obs_normalizer.get_buffer("count") == 3 * SAMPLES
    assert fresh.learner.alg.optimizer.state_dict()["state"] == {}
    assert fresh.learner.alg.learning_rate == 0.001
    assert fresh.iteration == 0
    assert fresh.totals == Totals()


def test_a_state_of_other_networks_is_refused_with_its_shapes() -> None:
    story = train(tiny_loop())
    larger = tiny_loop(tiny_config(agent=tiny_agent(critic=ModelConfig(hidden_dims=(16,), obs_normalization=True))))
    expected = "the network 'critic' of this training: its 'mlp.0.weight' is 16x5, and in the checkpoint 8x5. Pass"
    with pytest.raises(UsageError, match=expected):
        larger.restore(dict(story.saved[3]))


@pytest.mark.parametrize("missing", ["critic_state_dict", "optimizer_state_dict", "iter"])
def test_a_state_without_a_part_is_refused(missing: str) -> None:
    state = dict(train(tiny_loop()).saved[3])
    del state[missing]
    with pytest.raises(TrainingFailedError, match=missing):
        tiny_loop().restore(state)


def test_moments_of_other_weights_are_refused_before_an_update_breaks_on_them() -> None:
    state = copy.deepcopy(dict(train(tiny_loop()).saved[3]))
    moments = state["optimizer_state_dict"]["state"][0]
    moments["exp_avg"] = moments["exp_avg"].unsqueeze(0)
    with pytest.raises(TrainingFailedError, match=r"does not fit .*exp_avg of optimizer has the shape \(1, "):
        tiny_loop().restore(state)


def test_moments_that_some_weights_lack_are_refused_before_an_update_breaks_on_them() -> None:
    state = copy.deepcopy(dict(train(tiny_loop()).saved[3]))
    del state["optimizer_state_dict"]["state"][1]["exp_avg"]
    with pytest.raises(TrainingFailedError, match=r"does not fit .*optimizer has \['step', 'exp_avg_sq'\] for some"):
        tiny_loop().restore(state)


@pytest.mark.parametrize("infos", [None, {}, {"env_state": {"common_step_counter": 5}}, "a word"])
def test_infos_of_others_are_passed_over(infos: Any) -> None:
    state = dict(train(tiny_loop()).saved[3]) | {"infos": infos}
    loop = tiny_loop()
    loop.restore(state)
    assert loop.iteration == 3
    assert loop.totals == Totals()


def test_rnd_is_logged_saved_and_restored() -> None:
    rnd = RndConfig(enabled=True, weight=2.0, state_normalization=True, reward_normalization=True)
    groups = {"actor": ("policy",), "critic": ("policy",), "rnd_state": ("privileged",)}
    agent = tiny_agent(obs_groups=groups, algorithm=PpoConfig(rnd=rnd))
    first = tiny_loop(tiny_config(agent=agent))
    story = train(first)
    assert story.rows[-1]["Rnd/weight"] == pytest.approx(2.0 * 0.02)  # rsl_rl multiplies it by TinyEnv's step_dt.
    assert story.rows[-1]["Rnd/reward"] > 0
    assert story.rows[-1]["Train/mean_reward"] <= 10  # The environment's own, at most 1 a step.
    second = tiny_loop(tiny_config(agent=agent), seed=9)
    second.restore(dict(story.saved[3]))
    assert fingerprints(second.learner) == fingerprints(first.learner)
    # A checkpoint without RND is good enough to start it.
    plain = {name: value for name, value in story.saved[3].items() if not name.startswith("rnd")}
    tiny_loop(tiny_config(agent=agent)).restore(plain)


# NaN


class Spoiled(TinyEnv):
    """Spoils what the step of that number returns."""

    def __init__(self, number: int, spoil: Callable[[Any, torch.Tensor], None]) -> None:
        super().__init__(num_envs=NUM_ENVS)
        self.left = number
        self.spoil = spoil

    def step(self, actions: torch.Tensor) -> Any:
        """Step as ever, and spoil what comes of it."""
        observations, rewards, dones, extras = super().step(actions)
        self.left -= 1
        if self.left == 0:
            self.spoil(observations, rewards)
        return observations, rewards, dones, extras


def spoil_reward(_: Any, rewards: torch.Tensor) -> None:
    rewards[3] = torch.inf


def spoil_observation(observations: Any, _: torch.Tensor) -> None:
    observations["privileged"][2, 1] = torch.nan


@pytest.mark.parametrize(
    ("number", "spoil", "what"),
    [
        (NUM_STEPS + 2, spoil_reward, "The rewards of environments 3 on rank 1"),
        (NUM_STEPS + 2, spoil_observation, "The observation group 'privileged' of environments 2 on rank 1"),
        # After the last step of the second rollout: only its returns look at these.
        (2 * NUM_STEPS, spoil_observation, "The observation group 'privileged' of environments 2 on rank 1"),
    ],
)
def test_nan_ends_the_training_before_it_reaches_a_weight(
    number: int, spoil: Callable[[Any, torch.Tensor], None], what: str
) -> None:
    loop = tiny_loop(env=Spoiled(number, spoil), world=World(rank=1))
    after_first: list[dict[str, int]] = []

    def keep(_: Any) -> None:
        after_first.append(fingerprints(loop.learner))

    with pytest.raises(TrainingFailedError, match=f"{what} held NaN or infinity in iteration 2, and no gradient step"):
        loop.train(on_row=keep, save=lambda *_: None, stop_requests=dict)
    assert after_first == [fingerprints(loop.learner)]
    assert loop.iteration == 1


class Diverging(Capabilities, TinyEnv):
    """Some environments diverge in each rollout, with a warning."""

    def __init__(self, count: int) -> None:
        super().__init__(num_envs=NUM_ENVS)
        self.count = count

    def take_warnings(self) -> tuple[int, dict[str, str]]:
        """Return the number of divergences, and the warning."""
        return self.count, {"contacts": f"{self.count} environments had more contacts than there is room for."}


def test_divergences_are_counted_and_each_kind_of_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    config = tiny_config(env=MujocoConfig(diverged_limit=0.5))
    story = train(tiny_loop(config, env=Diverging(2)))
    assert [row["Env/diverged"] for row in story.rows] == [2, 2, 2]
    messages = [record.getMessage() for record in caplog.records if "contacts" in record.getMessage()]
    assert messages == ["On rank 0, 2 environments had more contacts than there is room for."]


def test_too_many_lost_environments_end_the_training() -> None:
    loop = tiny_loop(tiny_config(env=MujocoConfig(diverged_limit=0.5)), env=Diverging(4))
    with pytest.raises(TrainingFailedError, match=r"^4 of 4 environments diverged .* iteration 1, more than .* 0\.5"):
        train(loop)


def test_a_task_that_loses_nothing_has_no_such_metric() -> None:
    assert "Env/diverged" not in train(tiny_loop()).rows[-1]


@pytest.mark.parametrize("check_for_nan", [True, False])
def test_who_does_not_look_for_nan_gets_none_refused(*, check_for_nan: bool) -> None:
    # In a group that no network sees, so that it does no other harm.
    agent = tiny_agent(check_for_nan=check_for_nan, obs_groups={"actor": ("policy",), "critic": ("policy",)})
    loop = tiny_loop(tiny_config(agent=agent), env=Spoiled(2, spoil_observation))
    if check_for_nan:
        with pytest.raises(TrainingFailedError, match="'privileged'"):
            train(loop)
    else:
        assert train(loop).iterations == [1, 2, 3]


def test_rewards_too_large_to_square_end_the_training_before_a_checkpoint() -> None:
    def spoil(_: Any, rewards: torch.Tensor) -> None:
        rewards.fill_(1e30)  # Its square is infinite in single precision.

    loop = tiny_loop(tiny_config(agent=tiny_agent(save_interval=1)), env=Spoiled(NUM_STEPS + 1, spoil))
    saved: list[int] = []
    with pytest.raises(TrainingFailedError, match=r"Learning diverged in iteration 2: a loss is .*\(value inf"):
        loop.train(on_row=lambda _: None, save=lambda snapshot: saved.append(snapshot.iteration), stop_requests=dict)
    assert saved == [1]


def test_weights_that_an_update_spoils_are_told_and_not_what_torch_says_of_them() -> None:
    loop = tiny_loop(tiny_config(agent=tiny_agent(algorithm=PpoConfig(learning_rate=1e30, schedule="fixed"))))
    with pytest.raises(TrainingFailedError, match="Learning diverged in iteration 1: the weights are NaN or infinite"):
        train(loop)


def test_other_failures_of_an_update_keep_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tiny_loop()

    def fail() -> None:
        message = "Connection closed by peer"
        raise RuntimeError(message)

    monkeypatch.setattr(loop.learner.alg, "update", fail)
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        train(loop)


# One rank of a world


def test_the_library_is_told_about_the_other_ranks() -> None:
    loop = tiny_loop(world=World(rank=3, local_rank=1, size=4))
    assert loop.learner.alg.is_multi_gpu
    assert loop.learner.alg.gpu_world_size == 4
    assert loop.learner.alg.gpu_global_rank == 3
    assert loop.learner.cfg["multi_gpu"] == {"global_rank": 3, "local_rank": 1, "world_size": 4}


def test_one_rank_alone_needs_no_group_to_synchronise() -> None:
    loop = tiny_loop(world=ALONE)
    before = copy.deepcopy(fingerprints(loop.learner))
    loop.synchronize()
    assert fingerprints(loop.learner) == before
    assert loop.learner.cfg["multi_gpu"] is None


def test_a_time_out_adds_the_value_of_the_observation_before_the_last_step() -> None:
    # docs/tasks/gymnasium_v5.md says so. rsl_rl has no other: what follows is of the next episode.
    loop = tiny_loop()
    observations = loop.env.get_observations()
    with torch.inference_mode():
        loop.env.step(loop.learner.alg.act(observations))
        values = loop.learner.alg.storage.values[0].squeeze(1).clone()
        cut_off = torch.tensor([True, False, True, False])
        later = loop.env.get_observations()
        loop.learner.alg.process_env_step(later, torch.ones(NUM_ENVS), cut_off, {"time_outs": cut_off})
    assert values.abs().min() > 0
    torch.testing.assert_close(
        loop.learner.alg.storage.rewards[0, :, 0], 1.0 + loop.learner.alg.gamma * values * cut_off
    )


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("actor_state_dict", "word"),
        ("critic_state_dict", [1]),
        ("optimizer_state_dict", {"state": "word"}),
        ("optimizer_state_dict", 5),
        ("infos", {"totals": "word"}),
        ("infos", {"totals": {"steps": "many"}}),
        ("infos", {"totals": {}, "statistics": "word"}),
        ("infos", {"totals": {}, "statistics": {"window": 5}}),
        ("infos", {"totals": {}, "statistics": {"names": 5}}),
        ("infos", {"totals": {}, "curriculum": 5}),
        ("learner", 5),
    ],
)
def test_a_state_of_something_else_is_refused_in_a_sentence(part: str, value: Any) -> None:
    state = dict(train(tiny_loop()).saved[3]) | {part: value}
    with pytest.raises((TrainingFailedError, UsageError), match=r"^The checkpoint "):
        tiny_loop().restore(state)
