"""`shoal doctor` as a user runs it: one examination of two workers on the CPU, read by all tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.spawn, pytest.mark.slow]

LEVELS = {"ok", "note", "problem"}


def doctor(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "shoal", "doctor", *words],
        cwd=where,
        env={**os.environ, "TMPDIR": str(where)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory to run it in."""
    return tmp_path_factory.mktemp("patient")


@pytest.fixture(scope="module")
def done(where: Path) -> subprocess.CompletedProcess[str]:
    """The examination."""
    return doctor(where, "Cartpole-Swingup", "--gpu-ids", "None", "--nproc-per-node", "2", "--json")


@pytest.fixture(scope="module")
def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What it printed."""
    return json.loads(done.stdout)


def test_a_machine_that_trains_is_found_well(done: subprocess.CompletedProcess[str], report: dict[str, Any]) -> None:
    wrong = [finding for finding in report["findings"] if finding["level"] == "problem"]
    assert wrong == []
    assert (done.returncode, report["exit_code"]) == (0, 0)


def test_nothing_but_json_is_on_standard_output(done: subprocess.CompletedProcess[str]) -> None:
    assert json.loads(done.stdout).keys() == {"shoal", "exit_code", "findings"}
    assert "Timing all_reduce through gloo among 2 ranks." in done.stderr.splitlines()


def test_every_finding_has_the_same_fields(report: dict[str, Any]) -> None:
    for finding in report["findings"]:
        assert finding.keys() == {"topic", "level", "truth", "remedy", "transient"}
        assert finding["level"] in LEVELS
        assert finding["topic"]
        assert finding["truth"]
        assert not finding["truth"].endswith(".")
        assert not finding["remedy"].endswith(".")


def test_everything_is_looked_at(report: dict[str, Any]) -> None:
    topics = [finding["topic"] for finding in report["findings"]]
    assert list(dict.fromkeys(topics)) == [
        *(
            "python",
            "packages",
            "commands",
            "mjlab",
            "locale",
            "environment",
            "cores",
            "open files",
            "task",
            "kernel cache",
        ),
        *("temporary files", "loopback", "disk", "memory", "host name", "driver", "devices", "GPUs", "torch"),
        *("verified", "kernel on cpu", "gloo, 2 ranks"),
    ] or any(topic.startswith("GPU ") for topic in topics)  # On a machine with GPUs, each has its line.


def test_a_kernel_ran_and_was_captured(report: dict[str, Any]) -> None:
    (told,) = [finding["truth"] for finding in report["findings"] if finding["topic"] == "kernel on cpu"]
    assert told.startswith("ran, and was captured as a graph; ")


def test_all_reduce_was_timed(report: dict[str, Any]) -> None:
    (told,) = [finding["truth"] for finding in report["findings"] if finding["topic"].startswith("gloo, ")]
    tiny, gradient = re.findall(r"([\d.]+) ms", told)
    assert float(tiny) > 0
    assert 0 < float(gradient) < 5000


def test_nothing_is_left_behind(done: subprocess.CompletedProcess[str], where: Path) -> None:
    assert done.returncode == 0
    kept = [path.name for path in where.iterdir() if not path.name.startswith(("torchinductor_", "warp"))]
    assert kept == []


@pytest.mark.gpu
def test_a_gpu_is_examined(where: Path) -> None:
    report = json.loads(doctor(where, "--gpu-ids", "0", "--json").stdout)
    found = {finding["topic"]: finding["level"] for finding in report["findings"]}
    assert found["GPU 0"] == "ok"
    assert found["kernel on cuda:0"] == "ok"
