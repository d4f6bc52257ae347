"""The whole story as a user types it, with two workers: train, go on, play, evaluate. The pages tell it with one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import SMALL, SURROUNDINGS, rows_of

pytestmark = [pytest.mark.spawn, pytest.mark.soak]

TASK = "Cartpole-Swingup"
SHORT = ("--env.episode-length-s", "0.5")


class Desk:
    """A directory in which commands are typed, without a display."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def type(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of the installed commands."""
        command = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
        environ = {**os.environ, **SURROUNDINGS}
        environ.pop("DISPLAY", None)
        ended = subprocess.run(command, cwd=self.path, env=environ, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended

    @property
    def runs(self) -> list[Path]:
        """All run directories, oldest first."""
        return sorted(self.path.glob(f"logs/{TASK}/*"))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Two iterations of training, and two more by `--resume`."""
    desk = Desk(tmp_path_factory.mktemp("desk"))
    desk.type("train", TASK, *SMALL, *SHORT, "--nproc-per-node", "2", "--max-iterations", "2")
    desk.type("train", TASK, "--resume", "--max-iterations", "4")
    return desk


def test_one_run_has_all_iterations_once(desk: Desk) -> None:
    (run,) = desk.runs
    assert [row["iteration"] for row in rows_of(run)] == [1, 2, 3, 4]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["000002", "000004"]


def test_totals_go_on(desk: Desk) -> None:
    rows = rows_of(desk.runs[0])
    steps = [row["Train/total_steps"] for row in rows]
    assert steps == [steps[0] * count for count in (1, 2, 3, 4)]
    episodes = [row["Train/total_episodes"] for row in rows]
    assert episodes == sorted(episodes)
    assert episodes[-1] > 0


def test_the_second_launch_kept_the_number_of_workers(desk: Desk) -> None:
    launches = json.loads((desk.runs[0] / "run.json").read_text(encoding="utf-8"))["launches"]
    assert [launch["plan"]["start_iteration"] for launch in launches] == [0, 2]
    assert [launch["plan"]["world_size"] for launch in launches] == [2, 2]
    for launch in launches:
        digests = launch["ended"]["digests"]
        assert len(digests) == launch["plan"]["world_size"]
        assert len(set(digests.values())) == 1


def test_the_policy_plays_without_a_display(desk: Desk) -> None:
    said = desk.type("play", TASK, "--episodes", "3", "--gpu-ids", "None").stdout
    episodes = re.findall(r"^\s+(\d)\s+(-?[\d.]+)\s+(\d+)\s+\S", said, re.MULTILINE)
    assert [number for number, _, _ in episodes] == ["1", "2", "3"]
    returns, lengths = ([float(row[column]) for row in episodes] for column in (1, 2))
    last = re.match(r"3 episodes, with 95% intervals: return (-?[\d.]+) \[.*\], length ([\d.]+)", said.splitlines()[-1])
    assert last is not None
    assert float(last[1]) == pytest.approx(sum(returns) / 3, abs=0.01)
    assert float(last[2]) == pytest.approx(sum(lengths) / 3, abs=0.1)
    # The environment is as it was in training: half a second of fifty steps a second.
    assert max(lengths) <= 25


def test_an_evaluation_prints_json(desk: Desk) -> None:
    words = (
        "evaluate",
        TASK,
        "--json",
        "--num-episodes",
        "8",
        "--checkpoint",
        str(desk.runs[0] / "checkpoints" / "000002"),
    )
    told = json.loads(desk.type(*words).stdout)
    summary = told["summary"]
    assert summary["episodes"] == 8
    assert summary["return"]["min"] <= summary["return"]["mean"] <= summary["return"]["max"]
    assert summary["length"]["mean"] <= 25
    assert Path(told["policy"]).parent.name == "000002"
