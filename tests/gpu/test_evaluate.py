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
    met = tmp_path / "met"  # Each worker waits for the other's job: a fast one would take both.
    met.mkdir()
    file, entry = tmp_path / "jobs.yaml", {"task": "Cartpole-Swingup", "num_episodes": 12, "num_envs": 4}
    entry |= {"policy": f"{POLICIES}:Meets", "config": {"place": str(met), "workers": 2}}
    lengths = {"short": 0.4, "long": 0.6}
    jobs: list[dict[str, Any]] = [
        {**entry, "name": name, "variations": {"episode_length_s": length}} for name, length in lengths.items()
    ]
    file.write_text(yaml.safe_dump(jobs), encoding="utf-8")
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
    for job in lengths:
        one, other = ((tmp_path / out / job / "episodes.jsonl").read_text(encoding="utf-8") for out in ("gpus", "cpu"))
        assert one == other
