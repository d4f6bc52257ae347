"""The example of a pretrained policy acts in a task's environments, as a job that names its class and folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.documented import ROOT

from shoal.envs.vec_env import WarpVecEnv
from shoal.jobs.policies import open_policy
from shoal.plan.job import Job
from shoal.tasks import registry
from shoal.user_code import load_file

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("huggingface_hub")
pytest.importorskip("safetensors")

FILE = ROOT / "docs" / "examples" / "pretrained_policy.py"
NUM_ENVS = 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A network as it was saved."""
    torch.manual_seed(0)
    network = load_file(FILE).PretrainedNetwork(num_observations=5, num_actions=1, hidden_dim=8)
    network.save_pretrained(tmp_path / "pretrained")
    return tmp_path / "pretrained"


def test_a_pretrained_network_acts_as_it_was_saved(folder: Path) -> None:
    spec = registry.resolve("Cartpole-Balance")
    env = WarpVecEnv(spec.build(spec.env, num_envs=NUM_ENVS, device="cpu", seed=1))
    job = Job(name="a", task=spec.name, policy=f"{FILE}:PretrainedPolicy", config={"folder": str(folder)})
    policy: Any = open_policy(job, env, torch.device("cpu"))
    saved = load_file(FILE).PretrainedNetwork.from_pretrained(folder)
    with torch.inference_mode():
        policy.begin(range(NUM_ENVS), seed=1)
        observations = env.reset(seed=1)
        for _ in range(20):
            actions = policy(observations)
            assert actions.dtype == torch.float32
            # Bfloat16 has 8 bits, and the actions come from two layers of numbers below 3.
            assert (actions - saved(observations["policy"])).abs().max() < 0.03
            observations, _, dones, _ = env.step(actions)
            policy.reset(dones)
    network = policy.policy.network
    assert type(network).__name__ == "PretrainedNetwork"  # Nothing is wrapped around it.
    assert {(each.dtype, each.device.type) for each in network.parameters()} == {(torch.bfloat16, "cpu")}
