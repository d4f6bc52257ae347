"""Launches on GPUs: one, one that two ranks share, and two that do not touch each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.commands import FAULTY, SMALL, TRAIN, run, start
from support.ports import Stranger

if TYPE_CHECKING:
    from pathlib import Path

    from support.commands import Ended

pytestmark = pytest.mark.spawn

FLAGS = (*SMALL[2:], "--max-iterations", "3")  # without the flag for the CPU


def train(where: Path, task: str, *flags: str) -> Ended:
    """Train on GPUs, to the end."""
    ended = run((*TRAIN, task, *FLAGS, *flags), where)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert (ended.left_processes, ended.left_files) == ([], [])
    assert [row["iteration"] for row in ended.rows] == [1, 2, 3]
    return ended


@pytest.mark.slow
@pytest.mark.gpu(count=1)
@pytest.mark.parametrize(
    "flags",
    [pytest.param((), id="by default"), pytest.param(("--gpu-ids", "0"), id="by its index")],
)
def test_one_gpu_trains_in_process(tmp_path: Path, flags: tuple[str, ...]) -> None:
    plan = train(tmp_path, "Cartpole-Swingup", *flags).record["plan"]
    assert (plan["launch_mode"], plan["devices"], plan["backend"]) == ("in process", ["cuda:0"], None)


@pytest.mark.slow
@pytest.mark.gpu(count=1)
def test_two_ranks_share_one_gpu_through_gloo(tmp_path: Path) -> None:
    ended = train(tmp_path, "Cartpole-Swingup", "--gpu-ids", "0", "--nproc-per-node", "2")
    plan = ended.record["plan"]
    assert (plan["launch_mode"], plan["devices"], plan["backend"]) == ("spawned", ["cuda:0", "cuda:0"], "gloo")
    digests = ended.record["ended"]["digests"]
    assert sorted(digests) == ["0", "1"]
    assert len(set(digests.values())) == 1


def weights_of(ended: Ended) -> torch.Tensor:
    """All numbers of the learner and the optimizer at the end, in one row."""
    state = torch.load(ended.run / "checkpoints/000006/model.pt", weights_only=True, map_location="cpu")
    found: list[torch.Tensor] = []

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value.double().flatten())
        elif isinstance(value, dict):
            for name in sorted(value, key=str):
                walk(value[name])
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk({name: value for name, value in state.items() if name.endswith("_state_dict")})
    return torch.cat(found)


def trained(where: Path, task: str, iterations: str, *more: str) -> Ended:
    flags = (*SMALL[2:], "--gpu-ids", "0", "--logger", "none", "--max-iterations", iterations)
    ended = run((*TRAIN, task, *flags, *more), where)
    assert ended.code == 0, ended.stdout + ended.stderr
    return ended


@pytest.mark.gpu(count=1)
@pytest.mark.slow
@pytest.mark.parametrize("task", ["Cartpole-Swingup", "Quadruped-Velocity-Flat"])
def test_a_resumed_training_differs_from_a_straight_one_no_more_than_that_from_itself(
    task: str, tmp_path: Path
) -> None:
    straight, again = (weights_of(trained(tmp_path / name, task, "6")) for name in ("straight", "again"))
    trained(tmp_path / "resumed", task, "3")
    resumed = weights_of(trained(tmp_path / "resumed", task, "6", "--resume"))
    own = (again - straight).abs().max().item()
    # Kernels that add in no order differ by rounding, which grows by about as much each time; others not at all.
    assert (resumed - straight).abs().max().item() <= 10 * own


@pytest.mark.gpu(count=1)
@pytest.mark.slow
def test_a_deterministic_training_ends_with_the_same_weights_resumed_or_not(tmp_path: Path) -> None:
    task, flag = "Quadruped-Velocity-Flat", "--env.deterministic"
    straight = weights_of(trained(tmp_path / "straight", task, "6", flag))
    trained(tmp_path / "resumed", task, "3", flag)
    assert torch.equal(weights_of(trained(tmp_path / "resumed", task, "6", flag, "--resume")), straight)


@pytest.mark.gpu(count=2)
def test_no_rank_has_a_context_on_the_gpu_of_another(tmp_path: Path) -> None:
    ended = train(tmp_path, f"{FAULTY}:TellsContexts", "--gpu-ids", "0", "1")
    assert ended.record["plan"]["backend"] == "nccl"
    told = {}
    for file in ended.run.glob("torchrunx/*/*.log"):
        match = re.search(r"contexts on GPUs \[(.*?)\]", file.read_text(encoding="utf-8"))
        told[file.name] = match and match[1]
    assert told == {"localhost[0].log": "0", "localhost[1].log": "1"}


@pytest.mark.gpu(count=2, real="NCCL's own sockets are looked at")
def test_nccl_listens_on_loopback_only(tmp_path: Path) -> None:
    running = start((*TRAIN, "Cartpole-Swingup", *FLAGS, "--gpu-ids", "0", "1"), tmp_path)
    with Stranger(running.mark) as onlooker:
        ended = running.end()
    assert ended.code == 0, ended.stdout + ended.stderr
    assert onlooker.seen
    assert [listener for listener in onlooker.seen if not listener.is_local] == []
