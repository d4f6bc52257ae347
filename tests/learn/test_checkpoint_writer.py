"""Checkpoints beside the training: copies of one moment, one at a time, whole with all parts, and kept in order."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.limits import files_of_at_most

from shoal.config import TrainConfig
from shoal.errors import TrainingFailedError
from shoal.learn import checkpoints
from shoal.learn.checkpoint_writer import CheckpointWriter, start_host_copy
from shoal.learn.checkpoints import Snapshot, read_rank_file, remove_rank_files, write_snapshot
from shoal.learn.groups import World
from shoal.plan import checkpoints as plan_checkpoints
from shoal.plan.checkpoints import best_first, best_good, list_checkpoints, newest_good, to_drop
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run without checkpoints."""
    return RunDir(tmp_path)


def snapshot(iteration: int, rank: int = 0, world_size: int = 1, **metadata: Any) -> Snapshot:
    """What a rank saves, with numbers that tell whose it is."""
    learner = {"weights": torch.full((4,), float(iteration))} if rank == 0 else None
    rank_state = {"rows": {"state": torch.full((2, 3), float(10 * iteration + rank))}}
    return Snapshot(
        iteration=iteration,
        rank=rank,
        world_size=world_size,
        learner=learner,
        rank_state=rank_state,
        metadata={"num_envs": 2, **metadata},
    )


keeping = partial(TrainConfig, task="", keep_rank_files=None)
"""A configuration that keeps all rank files."""


def writer(run: RunDir, rank: int = 0, size: int = 1, config: TrainConfig | None = None) -> CheckpointWriter:
    """A rank's writer."""
    return CheckpointWriter(run, World(rank=rank, size=size), config or keeping())


def names(run: RunDir) -> list[str]:
    """All that lies beside the checkpoints, hidden or not."""
    return sorted(path.name for path in run.checkpoints_dir.iterdir())


def test_what_is_saved_is_what_was_there_when_it_was_asked_for(run_dir: RunDir) -> None:
    saved = snapshot(1)
    assert saved.rank_state is not None
    beside = writer(run_dir)
    beside.save(saved)
    saved.rank_state["rows"]["state"].fill_(-1.0)  # The training goes on.
    beside.wait()
    (checkpoint,) = list_checkpoints(run_dir)
    assert checkpoint.damage() is None
    rows = read_rank_file(checkpoint.path / "rank_00000.pt", 2)["rows"]
    assert torch.equal(rows["state"], torch.full((2, 3), 10.0))
    assert names(run_dir) == ["000001"]


def test_a_checkpoint_is_whole_when_the_last_rank_has_written(run_dir: RunDir) -> None:
    first, second = writer(run_dir, 0, 2), writer(run_dir, 1, 2)
    first.save(snapshot(3, 0, 2))
    time.sleep(0.3)
    assert list_checkpoints(run_dir) == []
    second.save(snapshot(3, 1, 2))
    second.wait()
    first.wait()
    (checkpoint,) = list_checkpoints(run_dir)
    assert sorted(path.name for path in checkpoint.path.iterdir()) == [
        "manifest.json",
        "model.pt",
        "rank_00000.pt",
        "rank_00001.pt",
    ]
    assert checkpoint.damage() is None
    manifest = json.loads((checkpoint.path / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["world_size"], manifest["num_envs"]) == (2, 2)
    (checkpoint.path / "rank_00001.pt").unlink()
    assert checkpoint.damage() == "rank_00001.pt is missing"


def test_a_rank_that_writes_nothing_is_named(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "RANK_FILE_TIMEOUT_S", 0.1)
    beside = writer(run_dir, 0, 2)
    beside.save(snapshot(1, 0, 2))
    with pytest.raises(TrainingFailedError, match=r"000001 was not finished: rank 1 could not write its part"):
        beside.wait()
    assert list_checkpoints(run_dir) == []
    beside.wait()  # It is raised once.


def test_the_next_one_waits_for_the_one_before(run_dir: RunDir) -> None:
    beside = writer(run_dir, 0, 2)
    beside.save(snapshot(1, 0, 2))
    threading.Timer(0.3, lambda: write_snapshot(run_dir, snapshot(1, 1, 2))).start()
    started = time.monotonic()
    beside.save(snapshot(2, 0, 2))
    assert time.monotonic() - started > 0.2
    write_snapshot(run_dir, snapshot(2, 1, 2))
    beside.wait()
    assert names(run_dir) == ["000001", "000002"]


def test_a_full_disk_is_heard_of_before_the_next_one(run_dir: RunDir) -> None:
    beside = writer(run_dir)
    beside.save(snapshot(1))
    beside.wait()
    with files_of_at_most(100):
        beside.save(snapshot(2))
        with pytest.raises(TrainingFailedError, match=r"000002 could not be written \(File too large\)"):
            beside.wait()
    assert names(run_dir) == ["000001"]


def test_a_rank_that_fails_leaves_what_was_on_its_way(run_dir: RunDir) -> None:
    beside = writer(run_dir)
    beside.save(snapshot(1))
    beside.close()
    assert names(run_dir) == ["000001"]


def written(run: RunDir, scores: dict[int, float | None]) -> None:
    """Write a checkpoint with each of these scores."""
    for iteration, score in scores.items():
        write_snapshot(run, snapshot(iteration, score=score, metric="Train/mean_whole_reward"))


def kept(run: RunDir, config: TrainConfig) -> list[int]:
    """The iterations of the checkpoints that are not to be dropped."""
    dropped = to_drop(run, config)
    return [each.iteration for each in list_checkpoints(run) if each not in dropped]


def test_the_newest_and_the_best_are_always_kept(run_dir: RunDir) -> None:
    written(run_dir, {10: 1.0, 20: 5.0, 30: 2.0, 40: None, 50: 3.0})
    assert best_first(list_checkpoints(run_dir))[0].iteration == 20
    assert kept(run_dir, keeping()) == [10, 20, 30, 40, 50]
    assert kept(run_dir, keeping(keep_last=1)) == [20, 50]
    assert kept(run_dir, keeping(keep_last=2)) == [20, 40, 50]


def test_the_newest_good_one_is_kept_when_newer_ones_are_damaged(run_dir: RunDir) -> None:
    written(run_dir, {10: 1.0, 20: None, 30: None, 40: None})
    for iteration in (30, 40):
        (run_dir.checkpoint_dir(iteration) / "model.pt").write_bytes(b"")
    newest, _ = newest_good(run_dir)
    assert newest is not None
    assert newest.iteration == 20
    assert kept(run_dir, keeping(keep_last=1)) == [10, 20, 40]


def test_the_best_good_one_is_kept_when_a_better_one_is_damaged(run_dir: RunDir) -> None:
    written(run_dir, {10: 5.0, 20: 7.0, 30: 9.0, 40: 1.0})
    (run_dir.checkpoint_dir(30) / "model.pt").write_bytes(b"")
    best = best_good(run_dir)
    assert best is not None
    assert best.iteration == 20
    assert kept(run_dir, keeping(keep_last=1)) == [20, 40]


def test_of_equal_scores_the_newest_is_the_best(run_dir: RunDir) -> None:
    written(run_dir, {10: 2.0, 20: 2.0, 30: 1.0})
    assert best_first(list_checkpoints(run_dir))[0].iteration == 20
    assert best_first([]) == []


def test_old_ones_go_when_a_new_one_is_there(run_dir: RunDir) -> None:
    beside = writer(run_dir, config=keeping(keep_last=2))
    for iteration, score in enumerate((0.0, 9.0, 1.0, 2.0, 3.0, 4.0, 5.0), start=1):
        beside.save(
            replace(snapshot(iteration), metadata={"num_envs": 2, "score": score, "metric": "Train/mean_whole_reward"})
        )
    beside.wait()
    assert names(run_dir) == ["000002", "000006", "000007"]


def test_old_ones_lose_their_rank_files_and_stay_whole(run_dir: RunDir) -> None:
    beside = writer(run_dir, config=keeping(keep_rank_files=2))
    for iteration in (1, 2, 3, 4):
        beside.save(snapshot(iteration))
    beside.wait()
    found = list_checkpoints(run_dir)
    assert [each.has_rank_files for each in found] == [False, False, True, True]
    assert [each.damage() for each in found] == [None] * 4
    assert sorted(path.name for path in found[0].path.iterdir()) == ["manifest.json", "model.pt"]
    assert found[0].manifest()["num_envs"] == 2


def test_a_checkpoint_that_loses_its_rank_files_while_it_is_verified_is_whole(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(run_dir, {1: None})
    (checkpoint,) = list_checkpoints(run_dir)
    look = plan_checkpoints._damage_of

    def look_late(*arguments: Any) -> str | None:
        remove_rank_files(run_dir, checkpoint)
        return look(*arguments)

    monkeypatch.setattr(plan_checkpoints, "_damage_of", look_late)
    assert checkpoint.has_rank_files
    assert checkpoint.damage() is None
    assert not checkpoint.has_rank_files


def test_an_old_one_that_cannot_be_removed_costs_a_warning(run_dir: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    written(run_dir, {1: None})
    (run_dir.dropped_dir(1) / "in the way").mkdir(parents=True)
    beside = writer(run_dir, config=keeping(keep_last=1))
    beside.save(snapshot(2))
    beside.wait()
    assert names(run_dir) == [".dropped-000001", "000001", "000002"]
    (message,) = caplog.messages
    assert message.startswith(f"The old checkpoint {run_dir.checkpoint_dir(1)} was not removed (")


def test_a_copy_holds_the_values_of_its_moment_in_the_same_nesting(device: str) -> None:
    weights, steps = torch.arange(4.0, device=device), torch.tensor(3)
    state = {"weights": weights, "pair": (weights[:2], [steps, "adam"]), "nothing": None}
    copy = start_host_copy(state, device)
    weights.zero_()
    steps.zero_()
    found: Any = copy()
    assert found["weights"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert found["pair"][0].tolist() == [0.0, 1.0]
    assert found["pair"][1] == [torch.tensor(3), "adam"]
    assert found["nothing"] is None
    assert {found["weights"].device.type, found["pair"][0].device.type} == {"cpu"}


def test_another_thread_may_wait_for_it(device: str) -> None:
    copy = start_host_copy({"weights": torch.ones(3, device=device)}, device)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(copy()))
    thread.start()
    thread.join()
    assert found[0]["weights"].tolist() == [1.0, 1.0, 1.0]
