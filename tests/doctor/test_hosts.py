"""What `shoal doctor --hosts` finds of several nodes, and what it predicts from the distance between them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support.machines import machines, needs_machines

from shoal.doctor.communication import judge_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.commands import Ended
    from support.machines import Machines

DOCTOR = (sys.executable, "-m", "shoal", "doctor")
AB = ("--hosts", "a", "b", "--gpu-ids", "None", "--json")
DELAY_MS = 20

# Collectives of 1.08 s, beside which an iteration works for 1 s, 2.7 s or 4.32 s.
DISTANCE = {"latency": 0.01, "gradient": 0.05, "bytes": 1.76e6, "collectives": 28.0, "communication": 1.08}


def rows(*seconds: float) -> list[dict[str, float]]:
    """Return metrics of iterations that work for so long, and spend another second in collectives."""
    return [{"Perf/iteration_time": each + 1, "Perf/collective_time": 1.0} for each in seconds]


def test_the_prediction_is_worked_out_from_the_medians() -> None:
    _, efficiency = judge_hosts(DISTANCE, rows(9, 2.7, 0.1))
    assert "works for 2,700 ms, and its 28 collectives take 1,080 ms" in efficiency.truth


@pytest.mark.parametrize(("work", "level", "part"), [(1.0, "note", "48%"), (2.7, "note", "71%"), (4.32, "ok", "80%")])
def test_an_iteration_that_hardly_outlasts_its_collectives_is_worth_a_note(work: float, level: str, part: str) -> None:
    between, efficiency = judge_hosts(DISTANCE, rows(work))
    assert between.truth == "10.00 ms for a number, 50.00 ms for 1.76 MB of gradients (35.2 MB/s)"
    assert (efficiency.level, bool(efficiency.remedy)) == (level, level == "note")
    assert efficiency.truth.startswith(f"about {part}: ")


def test_without_a_training_nothing_is_predicted() -> None:
    assert [finding.topic for finding in judge_hosts(DISTANCE, ())] == ["between nodes"]


# On machines ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two nodes and the launcher."""
    with machines(tmp_path_factory.mktemp("pair"), "a", "b") as made:
        yield made


def findings(ended: Ended) -> dict[str, dict[str, Any]]:
    """Return what was found, by topic."""
    return {finding["topic"]: finding for finding in json.loads(ended.stdout)["findings"]}


def milliseconds(finding: dict[str, Any]) -> tuple[float, float]:
    """Return the measured times of a number and of a gradient."""
    words = finding["truth"].split()
    assert words[1:5] == ["ms", "for", "a", "number,"]
    return float(words[0]), float(words[5])


@pytest.mark.spawn
@pytest.mark.soak
@pytest.mark.slow
@needs_machines
def test_machines_on_a_long_cable_are_found_apart(pair: Machines) -> None:
    pair["b"].delay(DELAY_MS)
    try:
        far = pair.launcher.start((*DOCTOR, *AB), pair.shared).end()
    finally:
        pair["b"].delay(0)
    assert far.code == 0, far.stdout + far.stderr
    found = findings(far)
    assert list(found) == ["node a", "node b", "between nodes"]
    assert "1.76 MB" in found["between nodes"]["truth"]
    assert min(milliseconds(found["between nodes"])) >= DELAY_MS
    assert pair.left_files() == []
    assert list((pair.shared / "logs").glob("*")) == []


@pytest.mark.soak
@pytest.mark.spawn
@pytest.mark.slow
@needs_machines
def test_a_task_is_measured_with_its_own_gradient_and_held_against_the_distance(pair: Machines) -> None:
    ended = pair.launcher.start((*DOCTOR, "Cartpole-Swingup", *AB), pair.shared).end()
    assert ended.code == 0, ended.stdout + ended.stderr
    found = findings(ended)
    assert list(found) == ["node a", "node b", "between nodes", "efficiency"]
    assert "through eth0" in found["node b"]["truth"]
    assert "1.76 MB" not in found["between nodes"]["truth"]
    # Gradients of 40 mini-batches; one each of statistics, advantages and both normalisers.
    assert "its 43 collectives" in found["efficiency"]["truth"]


@pytest.mark.spawn
@pytest.mark.slow
@needs_machines
def test_a_machine_that_is_away_is_named_and_the_others_are_looked_at(pair: Machines) -> None:
    words = (*DOCTOR, "--hosts", "a", "nowhere", "--gpu-ids", "None", "--json")
    ended = pair.launcher.start(words, pair.shared).end()
    report = json.loads(ended.stdout)
    assert ended.code == report["exit_code"] != 0
    assert [(finding["topic"], finding["level"]) for finding in report["findings"]] == [
        ("nodes", "problem"),
        ("node a", "ok"),
    ]
    assert "nowhere" in report["findings"][0]["truth"]
