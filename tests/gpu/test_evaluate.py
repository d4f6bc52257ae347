"""Evaluation on emulated GPUs: each worker's environments and policy keep to the worker's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import run
from support.emulated_gpu import Settings, environment

POLICIES = Path(__file__).parents[1] / "support" / "faulty_policies.py"

pytestmark = [pytest.mark.emulated_gpu, pytest.mark.spawn]


def test_policies_run_on_the_gpu_of_their_worker(tmp_path: Path) -> None:
    """And the episodes are those of the CPU: cart-poles are computed alike there."""
    entry: dict[str, Any] = {"name": "job", "task": "Cartpole-Swingup", "num_episodes": 12, "num_envs": 4}
    entry |= {"policy": ["random", f"{POLICIES}:Half"], "config": {"scale": 0.5}}
    file = tmp_path / "jobs.yaml"
    file.write_text(yaml.safe_dump([{**entry, "variations": {"episode_length_s": 0.4}}]), encoding="utf-8")
    words = (sys.executable, "-m", "shoal", "evaluate", "--jobs", str(file))
    reports = tmp_path / "reports"
    reports.mkdir()
    ended = run((*words, "--out", "gpus", "--gpu-ids", "0", "1"), tmp_path, environment(Settings(), reports))
    assert ended.code == 0, ended.stderr
    found = [json.loads(report.read_text(encoding="utf-8")) for report in reports.iterdir()]
    ranks = sorted((each for each in found if each["graph_launches"]), key=lambda each: each["rank"])
    assert [list(each["contexts"]) for each in ranks] == [["0"], ["1"]]
    assert [each["violations"] for each in ranks] == [[], []]
    on_cpu = run((*words, "--out", "cpu", "--gpu-ids", "None"), tmp_path)
    assert on_cpu.code == 0, on_cpu.stderr
    for job in ("job-policy1", "job-policy2"):
        one, other = ((tmp_path / out / job / "episodes.jsonl").read_text(encoding="utf-8") for out in ("gpus", "cpu"))
        assert one == other
