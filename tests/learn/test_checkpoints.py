"""Checkpoints appear whole or not at all, and loading one runs no code. `plan/test_checkpoints` finds good ones."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from rsl_rl.runners import OnPolicyRunner
from support.hostile import write_hostile
from support.learners import tiny_agent, tiny_config, tiny_loop, train
from support.limits import files_of_at_most
from support.saved import write_checkpoint
from support.tiny_env import TinyEnv

from shoal import __version__
from shoal.config.rsl_rl import to_rsl_rl
from shoal.errors import TrainingFailedError, UsageError
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.rsl_rl.learner import RslRlLearner
from shoal.plan.checkpoints import list_checkpoints, newest_good

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.rundir import RunDir

STATE = {"actor_state_dict": {"weight": torch.arange(1000.0)}, "iter": 0, "infos": {"totals": {"seconds": 0.5}}}


def below(path: Path) -> list[str]:
    """All files and directories, hidden ones included."""
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


# Writing


def test_a_checkpoint_has_a_model_and_its_sum(run_dir: RunDir) -> None:
    path = write_checkpoint(run_dir, 7, STATE, world_size=2)
    assert path == run_dir.checkpoints_dir / "000007"
    assert below(run_dir.path) == [
        "checkpoints",
        "checkpoints/000007",
        "checkpoints/000007/manifest.json",
        "checkpoints/000007/model.pt",
    ]
    model = (path / "model.pt").read_bytes()
    assert json.loads((path / "manifest.json").read_text(encoding="utf-8")) == {
        "iteration": 7,
        "world_size": 2,
        "shoal": __version__,
        "files": {"model.pt": {"bytes": len(model), "sha256": hashlib.sha256(model).hexdigest()}},
    }


def test_what_is_written_is_read_back(run_dir: RunDir) -> None:
    path = write_checkpoint(run_dir, 7, STATE, world_size=1)
    state = read_checkpoint(path / "model.pt")
    assert torch.equal(state["actor_state_dict"]["weight"], torch.arange(1000.0))
    assert state["infos"] == STATE["infos"]


@pytest.mark.parametrize("size", [0, 100, 4096], ids=["at once", "early", "late"])
def test_a_full_disk_leaves_the_older_checkpoint_and_nothing_else(size: int, run_dir: RunDir) -> None:
    write_checkpoint(run_dir, 1, STATE, world_size=1)
    before = below(run_dir.path)
    with files_of_at_most(size), pytest.raises(TrainingFailedError, match=r"000002 could not be written \(File too"):
        write_checkpoint(run_dir, 2, STATE, world_size=1)
    assert below(run_dir.path) == before
    found, passed_over = newest_good(run_dir)
    assert found is not None
    assert found.iteration == 1
    assert passed_over == []


def test_a_name_that_is_taken_is_told_and_what_was_written_goes(run_dir: RunDir) -> None:
    run_dir.checkpoints_dir.mkdir()
    (run_dir.checkpoints_dir / "000003").write_text("a file is in the way", encoding="utf-8")
    with pytest.raises(TrainingFailedError, match="Not a directory"):
        write_checkpoint(run_dir, 3, STATE, world_size=1)
    assert below(run_dir.checkpoints_dir) == ["000003"]


def test_a_directory_that_cannot_be_made_is_told(run_dir: RunDir) -> None:
    run_dir.checkpoints_dir.write_text("a file is in the way", encoding="utf-8")
    with pytest.raises(TrainingFailedError, match=r"could not be written .*mend the directory, and pass --resume"):
        write_checkpoint(run_dir, 3, STATE, world_size=1)


def test_what_is_unfinished_is_no_checkpoint(run_dir: RunDir) -> None:
    run_dir.unfinished_dir(1).mkdir(parents=True)
    (run_dir.unfinished_dir(1) / "model.pt").write_bytes(b"half of it")
    assert list_checkpoints(run_dir) == []
    write_checkpoint(run_dir, 1, STATE, world_size=1)
    assert [path.name for path in run_dir.checkpoints_dir.iterdir()] == ["000001"]


def test_a_damaged_checkpoint_is_replaced(run_dir: RunDir) -> None:
    path = write_checkpoint(run_dir, 1, STATE, world_size=1)
    (path / "model.pt").write_bytes(b"")
    write_checkpoint(run_dir, 1, STATE, world_size=1)
    assert list_checkpoints(run_dir)[0].damage() is None


# Reading


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    marker = write_hostile(model, {"actor_state_dict": {}})
    with pytest.raises(UsageError, match="pickled with code in it, which Shoal does not run"):
        read_checkpoint(model)
    assert not marker.exists()
    torch.load(model, weights_only=False)  # It is as hostile as it looks.
    assert marker.exists()


@pytest.mark.parametrize("data", [b"", b"not a checkpoint", b"PK\x03\x04 half a zip"])
def test_a_damaged_file_is_refused(data: bytes, tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    model.write_bytes(data)
    with pytest.raises(UsageError, match=r"model\.pt cannot be loaded as plain tensors"):
        read_checkpoint(model)


@pytest.mark.parametrize("state", [{}, {"student_state_dict": {}}, [1, 2], torch.zeros(2)])
def test_another_kind_of_file_is_refused(state: Any, tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    torch.save(state, model)
    with pytest.raises(UsageError, match="is no checkpoint of a learner: it has no 'iter'"):
        read_checkpoint(model)


@pytest.mark.parametrize("iteration", ["ten", -5, 10**30, 2**53, 2.5, True, None, torch.tensor(5)], ids=str)
def test_an_iteration_that_is_no_count_is_refused(iteration: Any, tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    torch.save(STATE | {"iter": iteration}, model)
    with pytest.raises(UsageError, match=r"model\.pt says that its 'iter' is .*: pass another one\."):
        read_checkpoint(model)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_told_as_such(value: float, tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    torch.save(STATE | {"actor_state_dict": {"mlp.0.weight": torch.tensor([1.0, value])}}, model)
    said = (
        r"The weights of .*model\.pt are not finite \(actor_state_dict, mlp\.0\.weight\): pass an earlier checkpoint\."
    )
    with pytest.raises(UsageError, match=said):
        read_checkpoint(model)


@pytest.mark.parametrize("part", ["word", 5, [1], torch.zeros(2)], ids=str)
def test_a_state_that_is_no_dictionary_is_refused(part: Any, tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    torch.save(STATE | {"actor_state_dict": part}, model)
    with pytest.raises(UsageError, match=r"has no weights in 'actor_state_dict', but .*: pass another one\."):
        read_checkpoint(model)


def test_a_file_of_an_older_rsl_rl_is_sent_to_convert(tmp_path: Path) -> None:
    model = tmp_path / "model_100.pt"
    torch.save({"model_state_dict": {}, "iter": 100}, model)
    with pytest.raises(UsageError, match=rf"older rsl_rl: run `shoal convert {model}`\.$"):
        read_checkpoint(model)


# rsl_rl


def weights(runner: RslRlLearner | OnPolicyRunner) -> dict[str, torch.Tensor]:
    """Everything in both networks."""
    return {
        f"{owner}.{name}": value.clone()
        for owner, network in (("actor", runner.alg.actor), ("critic", runner.alg.critic))
        for name, value in network.state_dict().items()
    }


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether all tensors are equal, bit by bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_plain_rsl_rl_loads_our_checkpoint(run_dir: RunDir) -> None:
    ours = tiny_loop()
    train(ours)
    path = write_checkpoint(run_dir, ours.iteration, ours.state(), world_size=1)
    theirs = OnPolicyRunner(TinyEnv(), to_rsl_rl(tiny_agent()))
    theirs.load(str(path / "model.pt"))
    assert same(weights(ours.learner), weights(theirs))
    # Three iterations are done, and rsl_rl counts the last of them from 0.
    assert theirs.current_learning_iteration == 2
    assert theirs.alg.learning_rate == ours.learner.alg.learning_rate
    theirs.learn(1)


def test_our_runner_takes_up_a_checkpoint_of_plain_rsl_rl(tmp_path: Path) -> None:
    theirs = OnPolicyRunner(TinyEnv(), to_rsl_rl(tiny_agent()), log_dir=str(tmp_path))
    theirs.learn(3)
    ours = tiny_loop(tiny_config(max_iterations=4), seed=9)
    ours.restore(read_checkpoint(tmp_path / "model_2.pt"))
    assert same(weights(ours.learner), weights(theirs))
    assert ours.iteration == 3
    assert ours.learner.alg.learning_rate == theirs.alg.learning_rate
    assert train(ours).iterations == [4]
