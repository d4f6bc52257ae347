"""Trainings of `--hosts`, on machines made of namespaces, with ssh in between: what they learn, and how they end."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import FAULTY, SMALL, TRAIN, command_line, kill, run, wait_until
from support.machines import machines, needs_machines

import shoal

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """A training on two nodes that has done its first iteration."""
    running = made.launcher.start((*SWINGUP, *AB, *FOR_EVER, "--stall-timeout", str(STALL_S), *flags), made.shared)
    running.read_until("[1/")
    yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Machines]:
    """Two nodes and the launcher, to be changed."""
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
    """The same two workers on two nodes, which know themselves as 127.0.1.1, as on Debian."""
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
    assert (plan["launch_mode"], plan["backend"], plan["world_size"], plan["seeds"]) == ("spawned", "gloo", 2, [42, 43])
    assert plan["nodes"] == ["a: cpu", "b: cpu"]
    assert plan["interfaces"] == ["a: eth0", "b: eth0"]
    assert plan["rendezvous"] == made["a"].address
    assert ended.record["host"] == "launcher"
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((ended.run / "ranks").glob("*.json"))]
    assert [(note["rank"], note["host"], note["ending"]) for note in notes] == [(0, "a", "done"), (1, "b", "done")]
    assert sorted(path.name for path in ended.run.glob("torchrunx/*/*")) == ["a[0].log", "b[0].log"]


def test_nothing_is_left_on_any_machine(apart: tuple[Ended, Machines]) -> None:
    ended, made = apart
    assert (ended.left_processes, ended.left_files) == ([], [])
    assert_nothing_is_left(made)


@pytest.mark.soak
def test_four_workers_on_two_machines_that_have_the_new_protocol_only(tmp_path: Path) -> None:
    with machines(tmp_path, "a", "b", versions=(6,)) as made:
        words = (*SWINGUP, "--max-iterations", "2", "--hosts", made["a"].address6, "b", "--nproc-per-node", "2")
        ended = made.launcher.start(words, made.shared).end()
        assert ended.code == 0, ended.stdout + ended.stderr
        assert ended.record["plan"]["rendezvous"] == made["a"].address6
        assert len(set(ended.record["ended"]["digests"].values())) == 1
        assert len(ended.record["ended"]["digests"]) == 4
        logs = sorted(path.name for path in ended.run.glob("torchrunx/*/*"))
        assert logs == ["b[0].log", "b[1].log", f"{made['a'].address6}[0].log", f"{made['a'].address6}[1].log"]
        assert_nothing_is_left(made)


@pytest.mark.soak
def test_one_worker_on_one_other_machine_learns_what_it_would_here(tmp_path: Path) -> None:
    words = (*SWINGUP, "--max-iterations", "2")
    here = run(words, tmp_path / "here")
    with machines(tmp_path / "there", "a") as made:
        ended = made.launcher.start((*words, "--hosts", "a"), made.shared).end()
        assert ended.code == 0, ended.stdout + ended.stderr
        assert ended.record["ended"]["digests"] == here.record["ended"]["digests"]
        assert (ended.record["plan"]["rendezvous"], ended.record["plan"]["backend"]) == (None, None)
        assert_nothing_is_left(made)


# Losses ---------------------------------------------------------------------------------------------------------------


def assert_lost(ended: Ended, seconds: float, how: str) -> None:
    """Machine b was lost, and told of in time."""
    assert ended.code == 75, ended.stdout + ended.stderr
    assert re.search(rf"^Error: Lost node b \(rank 1\) in .*: {how}", ended.last_line)
    assert ended.last_line.endswith(" start it again.")
    assert f"Error: {ended.record['ended']['last_line']}" == ended.last_line
    assert seconds < IN_TIME_S


@pytest.mark.soak
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
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")
    except OSError:
        return "sshd"  # It has just ended.


@pytest.mark.soak
def test_a_machine_without_power_is_told_of_in_time_and_the_training_goes_on_with_the_other(pair: Machines) -> None:
    again = ("--max-restarts", "1", "--min-workers", "1", "--max-iterations", "12", "--agent.save-interval", "2")
    words = (*SWINGUP, *AB, "--stall-timeout", str(STALL_S), *again)
    running = pair.launcher.start((*words, "--agent.num-steps-per-env", "200"), pair.shared)
    running.read_until("[1/")
    pair["b"].power_off()
    ended = running.end()
    assert ended.code == 0, ended.stdout + ended.stderr
    assert re.search(r"^Lost node b \(rank 1\) in ", ended.stdout, re.MULTILINE)
    assert "Node b cannot be reached by ssh (" in ended.stdout
    assert "Going on with 1 of 2 workers, 16 environments each: 16 in all, 32 before." in ended.stdout
    assert [row["iteration"] for row in ended.rows] == list(range(1, 13))
    first, second = json.loads((ended.run / "run.json").read_text(encoding="utf-8"))["launches"]
    assert (first["ended"]["exit_code"], second["ended"]["exit_code"]) == (75, 0)
    assert second["plan"]["nodes"] == ["a: cpu"]
    assert pair["a"].left_processes() == []


@pytest.mark.soak
def test_a_rank_that_is_killed_there_is_named_with_its_machine(pair: Machines) -> None:
    environ = {"SHOAL_TEST_FAULTY_RANK": "1"}
    ended = pair.launcher.start((*TRAIN, f"{FAULTY}:Dies", *SMALL, *AB), pair.shared, environ).end()
    assert ended.code == 75, ended.stdout + ended.stderr
    assert "Error: Lost rank 1 on b in rollout (iteration 2): killed by SIGKILL (" in ended.last_line
    assert (ended.left_processes, ended.left_files) == ([], [])
    assert_nothing_is_left(pair)


@pytest.mark.soak
def test_ranks_whose_launcher_is_killed_save_and_go_on_all_machines(pair: Machines) -> None:
    with training(pair) as running:
        running.signal_itself(signal.SIGKILL)
        assert wait_until(lambda: not pair.left_processes(), timeout=15)
    ended = running.end()
    assert [path.name for path in (ended.run / "checkpoints").iterdir()] == [f"{int(ended.rows[-1]['iteration']):06d}"]
    assert_nothing_is_left(pair)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("remote.node_agent", r"Lost node b \(rank 1\) in .*: its connection ended"),
        ("torchrunx_patch", r"Lost torchrunx's agent on b, which keeps the workers \(killed by SIGKILL\)\."),
    ],
)
@pytest.mark.soak
def test_what_keeps_the_workers_of_a_machine_is_missed_when_it_is_killed(
    pair: Machines, module: str, said: str
) -> None:
    with training(pair) as running:
        (keeper, *_) = [pid for pid in pair["b"].processes() if f"shoal.launch.{module}" in command_line(pid)]
        kill([keeper])  # Forks of it are workers.
        ended = running.end()
    assert ended.code == 75, ended.stdout + ended.stderr
    assert re.search(f"^Error: {said}", ended.last_line)
    assert_nothing_is_left(pair)


def listening(machine: Machine) -> list[str]:
    """The addresses at which Python listens there, one for each port."""
    sockets = machine.run(("ss", "--listening", "--tcp", "--udp", "--numeric", "--processes")).stdout.splitlines()
    return sorted(line.split()[4].rpartition(":")[0] for line in sockets if "python" in line)


@pytest.mark.soak
def test_ctrl_c_ends_the_run_on_all_machines_with_a_checkpoint(pair: Machines) -> None:
    with training(pair) as running:
        # The store at which the ranks have met, and each rank's gloo: at one address, and nothing on the launcher.
        assert listening(pair["a"]) == [pair["a"].address] * 2
        assert listening(pair["b"]) == [pair["b"].address]
        assert listening(pair.launcher) == []
        running.signal_all(signal.SIGINT)
        ended = running.end()
    assert ended.code == 130, ended.stdout + ended.stderr
    last_row = int(ended.rows[-1]["iteration"])
    assert ended.last_line == (
        f"Error: SIGINT ended the run after iteration {last_row}, with a checkpoint: pass --resume to go on."
    )
    assert [path.name for path in (ended.run / "checkpoints").iterdir()] == [f"{last_row:06d}"]
    assert ended.stdout.count("SIGINT: stopping after this iteration") == 1
    assert "Traceback" not in ended.stdout + ended.stderr
    assert_nothing_is_left(pair)


@pytest.mark.soak
def test_a_launcher_that_stands_still_for_a_while_finds_its_training_again(pair: Machines) -> None:
    with training(pair) as running:
        running.signal_itself(signal.SIGSTOP)
        time.sleep(STALL_S / 2)
        running.process.send_signal(signal.SIGCONT)  # What waits for it outside has stopped along with it.
        before = running.read_until("/100000] mean reward")
        assert running.read_until("/100000] mean reward") != before
        running.signal_itself(signal.SIGTERM)
        ended = running.end()
    assert ended.code == 143, ended.stdout + ended.stderr
    assert_nothing_is_left(pair)


@pytest.mark.soak
def test_a_machine_that_does_not_share_the_disk_sends_home_what_it_has_written(pair: Machines) -> None:
    logs = pair.shared / "logs"
    logs.mkdir()
    pair["b"].run(("mount", "-t", "tmpfs", "tmpfs", str(logs)))
    words = (*TRAIN, f"{FAULTY}:Raises", *SMALL, *AB, "--agent.save-interval", "1")
    ended = pair.launcher.start(words, pair.shared).end()
    assert ended.code == 1, ended.stdout + ended.stderr
    assert ended.last_line.startswith("Error: Rank 1 on b failed in rollout (iteration 2): ")
    assert ended.last_line.endswith("TwoArgumentsError: injected fault at 7")
    assert "Traceback" in (ended.run / "ranks/rank_00001.json").read_text(encoding="utf-8")
    (log,) = ended.run.glob("torchrunx/*/b[[]0[]].log")
    assert "injected fault at 7" in log.read_text(encoding="utf-8")
    assert {path.name for path in (ended.run / "checkpoints/000001").iterdir()} > {"rank_00000.pt", "rank_00001.pt"}
    assert pair["b"].run(("ls", str(logs))).stdout == ""
    assert_nothing_is_left(pair)


# Refusals -------------------------------------------------------------------------------------------------------------

TASK = """
from helper import LENGTH
from shoal.config import RslRlConfig
from shoal.tasks.cartpole.config import SwingupConfig
from shoal.tasks.cartpole.task import Swingup


class Mine(Swingup):
    config = SwingupConfig(episode_length_s=LENGTH)
    agent = RslRlConfig(num_steps_per_env=8)
"""
METADATA = "Metadata-Version: 2.1\nName: rsl-rl-lib\nVersion: 5.4.2\n"


def test_machines_that_differ_are_refused_key_by_key(pair: Machines) -> None:
    own = Path("/tmp/own")  # noqa: S108  Each machine has its own /tmp.
    for machine in pair.all:
        outside = machine.outside(own)
        outside.mkdir()
        (outside / "mine.py").write_text(TASK, encoding="utf-8")
        (outside / "helper.py").write_text(f"LENGTH = {10 + (machine.name == 'b')}\n", encoding="utf-8")
    site = pair["b"].outside(own / "site")
    package = site / "shoal"
    shutil.copytree(Path(shoal.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "learn/rsl_rl/ppo.py").write_text("# changed", encoding="utf-8")
    (site / "rsl_rl_lib-5.4.2.dist-info").mkdir()
    (site / "rsl_rl_lib-5.4.2.dist-info/METADATA").write_text(METADATA, encoding="utf-8")
    words = (*TRAIN, f"{own}/mine.py:Mine", *SMALL, *AB)
    ended = pair.launcher.start(words, pair.shared, {"PYTHONPATH": f"{own}/site"}).end()
    assert ended.code == 2, ended.stdout + ended.stderr
    assert ended.stderr.splitlines() == [
        f"Node b: rsl-rl-lib is 5.4.2 there and {version('rsl-rl-lib')} here.",
        "Node b: 1 file of shoal differs: learn/rsl_rl/ppo.py.",
        f"Node b: 1 file of the task differs: {own}/helper.py.",
        (
            "Error: Node b differs from launcher, where this was started, in what is listed above: install the same "
            "versions and the same code on all nodes, or let them share one directory."
        ),
    ]
    assert ended.runs == []
    assert pair.left_processes() == []


def refused(made: Machines, *flags: str, where: Path | None = None) -> tuple[int, str]:
    """Return exit code and last line of a training that is refused before it begins."""
    ended = made.launcher.start((*SWINGUP, *(flags or AB)), where or made.shared).end()
    assert ended.runs == []
    return ended.code, ended.last_line


@pytest.mark.soak
def test_each_trouble_with_a_login_has_its_own_sentence(pair: Machines) -> None:
    launcher, b = pair.launcher, pair["b"]
    known_hosts = launcher.outside(launcher.home / ".ssh/known_hosts")
    admitted = b.outside(b.home / ".ssh/authorized_keys")
    known, keys = known_hosts.read_text(encoding="utf-8"), admitted.read_text(encoding="utf-8")

    assert refused(pair, "--hosts", "a", "nowhere") == (
        2,
        (
            "Error: Node nowhere is not known to ssh (ssh: Could not resolve hostname nowhere: Temporary failure in "
            "name resolution): pass an address, or a name that DNS or ssh's files know."
        ),
    )
    known_hosts.write_text(re.sub("(?m)^b.*$", "", known), encoding="utf-8")
    assert refused(pair) == (
        2,
        (
            "Error: Node b has a host key that is not known here (Host key verification failed): run `ssh b` once to "
            "accept it."
        ),
    )
    known_hosts.write_text(known, encoding="utf-8")
    b.admit("")
    assert refused(pair) == (
        2,
        (
            "Error: Node b refused the login (root@b: Permission denied (publickey)): let `ssh b true` work without a "
            "password, by a key in ~/.ssh/authorized_keys there."
        ),
    )
    admitted.write_text(keys, encoding="utf-8")
    b.change_host_key()
    assert refused(pair) == (
        2,
        (
            "Error: Node b has another host key than the one that is known, so it may not be that machine: if it was "
            "reinstalled, run `ssh-keygen -R b`, and `ssh b` once to accept the new key."
        ),
    )
    assert_nothing_is_left(pair)


@pytest.mark.soak
def test_each_trouble_with_a_machine_has_its_own_sentence(pair: Machines) -> None:
    code, line = refused(pair, *AB, where=Path("/tmp/only-here"))  # noqa: S108
    assert (code, line) == (
        2,
        (
            "Error: Node a has no directory /tmp/only-here (No such file or directory): have the project at the same "
            "path everywhere."
        ),
    )
    assert refused(pair, *AB, "--interface", "eth7") == (
        2,
        (
            "Error: --interface eth7 was asked for, but node a has no such interface that is up and has an address: "
            "pass one of eth0."
        ),
    )
    logs = pair.shared / "logs"
    logs.mkdir()
    pair["a"].run(("mount", "-t", "tmpfs", "tmpfs", str(logs)))
    assert refused(pair) == (
        2,
        (
            f"Error: Node a has rank 0, which writes the run, but does not see {logs}: pass --log-root with a "
            "directory that it shares with this machine, or start training there."
        ),
    )
    pair["b"].power_off()
    assert refused(pair) == (
        75,
        (
            "Error: Node b cannot be reached by ssh (ssh: connect to host b port 22: No route to host): see that it is "
            "up, and try again."
        ),
    )


def test_machines_that_cannot_reach_each_other_are_refused(pair: Machines) -> None:
    # Each has its way to the launcher, and none to the other.
    for machine, other in (("a", "b"), ("b", "a")):
        for address in (pair[other].address, pair[other].address6):
            pair[machine].run(("ip", "route", "add", "blackhole", address))
    code, line = refused(pair)
    assert code == 2
    assert line.startswith("Error: Node b cannot connect to node a, where the workers meet (tried ")
    assert all(address in line for address in (pair["a"].address, pair["a"].address6))


@pytest.mark.soak
def test_a_machine_that_accepts_and_then_says_nothing_is_not_waited_for_for_ever(pair: Machines) -> None:
    pair["b"].stop_server()
    code, line = refused(pair)
    assert code == 75
    assert line.startswith("Error: Node b cannot be reached by ssh (")
    assert " timed out" in line
