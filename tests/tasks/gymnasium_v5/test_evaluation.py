"""What `evaluate` says of a policy holds in Gymnasium itself."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import gymnasium
import numpy as np
import onnxruntime
import pytest
from support.commands import run

if TYPE_CHECKING:
    from pathlib import Path

EPISODES = 100
OF_GYMNASIUM = 400
"""More, so that the mean of Gymnasium's is known better than the interval of ours is wide."""


@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.soak
def test_hopper_earns_in_gymnasium_what_evaluate_states(tmp_path: Path) -> None:
    shoal = (sys.executable, "-m", "shoal")
    trained = run((*shoal, "train", "Hopper-v5", "--gpu-ids", "None", "--max-iterations", "12"), tmp_path)
    assert trained.code == 0, trained.stderr
    onnx = trained.run / "exports" / "policy.onnx"
    words = (
        "Hopper-v5",
        "--gpu-ids",
        "None",
        "--checkpoint",
        str(onnx),
        "latest",
        "--json",
        "--num-episodes",
        str(EPISODES),
    )
    evaluated = run((*shoal, "evaluate", *words), tmp_path)
    assert evaluated.code == 0, evaluated.stderr
    of_onnx, of_checkpoint = (job["summary"]["return"] for job in json.loads(evaluated.stdout))

    mean = float(np.mean(gymnasium_returns(onnx)))
    assert of_onnx["low"] < mean < of_onnx["high"]
    assert of_checkpoint["low"] < mean < of_checkpoint["high"]
    assert of_onnx["high"] - of_onnx["low"] < 0.5 * mean, "the interval says something"


def gymnasium_returns(onnx: Path) -> list[float]:
    """Returns of the policy in Gymnasium's own environment."""
    session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    env = gymnasium.make("Hopper-v5")
    returns: list[float] = []
    for seed in range(OF_GYMNASIUM):
        observation, _ = env.reset(seed=seed)
        earned, ended = 0.0, False
        while not ended:
            (action,) = session.run(None, {"obs": observation[None].astype(np.float32)})
            observation, reward, terminated, truncated, _ = env.step(np.asarray(action)[0])
            earned += float(reward)
            ended = terminated or truncated
        returns.append(earned)
    return returns
