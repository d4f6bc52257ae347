"""Files from elsewhere run no code unless they are trusted, and what is written of them runs none in any case."""

from __future__ import annotations

import pickle
from collections import OrderedDict, namedtuple
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rsl_rl.runners import OnPolicyRunner
from support.hostile import write_hostile
from support.learners import tiny_agent, tiny_loop
from support.limits import files_of_at_most
from support.old_networks import OldActorCritic
from support.tiny_env import TinyEnv

from shoal.config.rsl_rl import to_rsl_rl
from shoal.errors import ShoalError, UsageError
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.foreign_checkpoints import load_foreign_checkpoint, rename_to_current_layout, write_plain_checkpoint

WHAT_TRUST_DOES = "--trust unpickles it and runs whatever code is in it: pass it only for files from people you trust."


def test_code_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    marker = write_hostile(file, {"iter": 3})
    with pytest.raises(UsageError) as refusal:
        load_foreign_checkpoint(file, trust=False)
    assert str(refusal.value) == (
        f"The file {file} holds pickled code, which asks for posix.mkdir, and was not loaded. {WHAT_TRUST_DOES}"
    )
    assert not marker.exists()
    assert load_foreign_checkpoint(file, trust=True) == {"iter": 3, "infos": {"seen": 3, "env": None}}
    assert marker.exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"not a checkpoint", b"PK\x03\x04 half a zip", pickle.dumps({"infos": timedelta(1)})],
    ids=["empty", "a text", "half a zip", "no file of torch's"],
)
def test_what_torch_cannot_load_is_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    file.write_bytes(data)
    with pytest.raises(UsageError, match=r"model\.pt cannot be loaded as plain tensors \(\w+\): it is damaged, is no"):
        load_foreign_checkpoint(file, trust=False)


def test_a_file_that_cannot_be_read_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match=r"The file /proc/self/mem cannot be read \(.+\): mend that, or pass another"):
        load_foreign_checkpoint(Path("/proc/self/mem"), trust=True)


def test_trust_does_not_help_where_a_package_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    file.write_bytes(b"\x80\x02cnowhere\nThing\n.")
    with pytest.raises(UsageError, match=r"holds pickled code, which asks for nowhere\.Thing, and was not loaded"):
        load_foreign_checkpoint(file, trust=False)
    with pytest.raises(UsageError) as refusal:
        load_foreign_checkpoint(file, trust=True)
    assert str(refusal.value) == (
        f"The file {file} cannot be unpickled (ModuleNotFoundError: No module named 'nowhere'): it is damaged, or "
        "needs a package that is not installed here. Install it, or pass another file."
    )


def test_only_tensors_and_plain_values_are_written(tmp_path: Path) -> None:
    pair = namedtuple("pair", "left right")  # noqa: PYI024  As somebody else may have written it.
    weight = torch.nn.Parameter(torch.arange(3.0))
    state: dict[str, Any] = {
        "actor_state_dict": OrderedDict(weight=weight),
        "optimizer_state_dict": {"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"lr": np.float64(0.5)}]},
        "iter": np.int64(7),
        "infos": {
            "pair": pair(1, None),
            "name": np.str_("mean"),
            "good": True,
            "shape": torch.Size([2]),
            "took": timedelta(1),
            "many": [1, timedelta(2), np.zeros(2)],
            timedelta(3): 4,
        },
    }
    dropped = write_plain_checkpoint(state, tmp_path / "new" / "model.pt")
    assert dropped == [
        "infos['took']",
        "infos['many'][1]",
        "infos['many'][2]",
        "infos[datetime.timedelta(days=3)]",
    ]
    loaded = torch.load(tmp_path / "new" / "model.pt", weights_only=True)
    assert torch.equal(loaded["actor_state_dict"].pop("weight"), weight)
    assert loaded == {
        "actor_state_dict": {},
        "optimizer_state_dict": {"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"lr": 0.5}]},
        "iter": 7,
        "infos": {"pair": (1, None), "name": "mean", "good": True, "shape": (2,), "many": [1]},
    }
    assert type(loaded["optimizer_state_dict"]["param_groups"][0]["lr"]) is float


def test_what_rsl_rl_insists_on_is_there_in_any_case(tmp_path: Path) -> None:
    assert write_plain_checkpoint({"infos": timedelta(1)}, tmp_path / "model.pt") == ["infos"]
    assert torch.load(tmp_path / "model.pt", weights_only=True) == {"iter": 0, "infos": None}


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    file.write_bytes(b"before")
    with files_of_at_most(100), pytest.raises(ShoalError, match=r"could not be written \(File too large\): make room"):
        write_plain_checkpoint({"weight": torch.zeros(100)}, file)
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


def test_plain_rsl_rl_trains_on_from_what_is_made_of_its_own_checkpoint(tmp_path: Path) -> None:
    theirs = OnPolicyRunner(TinyEnv(), to_rsl_rl(tiny_agent()), log_dir=str(tmp_path))
    theirs.learn(2)
    file = tmp_path / "model_1.pt"
    renamed = rename_to_current_layout(load_foreign_checkpoint(file, trust=False), file)
    assert write_plain_checkpoint(renamed.state, tmp_path / "plain.pt") == []
    states = []
    for each in (file, tmp_path / "plain.pt"):
        ours = tiny_loop(seed=9)
        ours.restore(read_checkpoint(each))
        assert ours.iteration == 2
        states.append({**ours.learner.alg.actor.state_dict(), **ours.learner.alg.optimizer.state_dict()["state"][3]})
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert torch.equal(states[0]["mlp.0.weight"], theirs.alg.actor.state_dict()["mlp.0.weight"])
    theirs.load(str(tmp_path / "plain.pt"))
    theirs.learn(1)


def test_plain_rsl_rl_takes_up_the_networks_of_an_older_layout(tmp_path: Path) -> None:
    old = OldActorCritic(normalised=True)
    write_plain_checkpoint(rename_to_current_layout(old.saved(), tmp_path).state, tmp_path / "plain.pt")
    theirs = OnPolicyRunner(TinyEnv(), to_rsl_rl(tiny_agent()))
    theirs.load(str(tmp_path / "plain.pt"), load_cfg={"actor": True, "critic": True})
    seen = theirs.env.get_observations()
    with torch.inference_mode():
        means = theirs.alg.get_policy()(seen)
        torch.testing.assert_close(means, old.means(seen["policy"]), rtol=0.0, atol=1e-6)
