"""An evaluation beside the training: its rows, its progress, its end."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import pytest
from support.learners import tiny_agent, tiny_config, tiny_loop

from shoal.heartbeat import Heartbeat
from shoal.learn.running_evaluation import RunningEvaluation

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.learn.checkpoints import Snapshot
    from shoal.learn.metrics import Row

NEVER = threading.Event()


def test_a_row_has_the_evaluation_that_ended_last_and_none_is_left_out() -> None:
    loop = tiny_loop(tiny_config(eval_interval=4, max_iterations=10, agent=tiny_agent(save_interval=8)))
    rows: list[Row] = []
    saved: list[Snapshot] = []
    begun: list[RunningEvaluation] = []

    def evaluate() -> RunningEvaluation:
        number, is_first = float(loop.iteration), not begun

        def run(_: Callable[[], None]) -> Row:
            while is_first and len(rows) < 5:
                NEVER.wait(0.001)
            return {"Eval/return": 10.0 * number}

        begun.append(RunningEvaluation(run))
        return begun[-1]

    def take(row: Row) -> None:
        rows.append(row)
        if len(rows) == 5:
            begun[0].wait(Heartbeat(), lambda: False)

    loop.train(on_row=take, save=saved.append, stop_requests=dict, evaluate=evaluate)
    found = {row["iteration"]: (row["Eval/iteration"], row["Eval/return"]) for row in rows if "Eval/return" in row}
    assert found.pop(6.0) == (4.0, 40.0)
    assert found.pop(10.0) == (10.0, 100.0)
    assert [*found.values()] == [(8.0, 80.0)]
    assert min(found) in (8.0, 9.0)
    scores = [each.metadata["score"] for each in saved]
    assert [score() if callable(score) else score for score in scores] == [80.0, 100.0]


def test_steps_are_progress_while_the_training_waits_and_a_stuck_evaluation_makes_none() -> None:
    beat, goes_on = Heartbeat(), threading.Event()
    looks: list[int] = []

    def run(on_step: Callable[[], None]) -> Row:
        on_step()
        goes_on.wait()
        on_step()
        return {}

    before = beat.marks
    evaluation = RunningEvaluation(run)
    assert beat.marks == before

    def look() -> bool:
        looks.append(beat.marks)
        if len(looks) == 4:
            goes_on.set()
        return False

    evaluation.wait(beat, look)
    assert looks[1:4] == [looks[1]] * 3, "it is stuck"
    assert beat.phase == "startup"


def test_a_cancelled_evaluation_ends_with_its_step_and_has_neither_metrics_nor_score() -> None:
    def run(on_step: Callable[[], None]) -> Row:
        while True:
            NEVER.wait(0.001)
            on_step()

    by_hand, while_waiting = RunningEvaluation(run), RunningEvaluation(run)
    by_hand.cancel()
    while_waiting.wait(Heartbeat(), lambda: True)
    for each in (by_hand, while_waiting):
        assert each.is_done
        assert (each.metrics(), each.score()) == ({}, None)


@pytest.mark.parametrize(("found", "score"), [(1.5, 1.5), (math.nan, None), (math.inf, None)])
def test_a_score_is_finite(found: float, score: float | None) -> None:
    assert RunningEvaluation(lambda _: {"Eval/return": found}).score() == score


def test_an_error_is_raised_where_the_metrics_are_taken_and_a_checkpoint_has_no_score() -> None:
    def run(_: Callable[[], None]) -> Row:
        message = "The floor is gone."
        raise ValueError(message)

    evaluation = RunningEvaluation(run)
    assert evaluation.score() is None
    with pytest.raises(ValueError, match="The floor is gone"):
        evaluation.metrics()
