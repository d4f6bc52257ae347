"""torchrun, typed on each of several nodes. Machines are namespaces."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.commands import SMALL, TRAIN, rows_of, run, wait_until
from support.machines import machines, needs_machines

import shoal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.commands import Ended
    from support.machines import Machines, RunningThere

pytestmark = [pytest.mark.spawn, pytest.mark.slow, needs_machines]

SWINGUP = ("Cartpole-Swingup", *SMALL, "--logger", "none", "--save-interval", "5")
FOR_EVER = ("--max-iterations", "100000", "--stall-timeout", "10")
LENGTH = ("--max-iterations", "4")
IN_TIME_S = 10 + 15.0
"""By then all nodes that are in reach must have ended."""
OF_ITS_OWN = Path("/tmp/own")  # noqa: S108  Each machine's own.
"""A directory that each node has for itself."""


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1")
PORT = 29511


def typed(
    made: Machines,
    number: int,
    *flags: str,
    address: str | None = None,
    where: Path | None = None,
    environ: dict[str, str] | None = None,
) -> RunningThere:
    """The command under torchrun, typed on one of two nodes."""
    nodes = (f"--node-rank={number}", f"--master-addr={address or made.workers[0].address}", f"--master-port={PORT}")
    words = (*TORCHRUN, "--nnodes=2", *nodes, "-m", "shoal", "train", *SWINGUP, *flags)
    return made.workers[number].start(words, where or made.shared, environ)


def typed_elastic(made: Machines, number: int, *flags: str) -> RunningThere:
    """The command on one of one or two nodes, which torchrun starts again."""
    nodes = ("--nnodes=1:2", "--max-restarts=3", "--rdzv-id=job", "--rdzv-backend=c10d")
    meeting = (f"--rdzv-endpoint={made.workers[0].address}:{PORT}", f"--rdzv-conf=is_host={number == 0}")
    words = (*TORCHRUN, *nodes, *meeting, "-m", "shoal", "train", *SWINGUP, *flags)
    return made.workers[number].start(words, made.shared, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


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
def test_machines_that_know_themselves_as_others_do_not(
    debian: bool, versions: tuple[Any, ...], tmp_path: Path, digest: str
) -> None:
    with machines(tmp_path, "alpha", "beta", debian=debian, versions=versions) as made:
        address = "alpha" if debian else made["alpha"].address6
        for ended in both(*(typed(made, number, *LENGTH, address=address) for number in (0, 1))):
            assert ended.code == 0, ended.stdout + ended.stderr
        assert digest_of(the_run(made.shared / "logs")) == digest
        assert_nothing_is_left(made)


# Machines that are lost -----------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_both_sides_of_a_cable_that_is_pulled_end_and_say_so(pair: Machines) -> None:
    running = [typed(pair, number, *FOR_EVER) for number in (0, 1)]
    assert wait_until(lambda: iterations(pair.shared / "logs") > 6, timeout=120)
    pair["beta"].cut()
    pulled = time.monotonic()
    alpha, beta = both(*running)
    assert time.monotonic() - pulled < IN_TIME_S
    assert "Error: Rank 1 on beta: no progress for " in alpha.stderr
    assert "beta has been silent for " in alpha.stderr
    assert "Error: Lost rank 0's node from beta: " in beta.stderr
    for ended in (alpha, beta):
        assert "Pass --resume to go on from iteration " in ended.stderr
    assert_nothing_is_left(pair)


@pytest.mark.soak
def test_training_goes_on_without_a_machine_and_takes_it_back(pair: Machines) -> None:
    running = [typed_elastic(pair, number, *FOR_EVER) for number in (0, 1)]
    log_root = pair.shared / "logs"
    assert wait_until(lambda: iterations(log_root) > 6, timeout=120)
    pair["beta"].power_off()

    def on(workers: int) -> bool:
        newest = launches(the_run(log_root))[-1]
        return newest["plan"]["world_size"] == workers and iterations(log_root) > newest["plan"]["start_iteration"] + 3

    assert wait_until(lambda: on(1), timeout=180)
    pair["beta"].power_on()
    running.append(typed_elastic(pair, 1, *FOR_EVER))
    assert wait_until(lambda: on(2), timeout=180)
    running[0].signal_itself(signal.SIGINT)
    both(*running)
    told = [launch["ended"]["exit_code"] for launch in launches(the_run(log_root))]
    assert told[:2] == [75, 143]  # Lost; asked to make room for the one that came back.
    done = [row["iteration"] for row in rows_of(the_run(log_root))]
    assert done == [float(number) for number in range(1, len(done) + 1)]
    assert pair.left_processes() == []


# Machines that do not fit ---------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_another_command_on_one_machine_ends_all_before_anything_is_made(pair: Machines) -> None:
    words = (*LENGTH, "--agent.algorithm.gamma")
    for ended in both(typed(pair, 0, *words, "0.99"), typed(pair, 1, *words, "0.9")):
        assert "agent.algorithm.gamma: 0.9 there, 0.99 on rank 0" in ended.stderr
        assert "Rank 1 on beta has another configuration than rank 0 on alpha" in ended.stderr
    assert not (pair.shared / "logs").exists()
    assert_nothing_is_left(pair)


def test_other_code_on_one_machine_ends_all_and_names_the_file(pair: Machines) -> None:
    copy = pair.shared / "other"
    shutil.copytree(Path(shoal.__file__).parent, copy / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "shoal" / "learn" / "rsl_rl" / "ppo.py").open("a", encoding="utf-8") as file:
        file.write("# Half a thought.\n")
    here = typed(pair, 0, *LENGTH)
    there = typed(pair, 1, *LENGTH, environ={"PYTHONPATH": str(copy)})
    for ended in both(here, there):
        assert "1 file of shoal differs: learn/rsl_rl/ppo.py" in ended.stderr
    assert_nothing_is_left(pair)


@pytest.mark.soak
def test_an_interface_that_a_machine_does_not_have_ends_all(pair: Machines) -> None:
    alpha, beta = both(typed(pair, 0, *LENGTH), typed(pair, 1, *LENGTH, "--interface", "eth7"))
    assert "--interface eth7 was asked for, but beta has no such interface" in alpha.stderr + beta.stderr
    assert not (pair.shared / "logs").exists()
    assert_nothing_is_left(pair)
