"""The machines of tests on several of them: they are apart, they reach each other, and nothing of them stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from support.commands import kill, wait_until
from support.machines import machines, needs_machines, why_no_machines
from support.namespaces import NoNamespacesError

from shoal.procfs import state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.machines import Machine, Machines, RunningThere

pytestmark = needs_machines

PYTHON = (sys.executable, "-I", "-S", "-c")
SLEEP = ("sleep", "1000")
ECHO = """
import socket
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("listens", flush=True)
while True:
    connection, _ = server.accept()
    while heard := connection.recv(100):
        connection.sendall(heard)
"""
ASK = """
import socket, sys, time
host, family = sys.argv[1:]
address = socket.getaddrinfo(host, 7000, int(family), socket.SOCK_STREAM)[0][4]
connection = socket.create_connection(address[:2], timeout=10)
print("connected to", address[0], flush=True)
began = time.perf_counter()
connection.sendall(b"hello")
print("heard", connection.recv(100), time.perf_counter() - began)
"""
TALK = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000), timeout=10)
for number in range(100000):
    connection.settimeout(0.3)
    try:
        connection.sendall(b"x")
        print("heard" if connection.recv(100) else "closed", flush=True)
    except TimeoutError:
        print("silence", flush=True)
    except ConnectionError:
        print("closed", flush=True)
        break
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Two nodes and the launcher, which no test changes."""
    with machines(tmp_path_factory.mktemp("three"), "north", "south") as made:
        yield made


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Machines]:
    """Two nodes and the launcher, to be changed."""
    with machines(tmp_path, "north", "south") as made:
        yield made


def start_echo(machine: Machine) -> RunningThere:
    """Start a program that sends back what it hears."""
    running = machine.start_plain([*PYTHON, ECHO])
    running.read_until("listens")
    return running


def stop(running: RunningThere) -> None:
    """Kill a command, and wait until its port is free."""
    running.signal_itself(signal.SIGKILL)
    running.process.wait()


def test_machines_of_two_tests_do_not_meet(three: Machines, tmp_path: Path) -> None:
    echo = start_echo(three["north"])
    with machines(tmp_path, "north", "south", logins=False) as others:
        assert "Connection refused" in others["south"].run([*PYTHON, ASK, "north", "0"]).stderr
    stop(echo)


def test_disks_memory_and_processes_are_apart(three: Machines) -> None:
    north, south = three.workers
    sleeper = south.start_plain(SLEEP)
    north.run(["sh", "-c", "echo here | tee /tmp/note /dev/shm/note ~/note"])
    assert south.run(["sh", "-c", "cat /tmp/note /dev/shm/note ~/note; pgrep sleep"]).stdout.split()[1:] == []
    assert int(south.run(["pgrep", "sleep"]).stdout) != sleeper.leader
    assert north.run(["pgrep", "sleep"]).stdout == ""
    assert north.left_files() == ["note", "note"]
    assert (north.base / "home/note").read_text(encoding="utf-8") == "here\n"
    assert not any(Path(place, "note").exists() for place in ("/tmp", "/dev/shm", north.home))  # noqa: S108
    north.run(["sh", "-c", "rm /tmp/note /dev/shm/note ~/note"])
    kill([sleeper.leader])


def test_clocks_since_boot_differ_and_that_of_the_wall_does_not(three: Machines) -> None:
    clocks = [
        three[name].run([*PYTHON, "import time; print(time.monotonic(), time.time())"]) for name in ("north", "south")
    ]
    (up_north, north), (up_south, south) = ([float(word) for word in clock.stdout.split()] for clock in clocks)
    assert up_south - up_north > 1000
    assert 0 <= south - north < 60


def test_a_machine_without_power_is_silent_and_empty_and_comes_back_with_its_disk(pair: Machines) -> None:
    north, south = pair.workers
    start_echo(north)
    pids = [north.start_plain(SLEEP).leader for _ in range(3)]
    os.kill(pids[0], signal.SIGSTOP)
    north.run(["sh", "-c", "echo here > ~/note"])
    talk = south.start_plain([*PYTHON, TALK, "north"])
    talk.read_until("heard")
    north.power_off()
    assert talk.read_until("silence") == "silence\n"
    assert [state(pid) for pid in pids] == ["", "", ""]
    assert north.processes() == []
    talk.read_until("silence")
    assert "closed\n" not in talk.lines
    north.power_on()
    assert pair.launcher.run(["ssh", "north", "cat note"]).stdout == "here\n"


def test_commands_are_judged_by_what_they_leave_on_their_machine(pair: Machines) -> None:
    north = pair["north"]
    words = ("sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 & touch /tmp/left /dev/shm/left2; echo $PWD $0 $1; exit 3")
    ended = north.start(words, north.home / "work").end()
    assert (ended.code, ended.stdout) == (3, f"{north.home}/work --log-root {north.home}/work/logs\n")
    assert (ended.left_processes, ended.left_files) == (["sleep 1000 "], ["left", "left2"])
    assert ended.log_root == north.base / "home/work/logs"
    assert (pair.left_processes(), pair.left_files()) == ([], ["north: left", "north: left2"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_command_itself_and_its_end_is_reported(three: Machines, number: signal.Signals) -> None:
    running = three["north"].start_plain(["sh", "-c", "sleep 1000 > /dev/null 2>&1 & echo began; wait"])
    running.read_until("began")
    running.signal_itself(number)
    ended = running.end()
    assert ended.code == -number
    assert ended.left_processes == ["sleep 1000 "]


def test_a_signal_to_all_reaches_the_whole_session(three: Machines) -> None:
    script = "import signal, subprocess; signal.signal(2, lambda *_: None); c = subprocess.Popen(['sleep', '1000'])"
    running = three["north"].start_plain([*PYTHON, f"{script}; print('began', flush=True); print(c.wait())"])
    running.read_until("began")
    running.signal_all(signal.SIGINT)
    ended = running.end()
    assert (ended.code, ended.stdout, ended.left_processes) == (0, "began\n-2\n", [])


def what_is_on_this_system() -> dict[str, str]:
    """What machines must leave as it is, and what they would be seen in."""
    return {
        "mounts": Path("/proc/self/mounts").read_text(encoding="utf-8"),
        "cards and addresses": subprocess.check_output(["ip", "address"], text=True).replace("dynamic", ""),
        "routes": subprocess.check_output(["ip", "route", "show", "table", "all"], text=True),
        "names": subprocess.check_output(["ip", "netns", "list"], text=True),
    }


def test_nothing_of_them_is_on_this_system_not_even_meanwhile(tmp_path: Path) -> None:
    before, own_before = what_is_on_this_system(), own_processes()
    with machines(tmp_path, "north", "south") as made:
        made["north"].delay(1)
        pids = {made["north"].start_plain(SLEEP).leader for _ in range(2)}
        assert own_processes() - own_before > pids
        assert what_is_on_this_system() == before
    assert own_processes() == own_before


def own_processes() -> set[int]:
    """The descendants of this process."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_machines_that_cannot_start_say_why_and_leave_nothing(tmp_path: Path) -> None:
    before = own_processes()
    with pytest.raises(NoNamespacesError, match="hostname"), machines(tmp_path, "north", "n" * 100, logins=False):
        pass
    assert own_processes() == before


OWNER = """
import sys, time
from pathlib import Path
import psutil
from support.machines import machines
with machines(Path(sys.argv[1]), "north", "south") as made:
    made["north"].start_plain(["sleep", "1000"])
    made["north"].delay(1)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    time.sleep(1000)
"""


def test_what_a_killed_test_had_is_gone_at_once(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[1])
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": tests},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    owner.kill()
    owner.communicate()
    assert len(pids) > 10
    assert wait_until(lambda: not any(state(pid) for pid in pids), timeout=30), pids


def reason(*before: str) -> str:
    """Return why machines cannot be made by a process that is started so."""
    words = [*before, sys.executable, "-c", "from support.machines import why_no_machines as why; print(why())"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout.strip()


def test_where_machines_cannot_be_made_the_reason_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert why_no_machines() is None
    assert reason("unshare", "--user") == "machines are made of namespaces, for which one has to be root"
    no_more = (
        "unshare",
        "--user",
        "--map-root-user",
        "sh",
        "-c",
        'echo 0 > /proc/sys/user/max_net_namespaces; "$0" "$@"',
    )
    assert reason(*no_more).startswith("this system makes no machines: unshare: unshare failed:")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert reason().startswith("machines need ip, unshare, nsenter, setsid, mount, hostname, ssh, ssh-keygen: install")
