"""Launches on emulated GPUs: each rank uses its own alone, and all take part in the same collectives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from support.commands import SMALL, TRAIN, run, torchrun
from support.emulated_gpu import Settings, environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.commands import Ended

pytestmark = [pytest.mark.emulated_gpu, pytest.mark.spawn]

TASK = "Cartpole-Swingup"
FLAGS = (*SMALL[2:], "--logger", "none", "--agent.save-interval", "2")
"""The small training, without its flag for the CPU, with a checkpoint within and one at the end."""
ITERATIONS, STEPS = 3, 8

WAITS = {
    "algorithms/ppo.py:construct_algorithm",
    "learn/groups.py:gather_strings",
    "learn/training_env.py:_refuse_non_finite",
    "learn/health.py:refuse_non_finite_update",
    "learn/graphs.py:_capture",
    "learn/learner.py:<listcomp>",
    "rsl_rl/ppo.py:update",
    "learn/replicas.py:compare_replicas",
    "learn/replicas.py:fingerprints",
    "rsl_rl/learner.py:metrics",
    "learn/state.py:random_state",
    "learn/statistics.py:_sum_over_ranks",
}
"""Where a launch may wait for the device, of all the code from its start to its end."""


@dataclass
class Launch:
    """How a command on emulated GPUs ended."""

    ended: Ended
    reports: list[dict[str, Any]]
    """What each rank did with its GPU, by rank."""


def launch(where: Path, *flags: str, words: Sequence[str] = (*TRAIN, TASK), **settings: Any) -> Launch:
    """Run a command to its end."""
    reports = where / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    ended = run((*words, *FLAGS, *flags), where, environment(Settings(**settings), reports))
    found = [json.loads(file.read_text(encoding="utf-8")) for file in reports.iterdir()]
    ranks = sorted((each for each in found if each["graph_launches"]), key=lambda each: each["rank"])
    return Launch(ended, ranks)


MODES: dict[str, tuple[tuple[str, ...], tuple[str, ...], list[int]]] = {
    "in process": ((*TRAIN, TASK), ("--gpu-ids", "1"), [1]),
    "spawned": ((*TRAIN, TASK), ("--gpu-ids", "0", "1"), [0, 1]),
    "spawned, sharing a GPU": ((*TRAIN, TASK), ("--gpu-ids", "1", "--nproc-per-node", "2"), [1, 1]),
    "joined": ((*torchrun(2), TASK), (), [0, 1]),
}
"""Words and flags of each launch mode, and the GPU of each rank."""

RARE = ("spawned, sharing a GPU",)
"""Those that differ from `spawned` by what decides on GPUs only."""


@pytest.mark.parametrize(
    "mode", ["in process", "spawned", "joined", *(pytest.param(mode, marks=pytest.mark.slow) for mode in RARE)]
)
def test_each_rank_keeps_to_its_gpu(mode: str, tmp_path: Path) -> None:
    words, flags, gpus = MODES[mode]
    done = launch(tmp_path, *flags, "--max-iterations", str(ITERATIONS), words=words)
    assert done.ended.code == 0, done.ended.stdout + done.ended.stderr
    assert [row["iteration"] for row in done.ended.rows] == [1, 2, 3]
    assert [list(each["contexts"]) for each in done.reports] == [[str(gpu)] for gpu in gpus]
    assert [each["violations"] for each in done.reports] == [[]] * len(gpus)
    # Besides those of the training, the graph is launched once while the task is validated.
    launches = [each["graph_launches"] for each in done.reports]
    assert launches == [ITERATIONS * STEPS + 1] * len(gpus)
    shared = len(set(gpus)) < len(gpus)
    for each in done.reports:
        lines = {line for kind, line, _ in each["waits_of_torch"] if kind != "collective through gloo"}
        assert lines <= WAITS, lines - WAITS
    first, *others = [_without_device(each["collectives"]) for each in done.reports]
    assert all(each == first for each in others)
    if len(gpus) > 1:
        assert first[0] == ["init_process_group", "gloo" if shared else "nccl"]
        assert len(first) > ITERATIONS


def _without_device(collectives: list[list[Any]]) -> list[list[Any]]:
    """Operations with the shapes and types of their tensors, in order."""
    opened = [[name, backend] for name, backend, _ in (each for each in collectives if len(each) > 2)]
    rest = [each for each in collectives if len(each) == 2]
    return [*opened, *([name, [shape_and_type[:2] for shape_and_type in tensors]] for name, tensors in rest)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "learner",
    [
        "grpo --agent.reference start",
        "fast_sac --agent.batch-size 64",
        "skrl",
        "skrl --agent.class-name SAC --agent.sac.batch-size 64",
        "skrl --agent.class-name TD3 --agent.td3.batch-size 64",
        "rl_games",
    ],
)
def test_another_learner_keeps_to_its_gpu(learner: str, tmp_path: Path) -> None:
    done = launch(tmp_path, "--learner", *learner.split(), "--gpu-ids", "1", "--max-iterations", "3")
    assert done.ended.code == 0, done.ended.stdout + done.ended.stderr
    (report,) = done.reports
    assert (list(report["contexts"]), report["violations"]) == (["1"], [])


def test_a_resume_goes_on_upon_another_gpu(tmp_path: Path) -> None:
    begun = launch(tmp_path / "first", "--gpu-ids", "0", "--max-iterations", "2")
    assert begun.ended.code == 0, begun.ended.stderr
    flags = ("--gpu-ids", "1", "--resume", str(begun.ended.run), "--max-iterations", "4")
    resumed = launch(tmp_path / "second", *flags)
    assert resumed.ended.code == 0, resumed.ended.stdout + resumed.ended.stderr
    (report,) = resumed.reports
    assert (list(report["contexts"]), report["violations"]) == (["1"], [])


def test_an_old_driver_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = launch(tmp_path, "--gpu-ids", "0", driver_release=570, driver_version=12080)
    assert done.ended.code == 2
    assert "The NVIDIA driver is 570" in done.ended.last_line
    assert "CUDA 12.8" in done.ended.last_line
    assert "CUDA 13" in done.ended.last_line
    assert done.ended.runs == []


MUJOCO = (*TRAIN, "Cartpole-Swingup-Mujoco")


def test_a_gpu_without_memory_pools_is_refused_unless_kernels_are_launched_one_by_one(tmp_path: Path) -> None:
    refused = launch(tmp_path / "graph", "--gpu-ids", "0", words=MUJOCO, has_memory_pools=False)
    assert refused.ended.code == 1
    assert "The step cannot be captured as a graph on cuda:0" in refused.ended.last_line
    flags = ("--gpu-ids", "0", "--env.no-step-graph", "--max-iterations", "1")
    trained = launch(tmp_path / "none", *flags, words=MUJOCO, has_memory_pools=False)
    assert trained.ended.code == 0, trained.ended.stdout + trained.ended.stderr


def test_a_graph_that_cannot_be_instantiated_is_refused(tmp_path: Path) -> None:
    done = launch(tmp_path, "--gpu-ids", "0", can_instantiate=False)
    assert done.ended.code == 1
    assert "The step cannot be captured as a graph on cuda:0 (Graph creation error" in done.ended.last_line
