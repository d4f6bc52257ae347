"""The same command typed on each of several machines: by `--nnodes`, and under torchrun. Machines are namespaces."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.commands import FAULTY, SMALL, TRAIN, rows_of, run, wait_until
from support.machines import machines, needs_machines

import shoal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.commands import Ended
    from support.machines import Machine, Machines, RunningThere

pytestmark = [pytest.mark.spawn, pytest.mark.slow, needs_machines]

SWINGUP = ("Cartpole-Swingup", *SMALL, "--logger", "none", "--save-interval", "5")
FOR_EVER = ("--max-iterations", "100000", "--stall-timeout", "10")
LENGTH = ("--max-iterations", "4")
IN_TIME_S = 10 + 15.0
"""By then all machines that are in reach must have ended."""
OF_ITS_OWN = Path("/tmp/own")  # noqa: S108  Each machine's own.
"""A directory that each machine has for itself."""


def typed(made: Machines, number: int, *flags: str, nnodes: str = "2", where: Path | None = None) -> RunningThere:
    """The command, typed on one machine."""
    address = made.workers[0].address
    nodes = ("--nnodes", nnodes, "--node-rank", str(number), "--master-addr", address)
    return made.workers[number].start((*TRAIN, *SWINGUP, *nodes, *flags), where or made.shared)


def by_torchrun(made: Machines, number: int, *flags: str, address: str) -> RunningThere:
    """The command under torchrun, typed on one machine."""
    elastic = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=1",
        "-m",
        "shoal",
        "train",
    )
    nodes = (f"--node-rank={number}", f"--master-addr={address}", "--master-port=29511")
    return made.workers[number].start((*elastic[:5], *nodes, *elastic[5:], *SWINGUP, *flags), made.shared)


def both(*running: RunningThere) -> list[Ended]:
    return [each.end() for each in running]


def launches(run_dir: Path) -> list[dict[str, Any]]:
    """The entries of `run.json`."""
    return json.loads((run_dir / "run.json").read_text(encoding="utf-8"))["launches"]


def the_run(log_root: Path) -> Path:
    (found,) = log_root.glob("*/*")
    return found


def iterations(log_root: Path) -> int:
    """How many iterations have been done below a log root."""
    files = list(log_root.glob("*/*/metrics.jsonl"))
    return len(rows_of(files[0].parent)) if files else 0


def assert_nothing_is_left(made: Machines) -> None:
    assert made.left_processes() == []
    assert [name for name in made.left_files() if not name.endswith(f": {OF_ITS_OWN.name}")] == []


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Machines]:
    with machines(tmp_path, "alpha", "beta") as made:
        yield made


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the same two workers learn on one machine."""
    ended = run((*TRAIN, *SWINGUP, *LENGTH, "--nproc-per-node", "2"), tmp_path_factory.mktemp("alone"))
    assert ended.code == 0, ended.stderr
    return digest_of(ended.run)


def digest_of(run_dir: Path) -> str:
    """The fingerprint that both ranks of the newest launch have ended with."""
    digests = launches(run_dir)[-1]["ended"]["digests"]
    assert set(digests) == {"0", "1"}
    assert digests["0"] == digests["1"]
    return digests["0"]


# Trainings that end well ----------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_machines_with_disks_of_their_own_learn_what_one_machine_learns_and_go_on(pair: Machines, digest: str) -> None:
    for ended in both(*(typed(pair, number, *LENGTH, where=OF_ITS_OWN) for number in (1, 0))):
        assert ended.code == 0, ended.stdout + ended.stderr
    alpha, beta = (the_run(machine.outside(OF_ITS_OWN / "logs")) for machine in pair.workers)
    assert digest_of(alpha) == digest
    files = sorted(path.name for path in (alpha / "checkpoints/000004").iterdir())
    assert files == ["manifest.json", "model.pt", "rank_00000.pt", "rank_00001.pt"]
    assert not (beta / "checkpoints").exists()

    longer = ("--max-iterations", "7", "--resume")
    for ended in both(*(typed(pair, number, *longer, where=OF_ITS_OWN) for number in (0, 1))):
        assert ended.code == 0, ended.stdout + ended.stderr
    straight = run((*TRAIN, *SWINGUP, "--max-iterations", "7", "--nproc-per-node", "2"), alpha / "straight")
    assert digest_of(alpha) == digest_of(straight.run)
    assert [row["iteration"] for row in rows_of(alpha)] == [1, 2, 3, 4, 5, 6, 7]
    assert_nothing_is_left(pair)


@pytest.mark.soak
@pytest.mark.parametrize(("debian", "versions"), [(True, (4,)), (False, (6,))], ids=["Debian", "IPv6"])
def test_torchrun_on_machines_that_know_themselves_as_others_do_not(
    debian: bool, versions: tuple[Any, ...], tmp_path: Path, digest: str
) -> None:
    with machines(tmp_path, "alpha", "beta", debian=debian, versions=versions) as made:
        address = "alpha" if debian else made["alpha"].address6
        for ended in both(*(by_torchrun(made, number, *LENGTH, address=address) for number in (0, 1))):
            assert ended.code == 0, ended.stdout + ended.stderr
        assert digest_of(the_run(made.shared / "logs")) == digest
        assert_nothing_is_left(made)


# Machines that are lost -----------------------------------------------------------------------------------------------


def begun(made: Machines, *flags: str, nnodes: str = "2") -> list[RunningThere]:
    """A training on both machines that has saved a checkpoint."""
    running = [typed(made, number, *FOR_EVER, *flags, nnodes=nnodes) for number in (0, 1)]
    assert wait_until(lambda: iterations(made.shared / "logs") > 6, timeout=120)
    return running


@pytest.mark.soak
def test_both_sides_of_a_cable_that_is_pulled_end_and_say_so(pair: Machines) -> None:
    running = begun(pair)
    pair["beta"].cut()
    pulled = time.monotonic()
    alpha, beta = both(*running)
    assert time.monotonic() - pulled < IN_TIME_S
    assert (alpha.code, beta.code) == (75, 75), alpha.stderr + beta.stderr
    assert alpha.last_line.startswith("Error: Rank 1 on beta: no progress for ")
    assert "beta has been silent for " in alpha.last_line
    assert beta.last_line.startswith("Error: Lost rank 0's machine from beta: ")
    for ended in (alpha, beta):
        assert "Pass --resume to go on from iteration " in ended.last_line
    assert_nothing_is_left(pair)


@pytest.mark.soak
def test_training_goes_on_without_a_machine_and_takes_it_back(pair: Machines) -> None:
    running = begun(pair, "--max-restarts", "3", nnodes="1:2")
    log_root = pair.shared / "logs"
    pair["beta"].power_off()

    def on(workers: int) -> bool:
        newest = launches(the_run(log_root))[-1]
        return newest["plan"]["world_size"] == workers and iterations(log_root) > newest["plan"]["start_iteration"] + 3

    assert wait_until(lambda: on(1), timeout=120)
    pair["beta"].power_on()
    running.append(typed(pair, 1, *FOR_EVER, "--max-restarts", "3", nnodes="1:2"))
    assert wait_until(lambda: on(2), timeout=120)
    running[0].signal_itself(signal.SIGINT)
    alpha, _lost, beta = both(*running)
    assert (alpha.code, beta.code) == (130, 130), alpha.stderr + beta.stderr
    told = [launch["ended"]["exit_code"] for launch in launches(the_run(log_root))]
    assert told == [75, 143, 130]  # Lost; asked to make room for the one that came back; Ctrl-C.
    done = [row["iteration"] for row in rows_of(the_run(log_root))]
    assert done == [float(number) for number in range(1, len(done) + 1)]
    assert pair.left_processes() == []


@pytest.mark.soak
def test_a_failure_on_one_machine_is_told_on_all_and_is_not_tried_again(tmp_path: Path) -> None:
    with machines(tmp_path, "alpha", "beta", "gamma") as made:
        nodes = ("--nnodes", "3", "--master-addr", made["alpha"].address6, "--max-restarts", "2")
        words = (*TRAIN, f"{FAULTY}:Raises", *SMALL, "--logger", "none", "--max-iterations", "9", *nodes)
        numbered = zip(("0", "1", "2"), made.workers, strict=True)
        ended = both(*(each.start((*words, "--node-rank", number), OF_ITS_OWN) for number, each in numbered))
        for each in ended:
            assert each.code == 1, each.stdout + each.stderr
            assert re.match(r"Error: .*Rank 1 on beta failed in rollout \(iteration \d\): ", each.last_line)
        run_dir = the_run(made["alpha"].outside(OF_ITS_OWN / "logs"))
        # Attempts after the first end before they begin, and what the others left has come home.
        assert [launch["ended"]["exit_code"] for launch in launches(run_dir)] == [1]
        note = json.loads((run_dir / "ranks" / "rank_00001.json").read_text(encoding="utf-8"))
        assert (note["host"], note["ending"]) == ("beta", "failed")
        assert_nothing_is_left(made)


@pytest.mark.soak
def test_a_signal_on_one_machine_ends_all_with_a_checkpoint(pair: Machines) -> None:
    running = begun(pair)
    running[1].signal_itself(signal.SIGTERM)
    alpha, beta = both(*running)
    assert (alpha.code, beta.code) == (143, 143), alpha.stderr + beta.stderr
    done = iterations(pair.shared / "logs")
    assert (
        beta.last_line
        == f"Error: SIGTERM ended the run after iteration {done}, with a checkpoint: pass --resume to go on."
    )
    assert (the_run(pair.shared / "logs") / f"checkpoints/{done:06}").exists()
    assert_nothing_is_left(pair)


# Machines that do not fit ---------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_another_command_on_one_machine_ends_all_before_anything_is_made(pair: Machines) -> None:
    words = (*LENGTH, "--agent.algorithm.gamma")
    for ended in both(typed(pair, 0, *words, "0.99"), typed(pair, 1, *words, "0.9")):
        assert ended.code == 2, ended.stderr
        assert "agent.algorithm.gamma: 0.9 there, 0.99 on rank 0" in ended.stderr
        assert "Rank 1 on beta was asked something else than rank 0 on alpha" in ended.last_line
    assert not (pair.shared / "logs").exists()
    assert_nothing_is_left(pair)


def test_other_code_on_one_machine_ends_all_and_names_the_file(pair: Machines) -> None:
    copy = pair.shared / "other"
    shutil.copytree(Path(shoal.__file__).parent, copy / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "shoal" / "learn" / "rsl_rl" / "ppo.py").open("a", encoding="utf-8") as file:
        file.write("# Half a thought.\n")
    nodes = ("--nnodes", "2", "--master-addr", pair["alpha"].address, *LENGTH)

    def typed_with(machine: Machine, number: str, environ: dict[str, str]) -> RunningThere:
        return machine.start((*TRAIN, *SWINGUP, *nodes, "--node-rank", number), pair.shared, environ)

    here = typed_with(pair["alpha"], "0", {})
    there = typed_with(pair["beta"], "1", {"PYTHONPATH": str(copy)})
    for ended in both(here, there):
        assert ended.code == 2, ended.stderr
        assert "1 file of shoal differs: learn/rsl_rl/ppo.py" in ended.stderr
    assert_nothing_is_left(pair)


def test_a_machine_that_does_not_come_is_waited_for_and_no_longer(pair: Machines) -> None:
    ended = typed(pair, 0, *LENGTH, "--startup-timeout", "5").end()
    assert ended.code == 75, ended.stderr
    assert "The machines of --nnodes 2 did not meet at " in ended.last_line
    first = typed(pair, 1, *LENGTH, "--startup-timeout", "5").end()
    assert first.code == 75, first.stderr
    assert "machine 0 does not answer within 5 s" in first.last_line
    assert_nothing_is_left(pair)


@pytest.mark.soak
def test_an_interface_that_a_machine_does_not_have_ends_all(pair: Machines) -> None:
    alpha, beta = both(typed(pair, 0, *LENGTH), typed(pair, 1, *LENGTH, "--interface", "eth7"))
    assert (alpha.code, beta.code) == (2, 2), alpha.stderr + beta.stderr
    assert "--interface eth7 was asked for, but beta has no such interface" in beta.last_line
    assert not (pair.shared / "logs").exists()
    assert_nothing_is_left(pair)


def test_an_address_that_is_not_of_machine_0_is_refused_there(pair: Machines) -> None:
    nodes = ("--nnodes", "2", "--node-rank", "0", "--master-addr", pair["beta"].address)
    ended = pair["alpha"].start((*TRAIN, *SWINGUP, *nodes), pair.shared).end()
    assert ended.code == 2
    assert f"--master-addr {pair['beta'].address} is none of its addresses" in ended.last_line
