"""Every learner through the launch modes: equal replicas, exact resume, evaluation and export of its checkpoints."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from support.commands import TRAIN, Ended, run, torchrun

pytestmark = [pytest.mark.spawn, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]

OWN = str(Path(__file__).parents[2] / "docs" / "examples" / "actor_critic.py:ActorCritic")
BASE = ("Cartpole-Swingup", "--gpu-ids", "None", "--num-envs", "16", "--logger", "none", "--agent.save-interval", "2")
BASE += ("--agent.num-steps-per-env", "8", "--env.episode-length-s", "0.3")
FLAGS: dict[str, tuple[str, ...]] = {
    "distillation": (
        *("--agent.algorithm.gradient-length", "4", "--agent.student.hidden-dims", "8"),
        *("--agent.student.rnn-hidden-dim", "8"),
    ),
    "grpo": ("--agent.reference", "start"),
    "fast_sac": ("--agent.batch-size", "64", "--agent.updates-per-step", "1"),
    "skrl": (),
    "skrl SAC": ("--agent.class-name", "SAC", "--agent.sac.batch-size", "64"),
    "skrl TD3": ("--agent.class-name", "TD3", "--agent.td3.batch-size", "64"),
    "skrl_jax": (),
    "rl_games": (),
    OWN: (),
}
EXACT = FLAGS.keys() - {"fast_sac", "skrl SAC", "skrl TD3"}
"""Learners whose whole state is in a checkpoint; the others lack the replay buffer."""


def digests_of(ended: Ended) -> dict[str, str]:
    assert ended.code == 0, ended.stderr
    return json.loads((ended.run / "run.json").read_text(encoding="utf-8"))["launches"][-1]["ended"]["digests"]


def shoal(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "shoal", *words)


@pytest.mark.parametrize("case", FLAGS, ids=lambda case: case.rpartition("/")[2])
def test_a_learner_trains_on_two_workers_resumes_and_is_evaluated(case: str, tmp_path: Path) -> None:
    learner = case.partition(" ")[0]
    flags = ("--learner", learner, *FLAGS[case], "--max-iterations", "4")
    if learner == "distillation":
        flags += ("--teacher", str(run((*TRAIN, *BASE, "--max-iterations", "2"), tmp_path / "taught").run))
    spawned = run((*TRAIN, *BASE, *flags, "--nproc-per-node", "2"), tmp_path)
    whole = digests_of(spawned)
    assert set(whole) == {"0", "1"}
    assert len(set(whole.values())) == 1
    joined = run((*torchrun(2), *BASE, *flags, "--no-export"), tmp_path / "joined")
    assert digests_of(joined) == whole, "the launch mode changes nothing"

    exported = spawned.run / "exports" / "policy.onnx"
    first = exported.read_bytes()
    words = ("--gpu-ids", "None", "--num-episodes", "2", "--json", "--out", str(tmp_path / "results"))
    evaluated = run(shoal("evaluate", "Cartpole-Swingup", *words), tmp_path)
    assert json.loads(evaluated.stdout)["summary"]["episodes"] == 2
    again = run(shoal("export", "Cartpole-Swingup"), tmp_path)
    assert again.code == 0, again.stderr
    assert exported.read_bytes() == first

    shutil.rmtree(spawned.run / "checkpoints" / "000004")
    other = "grpo" if learner != "grpo" else "skrl"
    refused = run((*TRAIN, *BASE, "--resume", "--learner", other), tmp_path)
    assert refused.code == 2
    assert f"--learner {other} was asked for, but the learner of the run" in refused.last_line
    weights = run((*TRAIN, *BASE, "--checkpoint", "latest", "--learner", other), tmp_path)
    assert weights.last_line.startswith(f"Error: The checkpoint is of the learner {learner}, and not of {other}")
    assert len(weights.runs) == 1, "refused before a run directory was made"
    resumed = run((*TRAIN, "Cartpole-Swingup", "--resume", "--nproc-per-node", "2", "--gpu-ids", "None"), tmp_path)
    ended = digests_of(resumed)
    assert len(set(ended.values())) == 1
    assert (ended == whole) is (case in EXACT)
