"""What two ranks do together, and four. They are started once; `support.learner_probes` is what they do."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

import pytest
from support.learner_agents import AGENTS
from support.learner_probes import SEED, run_invariance, run_probes
from support.ranks import run_on_ranks

from shoal.seeds import derived_seed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spawn


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both ranks write."""
    return tmp_path_factory.mktemp("two_ranks")


@pytest.fixture(scope="module")
def ranks(scratch: Path) -> list[dict[str, Any]]:
    """The report of each rank, by probe."""
    return run_on_ranks(2, run_probes, str(scratch))


# Collectives


def test_sum_and_maximum_are_taken_elementwise_over_ranks(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        assert report["collectives"]["sum"] == [0 + 1, 0 - 1]
        assert report["collectives"]["max"] == [1, 0]


def test_what_is_gathered_comes_by_rank(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        assert report["collectives"]["gathered"] == [[0, 0], [1, -1]]
        assert report["collectives"]["strings"] == [["größer", ""], ['"']]
        assert report["collectives"]["no_strings"] == [[], []]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the batch policy is Linux's")
def test_gloos_event_threads_wake_in_nobodys_place(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        policies = report["collectives"]["policies"]
        assert policies["gloo_tcp_loop"] == os.SCHED_BATCH
        assert policies["this"] == os.SCHED_OTHER


def test_the_group_is_closed_after_success(ranks: list[dict[str, Any]]) -> None:
    assert [report["group_is_closed"] for report in ranks] == [True, True]


# Statistics


def test_returns_and_lengths_are_pooled(ranks: list[dict[str, Any]]) -> None:
    # Rank 0: 1 + 2 in 2 steps and 10 + 20 + 30 in 3. Rank 1: 100 in 1, and 0 + 5 in 2.
    # Returns 3, 60, 100, 5: mean 168 / 4 = 42, mean square 13634 / 4 = 3408.5, variance 3408.5 - 42^2 = 1644.5.
    # Lengths 2, 3, 1, 2: mean 8 / 4 = 2, mean square 18 / 4 = 4.5, variance 0.5.
    for report in ranks:
        reported = report["statistics"]["means"][0]
        assert reported["Train/mean_reward"] == 42
        assert reported["Train/std_reward"] == pytest.approx(math.sqrt(1644.5))
        assert reported["Train/mean_episode_length"] == 2
        assert reported["Train/std_episode_length"] == pytest.approx(math.sqrt(0.5))
        assert report["statistics"]["episodes"] == [4, 1, 0, 0, 0]


def test_an_episode_that_began_in_an_earlier_iteration_counts_whole(ranks: list[dict[str, Any]]) -> None:
    # 3 + 4 in 1 + 1 steps joins the window: returns (168 + 7) / 5, lengths (8 + 2) / 5.
    for report in ranks:
        reported = report["statistics"]["means"][1]
        assert reported["Train/mean_reward"] == 35
        assert reported["Train/mean_episode_length"] == 2


def test_reward_terms_count_where_an_episode_ended(ranks: list[dict[str, Any]]) -> None:
    # 3 and 6 on rank 0, 10 and 1 on rank 1, and NaN everywhere else; then 0.
    for report in ranks:
        reported = [means["Episode_Reward/up"] for means in report["statistics"]["means"]]
        assert reported[:2] == [20 / 4, 20 / 5]


def test_log_values_of_all_ranks_are_averaged(ranks: list[dict[str, Any]]) -> None:
    # Nine values that add up to 3 * 6 on rank 0, and three that add up to 3 * 10 on rank 1.
    for report in ranks:
        first, second, *_ = report["statistics"]["means"]
        assert first["a/x"] == (18 + 30) / 12
        assert second["a/x"] == (0 + 1) / 2


def test_a_name_that_one_rank_alone_logs_is_told_on_all(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        first, second, *_ = report["statistics"]["means"]
        assert first["b/only_here"] == 4
        assert "b/only_here" not in second


def test_a_name_that_appears_late_is_told_from_there_on(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        reported = [means.get("Episode/late") for means in report["statistics"]["means"]]
        assert reported == [None, None, 7, None, (8 + 10) / 2]


def test_a_rank_that_comes_early_spends_the_wait_in_collectives(ranks: list[dict[str, Any]]) -> None:
    first, second = (report["collectives"] for report in ranks)
    assert first["spent"] >= second["came"] - first["came"]


def test_each_row_has_the_time_that_its_iteration_spent_in_collectives(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        for row in report["training"]["rows"]:
            assert 0 < row["Perf/collective_time"] < row["Perf/iteration_time"]


def test_losses_and_timings_are_means_over_ranks(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        reported = report["statistics"]["means"][0]
        assert reported["Loss/value"] == (1 + 3) / 2
        assert reported["Perf/collection_time"] == (1 + 3) / 2
        assert reported["Perf/learning_time"] == (2 + 6) / 2
        assert reported["Perf/collective_time"] == (0.5 + 2.5) / 2
        assert report["statistics"]["rank_seconds"] == [1, 3]


def test_every_rank_learns_what_all_have_counted(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        assert report["statistics"]["counts"] == {"SIGINT": 0, "SIGTERM": 1, "lost": 2 + 3}


def test_statistics_cost_one_collective_unless_there_is_a_new_name(ranks: list[dict[str, Any]]) -> None:
    # With a new name: the sums, the lengths of the names, the names, and the sums of the new ones.
    for report in ranks:
        assert report["statistics"]["collectives"] == [4, 1, 4, 1, 1]
        assert report["training"]["pool_collectives"] == [4, 1, 1]


# Replicas


def test_unlike_first_weights_are_noticed(ranks: list[dict[str, Any]]) -> None:
    expected = (
        "Replicas diverged before the first broadcast: 'actor.mlp.0.weight' on rank 1 differs from rank 0. "
        "Training on would average gradients of unlike policies: resume from the last checkpoint."
    )
    assert [report["replicas"]["before"] for report in ranks] == [expected, expected]


def test_synchronising_gives_all_ranks_the_weights_of_rank_0(ranks: list[dict[str, Any]]) -> None:
    first, second = (report["replicas"]["weights_were_sent"] for report in ranks)
    assert all(first.values())
    assert not second["actor.mlp.0.weight"]
    assert not second["critic.mlp.0.weight"]


def test_like_replicas_have_one_digest_at_the_cost_of_one_collective(ranks: list[dict[str, Any]]) -> None:
    first, second = (report["replicas"] for report in ranks)
    assert first["digest"] == second["digest"] == first["digest_after_repair"] == second["digest_after_repair"]
    assert first["collectives"] == second["collectives"] == 1


@pytest.mark.parametrize(
    ("fault", "tensor"),
    [
        ("one unit in the last place", "actor.mlp.0.weight"),
        ("two weights exchanged", "critic.mlp.0.weight"),
        ("a normaliser", "actor.obs_normalizer._mean"),
        ("a count", "critic.obs_normalizer.count"),
        ("a moment", "optimizer.0.exp_avg"),
        ("a moment that is missing", "optimizer.8.step"),
        ("the optimizer's learning rate", "optimizer.learning_rate"),
        ("the schedule's learning rate", "learning_rate"),
    ],
)
def test_a_fault_of_one_rank_is_named_on_both(fault: str, tensor: str, ranks: list[dict[str, Any]]) -> None:
    reported = [report["replicas"]["faults"][fault] for report in ranks]
    start = f"ReplicasDivergedError: Replicas diverged after iteration 7: '{tensor}' on rank 1 differs from rank 0."
    assert reported[0].startswith(start)
    assert reported[0] == reported[1]


@pytest.mark.parametrize("agent", AGENTS)
def test_every_learner_is_the_same_on_both_ranks_and_a_diverged_one_is_found(
    agent: str, ranks: list[dict[str, Any]]
) -> None:
    (digest, found), other = (report["learners"][agent] for report in ranks)
    assert other == [digest, found]
    assert found.startswith("Replicas diverged after iteration 7: '")
    assert "on rank 1 differs from rank 0." in found


def test_the_gradient_of_rl_games_central_critic_is_the_mean_of_both_ranks(ranks: list[dict[str, Any]]) -> None:
    first, second = (report["central_value"] for report in ranks)
    assert first["averaged"] == second["averaged"] == pytest.approx(first["mean"])
    assert any(first["averaged"])


@pytest.mark.parametrize(("agent", "correction"), [("skrl", 1), ("skrl_jax", 0), ("rl_games", 1)])
def test_advantages_have_the_mean_0_and_the_deviation_1_over_both_ranks(
    agent: str, correction: int, ranks: list[dict[str, Any]]
) -> None:
    moments = [report["advantages"][agent] for report in ranks]
    count, total, squares = (sum(column) for column in zip(*moments, strict=True))
    assert total / count == pytest.approx(0, abs=1e-6)
    assert squares / (count - correction) == pytest.approx(1, abs=1e-5)
    # Normalised by each rank, both sums would be 0.
    assert abs(moments[0][1]) > 0.1


# Training


def test_gradients_are_averaged(ranks: list[dict[str, Any]]) -> None:
    assert [report["gradients"] for report in ranks] == [[1.5], [1.5]]


@pytest.mark.parametrize(
    "what", ["gradients", "normaliser", "normaliser_count", "learning_rate", "digest", "iteration", "samples"]
)
def test_after_training_both_ranks_hold_the_same(what: str, ranks: list[dict[str, Any]]) -> None:
    first, second = (report["training"][what] for report in ranks)
    assert first == second


def test_the_normaliser_has_seen_the_samples_of_both_ranks(ranks: list[dict[str, Any]]) -> None:
    reported = ranks[0]["training"]
    assert reported["normaliser_count"] == 3 * 2 * reported["samples"]


def test_the_learning_rate_has_moved(ranks: list[dict[str, Any]]) -> None:
    # Else its being the same everywhere would say nothing. It begins at 0.001.
    assert ranks[0]["training"]["learning_rate"] != pytest.approx(0.001)


@pytest.mark.parametrize("what", ["gradients", "normaliser", "learning_rate"])
def test_one_collective_a_mini_batch_teaches_what_the_library_s_three_do(
    what: str, ranks: list[dict[str, Any]]
) -> None:
    def numbers(nested: Any) -> list[float]:
        return [each for part in nested for each in numbers(part)] if isinstance(nested, list) else [nested]

    for report in ranks:
        # The library sends the learning rate as a 32-bit number.
        assert numbers(report["training"][what]) == pytest.approx(numbers(report["stock_training"][what]), rel=1e-4)


def flat(nested: Any) -> list[float]:
    """All numbers in nested lists."""
    return [each for part in nested for each in flat(part)] if isinstance(nested, list) else [nested]


LEARNED = ["advantages", "gradients", "parameters", "means", "variances", "learning_rate"]


@pytest.fixture(scope="module")
def invariance(ranks: list[dict[str, Any]], scratch: Path) -> dict[int, list[dict[str, Any]]]:
    """What one rollout has taught each of two workers and each of four, alone and together."""
    return {2: [report["invariance"] for report in ranks], 4: run_on_ranks(4, run_invariance, str(scratch), 4)}


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("what", LEARNED)
def test_several_workers_learn_from_a_rollout_what_one_would(
    what: str, workers: int, invariance: dict[int, list[dict[str, Any]]]
) -> None:
    # Sums over other shares of the samples are rounded differently, and Adam's first step divides by the gradient.
    for report in invariance[workers]:
        alone, together = (flat(report[name][what]) for name in ("alone", "together"))
        assert together == pytest.approx(alone, rel=1e-4, abs=1e-6)
        assert any(alone), "it says something"
    assert len(invariance[workers]) == workers


@pytest.mark.parametrize("what", LEARNED[1:])
def test_one_two_and_four_workers_learn_the_same_from_a_rollout(
    what: str, invariance: dict[int, list[dict[str, Any]]]
) -> None:
    one, two, four = (
        flat(invariance[workers][0][name][what]) for workers, name in ((2, "alone"), (2, "together"), (4, "together"))
    )
    assert two == pytest.approx(one, rel=1e-4, abs=1e-6)  # As above.
    assert four == pytest.approx(one, rel=1e-4, abs=1e-6)


def test_two_collectives_a_mini_batch_are_saved_and_five_in_two_normalisers(ranks: list[dict[str, Any]]) -> None:
    iterations, epochs, mini_batches = 3, 2, 2
    for report in ranks:
        saved = report["stock_training"]["collectives"] - report["training"]["collectives"]
        assert saved == iterations * (2 * epochs * mini_batches + 5)


def test_the_collectives_of_an_iteration_are_counted_and_timed(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        measured = report["distance"]["measured"]
        assert measured["collectives"] == report["distance"]["last_iteration"]
        assert measured["communication"] > 2 * 2 * measured["gradient"] > 0  # Epochs times mini-batches.
        assert measured["latency"] > 0


def test_the_gradient_that_is_timed_is_as_long_as_the_learners(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        numbers = sum(len(gradient) for gradient in report["training"]["gradients"])
        assert report["distance"]["measured"]["bytes"] == 4 * (numbers + 1)


def test_totals_are_those_of_the_whole_job(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        reported = report["training"]["rows"]
        assert [row["Train/total_steps"] for row in reported] == [count * 2 * 8 * 4 for count in (1, 2, 3)]


def test_pooled_metrics_are_the_same_on_both_ranks(ranks: list[dict[str, Any]]) -> None:
    # A rank's own clock, and the spread of its own last batch, are its own.
    own = {"Perf/iteration_time", "Perf/total_fps", "Train/total_time", "Policy/mean_std"}
    first, second = (
        [{name: value for name, value in row.items() if name not in own} for row in report["training"]["rows"]]
        for report in ranks
    )
    assert first == second
    assert "Train/mean_reward" in first[-1]


def test_rank_0_alone_saves(ranks: list[dict[str, Any]]) -> None:
    # Every second iteration, and the last.
    assert [report["training"]["saved"] for report in ranks] == [[2, 3], []]


def test_a_signal_to_one_rank_stops_both_after_a_checkpoint(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        assert report["stopping"]["stopped_by"] == "SIGTERM"
        assert report["stopping"]["iteration"] == 2
    assert [report["stopping"]["saved"] for report in ranks] == [[2], []]


def test_a_loss_that_is_infinite_on_one_rank_ends_the_training_on_both(ranks: list[dict[str, Any]]) -> None:
    reported = [report["exploding"] for report in ranks]
    assert reported[0].startswith("Learning diverged in iteration 1: a loss is NaN or infinite (value inf, ")
    assert reported[0] == reported[1]


def test_both_ranks_go_on_from_a_checkpoint(ranks: list[dict[str, Any]]) -> None:
    for report in ranks:
        assert report["resuming"] == {"same_learner": True, "iterations": [3], "steps": 3 * 2 * 8 * 4}


# The worker


def test_workers_end_with_one_digest(ranks: list[dict[str, Any]]) -> None:
    first, second = (report["working"] for report in ranks)
    assert first["digest"] == second["digest"]
    assert [first["rank"], second["rank"]] == [0, 1]
    assert first["last_row"]["Train/total_steps"] == second["last_row"]["Train/total_steps"] == 2 * 2 * 4 * 4


def test_workers_see_and_do_unlike_things(ranks: list[dict[str, Any]], scratch: Path) -> None:
    assert ranks
    first, second = (
        json.loads((scratch / f"first_step_{derived_seed(SEED, rank)}.json").read_text(encoding="utf-8"))
        for rank in range(2)
    )
    assert first["observations"] != second["observations"]
    # The observations are so near to each other that the policy means about the same; the rest is its noise.
    noise = [abs(one - other) for (one,), (other,) in zip(first["actions"], second["actions"], strict=True)]
    assert sum(noise) / len(noise) > 0.5


def test_rank_0_alone_writes_into_the_run(ranks: list[dict[str, Any]], scratch: Path) -> None:
    assert ranks
    rows = [json.loads(line) for line in (scratch / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2]
    assert sorted(path.name for path in (scratch / "run" / "checkpoints").iterdir()) == ["000001", "000002"]
