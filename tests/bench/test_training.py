"""Trainings that are watched from outside, and what is read from their metrics and from the phases of rank 0."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from shoal.bench import bench, training
from shoal.bench.training import (
    IMPORT_TORCH,
    PARTS,
    TOTAL,
    checkpoint_costs,
    measure_training,
    next_part,
    train_until_return,
    watch_training,
)
from shoal.config import BenchConfig
from shoal.errors import ShoalError
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.bench.training import Rows

TRAINS = """
import pathlib, sys, time
from shoal.heartbeat import Heartbeat, beat_file
run = pathlib.Path(sys.argv[2], "Cartpole-Balance", "run")
(run / "ranks").mkdir(parents=True)
Heartbeat(beat_file(run / "ranks", 0)).enter("compile")
time.sleep(0.3)
with (run / "metrics.jsonl").open("w") as metrics:
    print('{"iteration": 1.0}', file=metrics, flush=True)
    %s
    print('{"iteration": 2.0}', file=metrics)
"""
"""A program in the place of `train`: two iterations."""


def watch(
    monkeypatch: pytest.MonkeyPatch, program: str, until: Callable[[Rows], bool] = lambda _: False
) -> tuple[Rows, dict[str, float]]:
    """Watch a program in the place of `train`."""
    monkeypatch.setattr(training, "_train_command", lambda *_: [sys.executable, "-c", program])
    return watch_training(BenchConfig(task="Cartpole-Balance"), 1, until=until)


def test_a_training_is_watched_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    rows, seconds = watch(monkeypatch, TRAINS % "time.sleep(0.3)")
    assert [row["iteration"] for row in rows] == [1, 2]
    assert seconds["environments, capture"] > 0.2
    assert 0.2 < seconds[TOTAL] < time.monotonic() - started - 0.2


def test_a_training_that_is_watched_no_longer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    rows, _ = watch(monkeypatch, TRAINS % "time.sleep(600)", bool)
    assert [row["iteration"] for row in rows] == [1]
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(("program", "said"), [("print('no'); exit(3)", "failed with 3: no"), ("", "failed with 0: ")])
def test_a_training_that_fails_or_trains_nothing_is_an_error(
    program: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ShoalError, match=said):
        watch(monkeypatch, program)


def train(monkeypatch: pytest.MonkeyPatch, first_s: float, *rows: Mapping[str, float]) -> None:
    """Let a training have these metrics, the first after so many seconds."""
    monkeypatch.setattr(training, "watch_training", lambda *_, **__: (rows, {TOTAL: first_s}))


# Steps ----------------------------------------------------------------------------------------------------------------


def test_a_training_is_measured_after_its_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part in collectives is the median over iterations."""
    times = [(9.0, 10.0), (1.0, 4.0), (1.0, 2.0), (0.3, 1.0)]
    rows = [
        {
            "Perf/collective_time": inside,
            "Perf/iteration_time": whole,
            "Train/total_steps": 100.0 * number,
            "Train/total_time": sum(each for _, each in times[:number]),
        }
        for number, (inside, whole) in enumerate(times, start=1)
    ]
    train(monkeypatch, 12.0, *rows)
    assert measure_training(BenchConfig(task="Cartpole-Balance", warmup=1, iterations=3), 1) == {
        "steps_per_second": [300 / 7],
        "collective_part": [0.3],
        "first_iteration_warm_s": [12.0],
        "checkpoint_cost": [],
    }


def test_an_iteration_beside_a_checkpoint_is_compared_with_its_neighbours() -> None:
    # Checkpoints after 3, 6 and 9 iterations: the 4th and 7th run beside one, and the last has no second neighbour.
    seconds = [9.0, 2.0, 2.0, 2.2, 2.0, 1.0, 1.5, 2.0, 2.0, 5.0]
    assert checkpoint_costs(seconds, save_interval=3, warmup=1) == pytest.approx([0.1, 0.0])


def test_iterations_that_warm_up_are_not_compared() -> None:
    assert checkpoint_costs([1.0] * 8, save_interval=3, warmup=4) == [0.0]


def test_without_two_neighbours_beside_no_checkpoint_nothing_is_compared() -> None:
    assert checkpoint_costs([1.0] * 8, save_interval=2, warmup=1) == []


# Parts of a start -----------------------------------------------------------------------------------------------------


def test_each_phase_counts_as_one_part() -> None:
    part, found = "command", list[str]()
    # Before the first heartbeat; a wait for kernels during the build; the learner; a wait for another rank; metrics
    # count as the update.
    phases = ("startup", "compile", "queue", "compile", "startup", "collective", "rollout", "update", "metrics")
    for phase in (None, *phases):
        part = next_part(part, phase)
        found.append(part)
    assert found == [
        *("command", "imports", "environments, capture", "waiting for kernels", "environments, capture"),
        *("learner, process group", "learner, process group", "first rollout", "first update", "first update"),
    ]


def test_a_learner_that_was_built_between_two_looks_does_not_lengthen_the_environments() -> None:
    assert next_part("environments, capture", "rollout") == "first rollout"


@pytest.mark.soak
def test_the_parts_of_a_real_start_make_up_all_of_it() -> None:
    config = BenchConfig(task="Cartpole-Balance", gpu_ids=("None",), num_envs=16, repeats=1, startup=True)
    lines: list[str] = []
    (seconds,) = bench(config, lines.append).startup.values()
    assert tuple(seconds) == PARTS
    parts = {part: value for part, value in seconds.items() if part not in {TOTAL, IMPORT_TORCH}}
    assert sum(parts.values()) == pytest.approx(seconds[TOTAL], abs=0.01)
    assert min(seconds["command"], seconds["imports"], seconds[IMPORT_TORCH]) > 0
    assert lines == [f"[1/1] 1 worker(s): first iteration after {seconds[TOTAL]:.1f} s"]


# Time until a return --------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_training_is_measured_up_to_the_first_evaluation_with_the_return() -> None:
    config = BenchConfig(task="Cartpole-Balance", gpu_ids=("None",), num_envs=128, save_interval=2)
    found = train_until_return(config, workers=1, seed=42, wanted=5.0)
    assert found["is_reached"]
    assert found["mean_return"] >= 5
    assert found["iteration"] % 2 == 0
    assert found["steps"] == found["iteration"] * 128 * 32
    assert 1 < found["seconds"] < 120


@pytest.mark.soak
def test_a_return_that_no_policy_earns_is_not_reached() -> None:
    config = BenchConfig(task="Cartpole-Balance", gpu_ids=("None",), num_envs=16, save_interval=100)
    spec = registry.resolve("Cartpole-Balance")
    found = train_until_return(config, workers=1, seed=42, wanted=1e6)
    assert not found["is_reached"]
    assert found["iteration"] == spec.max_iterations


def test_a_training_that_is_never_evaluated_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    train(monkeypatch, 2.0, {"iteration": 1.0, "Train/total_time": 0.5})
    with pytest.raises(ShoalError, match=r"trained for 1 iterations, and evaluated after none .* --save-interval"):
        train_until_return(BenchConfig(task="Cartpole-Balance"), workers=1, seed=0, wanted=5.0)


def test_an_evaluation_that_ends_later_counts_for_the_iteration_that_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the waits for evaluations up to there, and no later one."""
    rows: list[dict[str, float]] = [
        {"iteration": number, "Train/total_time": 10.0 * number, "Train/total_steps": 100.0 * number}
        for number in (1.0, 2.0, 3.0, 4.0)
    ]
    rows[1] |= {"Perf/evaluation_time": 0.5}
    rows[3] |= {"Perf/evaluation_time": 2.0, "Eval/iteration": 2.0, "Eval/return": 7.0}
    train(monkeypatch, 12.0, *rows)
    found = train_until_return(BenchConfig(task="Cartpole-Balance"), workers=1, seed=0, wanted=5.0)
    expected = {"iteration": 2, "steps": 200.0, "seconds": 21.5, "is_reached": True}
    assert {name: found[name] for name in expected} == expected
