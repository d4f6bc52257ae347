"""What other programs can do to ranks that torchrun or srun started: each attack on the store in which they meet."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.fake_slurm import task_environment
from torch.distributed import HashStore, PrefixStore, TCPStore

from shoal.config.plain import to_plain
from shoal.errors import ShoalError, UsageError, WorkerLostError
from shoal.launch.joined import _share_plan, find_network, receive
from shoal.launch.reaper import OWNER
from shoal.launch.rendezvous import SECRET, Rendezvous, SignedStore
from shoal.plan.nodes import NodePlan
from shoal.plan.ranks import Rank
from shoal.plan.received import to_json
from shoal.plan.training import TrainPlan
from shoal.tasks import registry

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = (Rank(rank=rank, local_rank=rank, world_size=2, local_world_size=2) for rank in range(2))
DISTANT = Rank(rank=0, local_rank=0, world_size=2, local_world_size=1)


def job(**changes: Any) -> TrainPlan:
    """A training as a rank has planned it."""
    config = registry.resolve("Cartpole-Swingup").defaults()
    return TrainPlan(
        config=replace(config, **changes),
        launch_mode="joined",
        nodes=(NodePlan(devices=("cpu",) * 2),),
        world_size=2,
        backend="gloo",
        run_dir="/run",
    )


# What names code


def impostor(**config: Any) -> SignedStore:
    """The store of a program that poses as rank 0, with these values in its configuration."""
    store, plain = HashStore(), json.loads(to_json(job()))
    plain["config"] |= config
    store.set("shoal/plan", json.dumps(plain))
    return SignedStore(store, None)


def test_a_task_that_was_not_typed_is_refused_before_it_is_imported(tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"Rank 0 would import '.*evil.py:X' \(task\), which this rank"):
        _share_plan(impostor(task=f"{evil}:X"), SECOND, job())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["evil:Model", "evil.Model"])
def test_a_class_that_was_not_typed_is_refused(name: str) -> None:
    agent = to_plain(job().config.agent)
    agent["actor"]["class_name"] = name
    with pytest.raises(UsageError, match=rf"Rank 0 would import '{name}' \(agent.actor.class_name\), which this rank"):
        _share_plan(impostor(agent=agent), SECOND, job())


def test_numbers_are_taken_from_rank_0() -> None:
    assert _share_plan(impostor(seed=7), SECOND, job()).config.seed == 7


def test_ranks_that_rank_0_leaves_waiting_name_what_they_wait_for() -> None:
    store = SignedStore(HashStore(), None)
    with pytest.raises(WorkerLostError, match=r"^Rank 0 has not sent its plan within 0 s: see its own output\."):
        receive(store, "shoal/plan", 0.2, "its plan")
    store.set("shoal/plan", "{}")
    assert receive(store, "shoal/plan", 0.2, "its plan") == "{}"


@pytest.mark.parametrize("host", ["127.0.0.1", socket.gethostname()])
def test_nodes_of_one_machine_reach_each_other_without_waiting_for_another_address(host: str) -> None:
    """Two agents of torchrun, or containers with the host's network."""
    found = find_network(Rendezvous(host, 1, "0/2"), None, DISTANT, None)
    assert found["GLOO_SOCKET_IFNAME"] in dict(socket.if_nameindex()).values()


# One machine


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rendezvous:
    """Where two tasks of one machine meet, while another program has the port that they would have computed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environ = task_environment(0, 0, 0, hosts="a1", tasks_per_node="2", tasks=2)
    return Rendezvous.of(FIRST, "logs", environ)


def test_tasks_of_one_machine_meet_in_a_directory_of_their_user_and_at_no_port(one: Rendezvous) -> None:
    with socket.create_server((one.host, one.port)):  # The attacker was there first.
        first = one.open(FIRST, 5)
        second = one.open(SECOND, 5)
    first.set("key", "of rank 0")
    assert second.get("key") == b"of rank 0"
    assert one.directory is not None
    assert one.directory.stat().st_mode & 0o777 == 0o700
    one.close(SECOND)
    assert one.directory.exists()
    one.close(FIRST)
    assert not one.directory.exists()


LEAVE = """
import sys, tempfile
from pathlib import Path
from shoal.launch.rendezvous import Rendezvous
from shoal.plan.ranks import Rank

tempfile.tempdir = sys.argv[1]
rank = Rank(rank=0, local_rank=0, world_size=2, local_world_size=2)
store = Rendezvous("", 0, "srun/1", None, Path(sys.argv[1], "meet")).open(rank, 5)
store.set("key", "value")
print("met", flush=True)
sys.stdin.read(1)
"""


def test_a_rank_ends_while_another_removes_their_directory(tmp_path: Path) -> None:
    """Torch's destructor of the store opens its file once more, and would wait half an hour for it."""
    with subprocess.Popen(
        (sys.executable, "-c", LEAVE, str(tmp_path)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as leaving:
        assert leaving.stdin
        assert leaving.stdout
        assert leaving.stdout.readline() == "met\n"
        with (tmp_path / "meet" / "store").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # The destructor finds the file, and waits for its lock.
            leaving.stdin.close()
            time.sleep(0.5)
            shutil.rmtree(tmp_path / "meet")
        try:
            assert leaving.wait(10) == 0
        finally:
            leaving.kill()


@pytest.mark.parametrize("trap", ["link", "open"])
def test_a_directory_that_others_can_enter_is_refused_by_all(one: Rendezvous, tmp_path: Path, trap: str) -> None:
    assert one.directory is not None
    if trap == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        one.directory.symlink_to(tmp_path / "theirs")
    else:
        one.directory.mkdir()
        one.directory.chmod(0o777)
    with pytest.raises(UsageError, match=r"cannot be made \(File exists\)"):
        one.open(FIRST, 1)
    with pytest.raises(UsageError, match="is a link, or another user owns it or can enter it"):
        one.open(SECOND, 1)


def test_a_directory_that_a_killed_task_left_is_not_taken_for_that_of_rank_0(one: Rendezvous) -> None:
    assert one.directory is not None
    one.directory.mkdir(mode=0o700)
    (one.directory / OWNER).touch()
    with pytest.raises(WorkerLostError, match="Rank 0 has not made"):
        one.open(SECOND, 0.2)
    one.open(FIRST, 1)
    one.open(SECOND, 1)
    one.close(FIRST)


# Several nodes


@pytest.fixture
def two(tmp_path: Path) -> Rendezvous:
    """Where a task on each of two nodes meet, with a disk that they share."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = task_environment(0, 0, 0, hosts="a[1-2]", tasks_per_node="1(x2)", tasks=2)
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return Rendezvous.of(DISTANT, str(tmp_path / "logs"), environ | there)


def open_both(rendezvous: Rendezvous) -> list[SignedStore | ShoalError]:
    """What both ranks get, which come at once."""
    got: dict[int, SignedStore | ShoalError] = {}

    def be(rank: Rank) -> None:
        try:
            got[rank.rank] = rendezvous.open(rank, 10)
        except ShoalError as error:
            got[rank.rank] = error

    with ExitStack() as stack:
        for rank in (SECOND, FIRST):
            thread = threading.Thread(target=be, args=(rank,))
            thread.start()
            stack.callback(thread.join, 30)
    return [got[0], got[1]]


def test_what_another_program_writes_into_the_store_is_refused(two: Rendezvous, tmp_path: Path) -> None:
    first, second = open_both(two)
    assert isinstance(first, SignedStore)
    assert isinstance(second, SignedStore)
    (secret,) = (tmp_path / "logs").iterdir()
    assert secret.stat().st_mode & 0o777 == 0o600
    first.set("shoal/plan", "of rank 0")
    assert second.get("shoal/plan") == b"of rank 0"
    attacker = TCPStore(two.host, two.port, is_master=False)
    for key, theirs in (("shoal/plan", "theirs"), ("shoal/run_dir", first.raw.get("shoal/plan").decode())):
        PrefixStore(f"shoal/{two.attempt}", attacker).set(key, theirs)
        with pytest.raises(UsageError, match=f"holds a '{key}' that none of them has signed"):
            second.get(key)
    two.forget_secret(SECOND)
    assert secret.exists()
    two.forget_secret(FIRST)
    assert not secret.exists()


def test_a_program_that_has_taken_the_port_first_is_not_talked_to(
    two: Rendezvous, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.launch.rendezvous.SHARED_DISK_S", 0.2)
    attacker = TCPStore(two.host, two.port, is_master=True, wait_for_workers=False)
    with pytest.raises(UsageError, match="with the secret of this step, is not to be seen here"):
        two.open(SECOND, 5)
    del attacker


def test_tasks_of_several_machines_that_cannot_meet_say_so(two: Rendezvous) -> None:
    with socket.create_server((two.host, two.port)), pytest.raises(UsageError, match=f"Port {two.port} on 127.0.0.1, "):
        two.open(FIRST, 1)
    with pytest.raises(WorkerLostError, match=f"Rank 0 does not answer on port {two.port} of 127.0.0.1"):
        two.open(SECOND, 0.2)


def test_machines_without_a_shared_disk_take_the_secret_from_the_environment(
    two: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET, "a" * 64)
    first, second = open_both(two)
    assert isinstance(first, SignedStore)
    assert isinstance(second, SignedStore)
    first.set("key", "value")
    assert second.get("key") == b"value"
    assert not (tmp_path / "logs").exists()


def test_a_secret_that_others_can_write_is_refused(two: Rendezvous, tmp_path: Path) -> None:
    attacker = TCPStore(two.host, two.port, is_master=True, wait_for_workers=False)
    planted = tmp_path / "logs" / f".secret-{two.attempt.replace('/', '-')}"
    planted.parent.mkdir()
    planted.write_text("known", encoding="utf-8")
    if os.geteuid() == 0:
        os.chown(planted, 12345, -1)
    else:
        planted.chmod(0o666)
    with pytest.raises(UsageError, match="another user owns it or can enter it"):
        two.open(SECOND, 5)
    del attacker
