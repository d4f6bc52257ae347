"""Trainings of `--hosts`, on machines made of namespaces, with ssh in between: what they learn, and how they end."""

from __future__ import annotations

import json
import re
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from support.commands import FAULTY, SMALL, TRAIN, run, wait_until
from support.machines import machines, needs_machines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.commands import Ended
    from support.machines import Machine, Machines, RunningThere

pytestmark = [pytest.mark.spawn, pytest.mark.slow, needs_machines]

SWINGUP = (*TRAIN, "Cartpole-Swingup", *SMALL, "--logger", "none")
AB = ("--hosts", "a", "b")
FOR_EVER = ("--max-iterations", "100000")
STALL_S = 10
IN_TIME_S = STALL_S + 15.0
"""By then all ranks that are in reach must have ended, as the flag's help promises."""


@contextmanager
def training(made: Machines, *flags: str) -> Iterator[RunningThere]:
    """A training on two machines that has done its second iteration."""
    running = made.launcher.start((*SWINGUP, *AB, *FOR_EVER, "--stall-timeout", str(STALL_S), *flags), made.shared)
    running.read_until("[2/")
    yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Machines]:
    """Two machines and the launcher, to be changed."""
    with machines(tmp_path, "a", "b") as made:
        yield made


def assert_nothing_is_left(made: Machines) -> None:
    assert made.left_processes() == []
    assert made.left_files() == []


# Trainings that end well ----------------------------------------------------------------------------------------------

LENGTH = ("--max-iterations", "4")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Two workers on this machine."""
    return run((*SWINGUP, *LENGTH, "--nproc-per-node", "2"), tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ended, Machines]]:
    """The same two workers on two machines, which know themselves as 127.0.1.1, as on Debian."""
    with machines(tmp_path_factory.mktemp("apart"), "a", "b", debian=True) as made:
        yield made.launcher.start((*SWINGUP, *LENGTH, *AB), made.shared).end(), made


def test_two_machines_learn_what_two_workers_on_one_learn(alone: Ended, apart: tuple[Ended, Machines]) -> None:
    ended, _ = apart
    assert alone.code == 0, alone.stdout + alone.stderr
    assert ended.code == 0, ended.stdout + ended.stderr
    assert ended.record["ended"]["digests"] == alone.record["ended"]["digests"]
    assert len(ended.record["ended"]["digests"]) == 2
    assert [row["Loss/value"] for row in ended.rows] == [row["Loss/value"] for row in alone.rows]
    assert "[4/4]" in ended.stdout


def test_the_record_tells_of_the_machines(apart: tuple[Ended, Machines]) -> None:
    ended, made = apart
    plan = ended.record["plan"]
    assert (plan["door"], plan["backend"], plan["world_size"], plan["seeds"]) == ("spawned", "gloo", 2, [42, 43])
    assert plan["machines"] == ["a: cpu", "b: cpu"]
    assert plan["interfaces"] == ["a: eth0", "b: eth0"]
    assert plan["meeting"] in {made["a"].address, made["a"].address6}
    assert ended.record["host"] == "launcher"
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((ended.run / "ranks").glob("*.json"))]
    assert [(note["rank"], note["host"], note["ending"]) for note in notes] == [(0, "a", "done"), (1, "b", "done")]
    assert sorted(path.name for path in ended.run.glob("torchrunx/*/*")) == ["a[0].log", "b[0].log"]


def test_nothing_is_left_on_any_machine(apart: tuple[Ended, Machines]) -> None:
    ended, made = apart
    assert (ended.left_processes, ended.left_files) == ([], [])
    assert_nothing_is_left(made)


def test_four_workers_on_two_machines_that_have_the_new_protocol_only(tmp_path: Path) -> None:
    with machines(tmp_path, "a", "b", versions=(6,)) as made:
        words = (*SWINGUP, "--max-iterations", "2", "--hosts", made["a"].address6, "b", "--nproc-per-node", "2")
        ended = made.launcher.start(words, made.shared).end()
        assert ended.code == 0, ended.stdout + ended.stderr
        assert ended.record["plan"]["meeting"] == made["a"].address6
        assert len(set(ended.record["ended"]["digests"].values())) == 1
        assert len(ended.record["ended"]["digests"]) == 4
        logs = sorted(path.name for path in ended.run.glob("torchrunx/*/*"))
        assert logs == ["b[0].log", "b[1].log", f"{made['a'].address6}[0].log", f"{made['a'].address6}[1].log"]
        assert_nothing_is_left(made)


# Losses ---------------------------------------------------------------------------------------------------------------


def assert_lost(ended: Ended, seconds: float, how: str) -> None:
    """Machine b was lost, and told of in time."""
    assert ended.code == 75, ended.stdout + ended.stderr
    assert re.search(rf"^Error: Lost host b \(rank 1\) in .*: {how}", ended.last_line)
    assert ended.last_line.endswith(" start it again.")
    assert f"Error: {ended.record['ended']['last_line']}" == ended.last_line
    assert seconds < IN_TIME_S


def test_a_cut_cable_ends_the_others_in_time_with_the_name_of_the_host(pair: Machines) -> None:
    with training(pair) as running:
        cut = time.monotonic()
        pair["b"].cut()
        ended = running.end()
        assert_lost(ended, time.monotonic() - cut, r"it was silent for \d+ s\.")
        assert pair["a"].left_processes() == []
        # Nobody can tell it, but it notices by itself.
        assert wait_until(lambda: not workers_of(pair["b"]), timeout=IN_TIME_S)
        pair["b"].mend()
    assert wait_until(lambda: not pair.left_processes(), timeout=30)
    assert pair.left_files() == []


def workers_of(machine: Machine) -> list[int]:
    """Its processes but those of the SSH server."""
    return [pid for pid in machine.processes() if "sshd" not in name_of(pid)]


def name_of(pid: int) -> str:
    from pathlib import Path

    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")
    except OSError:
        return "sshd"  # It has just ended.


def test_a_machine_without_power_is_told_of_in_time_and_the_training_goes_on_with_the_other(pair: Machines) -> None:
    again = ("--max-restarts", "1", "--min-workers", "1", "--max-iterations", "12", "--agent.save-interval", "2")
    words = (*SWINGUP, *AB, "--stall-timeout", str(STALL_S), *again)
    running = pair.launcher.start((*words, "--agent.num-steps-per-env", "200"), pair.shared)
    running.read_until("[3/")
    pair["b"].power_off()
    ended = running.end()
    assert ended.code == 0, ended.stdout + ended.stderr
    assert re.search(r"^Lost host b \(rank 1\) in ", ended.stdout, re.MULTILINE)
    assert "Host b cannot be reached by ssh (" in ended.stdout
    assert "Going on with 1 of 2 workers, 16 environments each: 16 in all, 32 before." in ended.stdout
    assert [row["iteration"] for row in ended.rows] == list(range(1, 13))
    first, second = json.loads((ended.run / "run.json").read_text(encoding="utf-8"))["launches"]
    assert (first["ended"]["exit_code"], second["ended"]["exit_code"]) == (75, 0)
    assert second["plan"]["machines"] == ["a: cpu"]
    assert pair["a"].left_processes() == []


def test_a_rank_that_is_killed_there_is_named_with_its_machine(pair: Machines) -> None:
    environ = {"SHOAL_TEST_FAULTY_RANK": "1"}
    ended = pair.launcher.start((*TRAIN, f"{FAULTY}:Dies", *SMALL, *AB), pair.shared, environ).end()
    assert ended.code == 75, ended.stdout + ended.stderr
    assert "Error: Lost rank 1 on b in rollout (iteration 2): killed by SIGKILL (" in ended.last_line
    assert (ended.left_processes, ended.left_files) == ([], [])
    assert_nothing_is_left(pair)


def test_ranks_whose_launcher_is_killed_save_and_go_on_all_machines(pair: Machines) -> None:
    with training(pair) as running:
        running.signal_itself(signal.SIGKILL)
        assert wait_until(lambda: not pair.left_processes(), timeout=15)
    ended = running.end()
    assert [path.name for path in (ended.run / "checkpoints").iterdir()] == [f"{ended.rows[-1]['iteration']:06d}"]
    assert_nothing_is_left(pair)


def test_ctrl_c_ends_the_run_on_all_machines_with_a_checkpoint(pair: Machines) -> None:
    with training(pair) as running:
        running.signal_all(signal.SIGINT)
        ended = running.end()
    assert ended.code == 130, ended.stdout + ended.stderr
    last_row = ended.rows[-1]["iteration"]
    assert ended.last_line == (
        f"Error: SIGINT ended the run after iteration {last_row}, with a checkpoint: pass --resume to go on."
    )
    assert [path.name for path in (ended.run / "checkpoints").iterdir()] == [f"{last_row:06d}"]
    assert ended.stdout.count("SIGINT: stopping after this iteration") == 1
    assert "Traceback" not in ended.stdout + ended.stderr
    assert_nothing_is_left(pair)
