"""Where metrics go, and that no writer's failure ends a training."""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any

from support.limits import files_of_at_most

from shoal.cli.parse import parse_train
from shoal.config import TrainConfig
from shoal.learn.metrics import JsonLinesWriter, SafeWriter, open_writers
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

ROW = {"iteration": 1.0, "Train/total_steps": 32.0}


def lines(run: RunDir) -> list[Any]:
    """What `metrics.jsonl` says."""
    return [json.loads(line) for line in run.metrics_jsonl.read_text(encoding="utf-8").splitlines()]


def write_rows(run: RunDir, *iterations: int) -> None:
    """Write short rows with a writer of their own."""
    writer = JsonLinesWriter(run)
    for iteration in iterations:
        writer.write({"iteration": iteration})
    writer.close()


def test_each_row_is_a_line_that_can_be_read_at_once(run_dir: RunDir) -> None:
    writer = JsonLinesWriter(run_dir)
    writer.write(ROW)
    assert lines(run_dir) == [ROW]
    writer.write(ROW | {"iteration": 2.0})
    assert [row["iteration"] for row in lines(run_dir)] == [1, 2]
    writer.close()


def test_what_json_has_no_word_for_becomes_null(run_dir: RunDir) -> None:
    writer = JsonLinesWriter(run_dir)
    writer.write({"a": float("nan"), "b": float("inf"), "c": 1.0})
    writer.close()
    assert lines(run_dir) == [{"a": None, "b": None, "c": 1.0}]


def test_a_resumed_run_appends(run_dir: RunDir) -> None:
    write_rows(run_dir, 1)
    write_rows(run_dir, 2)
    assert lines(run_dir) == [{"iteration": 1}, {"iteration": 2}]


def test_half_a_line_of_a_killed_process_is_dropped(run_dir: RunDir) -> None:
    run_dir.metrics_jsonl.write_text('{"iteration": 1}\n{"itera', encoding="utf-8")
    write_rows(run_dir, 2)
    assert lines(run_dir) == [{"iteration": 1}, {"iteration": 2}]


def test_rows_that_are_repeated_from_an_older_checkpoint_are_dropped(run_dir: RunDir) -> None:
    write_rows(run_dir, 1, 2, 3)
    for writer in open_writers(run_dir, TrainConfig(task="tiny", logger="none"), 2):
        writer.write({"iteration": 3, "again": 1})
        writer.close()
    assert lines(run_dir) == [{"iteration": 1}, {"iteration": 2}, {"iteration": 3, "again": 1}]


def test_a_full_disk_costs_rows_and_leaves_whole_lines(run_dir: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    writer = SafeWriter(JsonLinesWriter(run_dir))
    line = len(json.dumps(ROW)) + 1
    with files_of_at_most(2 * line + line // 2), caplog.at_level(logging.WARNING):
        for _ in range(4):
            writer.write(ROW)
    assert lines(run_dir) == [ROW, ROW]
    writer.write(ROW)  # There is room again.
    writer.close()
    assert lines(run_dir) == [ROW, ROW, ROW]
    assert [record.getMessage() for record in caplog.records] == [
        "JsonLinesWriter lost metrics (OSError: [Errno 27] File too large); training goes on."
    ]


def test_closing_a_writer_that_cannot_flush_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Late:
        def write(self, row: Mapping[str, float]) -> None:
            del row

        def close(self) -> None:
            message = "no room"
            raise OSError(message)

    with caplog.at_level(logging.WARNING):
        late: Any = Late()
        SafeWriter(late).close()
    assert "Late lost metrics (OSError: no room); training goes on." in caplog.text


def test_metrics_jsonl_is_written_whatever_the_logger(run_dir: RunDir) -> None:
    for writer in open_writers(run_dir, TrainConfig(task="tiny", logger="none")):
        writer.write(ROW)
        writer.close()
    assert lines(run_dir) == [ROW]
    assert [path.name for path in run_dir.path.iterdir()] == ["metrics.jsonl"]


def test_tensorboard_reads_what_was_written(run_dir: RunDir) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writers = open_writers(run_dir, TrainConfig(task="tiny"))
    for iteration, reward in ((1, 0.5), (2, 0.75)):
        for writer in writers:
            writer.write({"iteration": iteration, "Train/mean_reward": reward})
    for writer in writers:
        writer.close()
    events = EventAccumulator(str(run_dir.path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("Train/mean_reward")] == [(1, 0.5), (2, 0.75)]
    # What has no group is not a metric.
    assert events.Tags()["scalars"] == ["Train/mean_reward"]


def test_tensorboard_shows_what_a_run_changes_as_hyperparameters(run_dir: RunDir) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

    words = "Cartpole-Swingup --seed 7 --no-export --env.pole-mass 0.3 --agent.actor.hidden-dims 32 16"
    for writer in open_writers(run_dir, parse_train(words.split())):
        writer.write(ROW)
        writer.close()
    events = EventAccumulator(str(run_dir.path)).Reload()
    session = parse_session_start_info_plugin_data(events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content)
    assert {name: value.number_value or value.string_value for name, value in session.hparams.items()} == {
        "seed": 7.0,
        "export": "False",
        "env.pole_mass": 0.3,
        "agent.actor.hidden_dims": "[32, 16]",
    }
    # All in the run's own directory: a subdirectory would be a run of its own.
    assert [path.name.split(".")[0] for path in sorted(run_dir.path.iterdir())] == ["events", "metrics"]


def test_tensorboard_compares_the_hyperparameters_of_all_runs(log_root: Path) -> None:
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams.backend_context import Context

    for name, words in {"a": "--seed 7", "b": "--env.pole-mass 0.3", "c": ""}.items():
        run = RunDir(log_root / name)
        run.path.mkdir()
        for writer in open_writers(run, parse_train(["Cartpole-Swingup", *words.split()])):
            writer.write(ROW)
            writer.close()
    provider = MultiplexerDataProvider(EventMultiplexer().AddRunsFromDirectory(str(log_root)).Reload(), str(log_root))
    context, request = Context(TBContext(data_provider=provider)), RequestContext()
    metadata = context.hparams_metadata(request, "")
    experiment = context.experiment_from_metadata(request, "", True, metadata, [])  # noqa: FBT003
    assert sorted(metadata) == ["a", "b", "c"]
    assert sorted(info.name for info in experiment.hparam_infos) == ["env.pole_mass", "seed"]
    assert [info.name.tag for info in experiment.metric_infos] == ["Train/total_steps"]


def test_tensorboard_on_a_full_disk_costs_rows(
    run_dir: RunDir, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TensorBoard writes in a thread of its own, which the full disk ends. Closing waits for it.
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    writers = open_writers(run_dir, TrainConfig(task="tiny"))
    row = {"iteration": 1.0} | {f"a/{number}": 0.0 for number in range(1000)}
    with files_of_at_most(20_000), caplog.at_level(logging.WARNING):
        for _ in range(3):
            for writer in writers:
                writer.write(row)
        for writer in writers:
            writer.close()
    assert {record.getMessage().partition(" ")[0] for record in caplog.records} == {
        "JsonLinesWriter",
        "TensorBoardWriter",
    }
