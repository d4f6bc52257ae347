"""What a run opens to others: nothing but loopback, nothing that unpickles, and no port or name that it depends on.

Two launches at once serve the tests of a stranger: one in a shell with an earlier launcher's variables, whose port is
taken, the other on a host whose name does not resolve. What each door listens on is seen in the contract's launches.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import rsl_rl
import torchrunx.agent
import torchrunx.launcher
import torchrunx.worker
from support.commands import SMALL, TRAIN, rows_of, run, start
from support.ports import Stranger
from torchrunx.utils.errors import AgentFailedError

import shoal
from shoal.launch import torchrunx_patch
from shoal.launch.torchrunx_patch import patched_run, replaced, socketpair_group

if TYPE_CHECKING:
    from types import ModuleType

    from support.commands import Ended, Running

# Real launches ------------------------------------------------------------------------------------------------------

ITERATIONS = 20
LENGTH = ("--max-iterations", str(ITERATIONS), "--logger", "none")
NO_INTERFACE = {"GLOO_SOCKET_IFNAME": "shoal-none0"}
"""A name that gloo would fail on, if it came to read it."""
LEFT_OVER = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
NOWHERE = "no-such-host.invalid"
RENAMED = f"import os, socket, sys; socket.sethostname({NOWHERE!r}); os.execv(sys.argv[1], sys.argv[1:])"


def on_a_host_of_its_own() -> tuple[str, ...]:
    """The words that run a command under the name of NOWHERE, or none where that is not allowed."""
    for flags in (("--uts",), ("--user", "--map-root-user", "--uts")):
        words = (shutil.which("unshare") or "", *flags)
        if words[0] and subprocess.run((*words, "true"), check=False, capture_output=True).returncode == 0:
            return (*words, sys.executable, "-c", RENAMED)
    return ()


@dataclass
class Visited:
    """A launch that a stranger has written to, all the time."""

    ended: Ended
    stranger: Stranger
    rows_when_written_to: int
    """Iterations done when the stranger had written to all ports once more."""
    bomb: Path
    """Made by a bomb that goes off."""


def write_to(launch: Running, stranger: Stranger) -> int:
    """Let a stranger write to a launch that has begun to learn; return the iterations that it has done by then."""
    launch.read_until("[1/")
    stranger.send_letters()
    (run,) = launch.log_root.glob("*/*")
    return len(rows_of(run))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Visited]:
    """Two launches at once: the one with the taken port, and the one without a name."""
    homes = [tmp_path_factory.mktemp(name) for name in ("taken", "nowhere")]
    words = (*TRAIN, "Cartpole-Swingup", *SMALL, *LENGTH, "--nproc-per-node", "2")
    with socket.create_server(("127.0.0.1", 0)) as taken, ExitStack() as stack:
        left_over = {**LEFT_OVER, **NO_INTERFACE, "MASTER_PORT": str(taken.getsockname()[1])}
        launches = [start(words, homes[0], left_over), start((*on_a_host_of_its_own(), *words), homes[1])]
        bombs = [home / "bomb" for home in homes]
        strangers = [stack.enter_context(Stranger(each.mark, bomb)) for each, bomb in zip(launches, bombs, strict=True)]
        with ThreadPoolExecutor() as pool:
            rows = list(pool.map(write_to, launches, strangers))
        ended = [launch.end() for launch in launches]
    return [Visited(*each) for each in zip(ended, strangers, rows, bombs, strict=True)]


@pytest.mark.spawn
@pytest.mark.parametrize("number", [0, 1], ids=["port taken", "no name"])
def test_two_launches_at_once_both_finish(pair: list[Visited], number: int) -> None:
    ended = pair[number].ended
    assert ended.code == 0, ended.stdout + ended.stderr
    assert len(ended.rows) == ITERATIONS
    assert (ended.left_processes, ended.left_files) == ([], [])


@pytest.mark.spawn
def test_what_an_earlier_launcher_left_in_the_shell_is_noted_and_ignored(pair: list[Visited]) -> None:
    names = "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
    note = f"{names} are set, but no launcher started this process: ignoring them."
    assert pair[0].ended.stdout.splitlines()[0] == note
    assert pair[0].ended.record["plan"]["world_size"] == 2


@pytest.mark.spawn
def test_a_host_name_that_does_not_resolve_costs_nothing(pair: list[Visited]) -> None:
    if not on_a_host_of_its_own():
        pytest.skip("this machine does not allow a namespace with a host name of its own")
    named, nameless = (visited.ended for visited in pair)
    notes = [path.read_text(encoding="utf-8") for path in sorted((nameless.run / "ranks").glob("*.json"))]
    assert [NOWHERE in note for note in notes] == [True, True]
    assert nameless.seconds - named.seconds < 5


@pytest.mark.spawn
@pytest.mark.parametrize("number", [0, 1], ids=["port taken", "no name"])
def test_a_strangers_letters_are_dropped_and_no_bomb_goes_off(pair: list[Visited], number: int) -> None:
    visited = pair[number]
    assert visited.stranger.letters_sent > 0
    assert visited.rows_when_written_to < ITERATIONS
    assert not visited.bomb.exists()


@pytest.mark.spawn
@pytest.mark.parametrize("number", [0, 1], ids=["port taken", "no name"])
def test_only_the_ranks_listen_and_each_on_one_port_of_loopback(pair: list[Visited], number: int) -> None:
    seen = pair[number].stranger.seen
    assert [listener for listener in seen if not listener.is_local] == []
    assert len(seen) == len({listener.pid for listener in seen}) == 2  # gloo's


SPAWNING = """
from shoal.cli.start import train
from shoal.launch import node

usual = node.Agent
node.Agent = lambda *args, forks: usual(*args, forks=False)
train()
"""


@pytest.mark.spawn
@pytest.mark.soak
def test_workers_that_are_not_forked_train_as_well(tmp_path: Path) -> None:
    # A GPU's workers are not; that they are spawned does not depend on the device.
    command = (sys.executable, "-c", SPAWNING, "Cartpole-Swingup")
    ended = run((*command, *SMALL, "--max-iterations", "1", "--nproc-per-node", "2"), tmp_path)
    assert ended.code == 0, ended.stdout + ended.stderr
    assert len(ended.rows) == 1
    assert (ended.left_processes, ended.left_files) == ([], [])
    assert ended.record["ended"]["digests"]["0"] == ended.record["ended"]["digests"]["1"]


# The socket pair of launcher and agent --------------------------------------------------------------------------------


def member(rank: int, peer: Any, **named: Any) -> Any:
    """One end of the pair, as torchrunx makes it."""
    group = socketpair_group(peer, lambda: "killed by SIGKILL", **named)
    return group(launcher_hostname="", launcher_port=0, world_size=2, rank=rank)


def test_launcher_and_agent_exchange_payloads() -> None:
    ours, theirs = Pipe()
    received: list[Any] = []
    agent = threading.Thread(target=lambda: received.append(member(1, theirs).sync_payloads({"agent": 1})))
    agent.start()
    assert member(0, ours).sync_payloads({"launcher": 0}) == ({"launcher": 0}, [{"agent": 1}])
    agent.join(timeout=10)
    assert received == [({"launcher": 0}, [{"agent": 1}])]


def test_the_end_of_the_other_process_is_an_error_with_its_cause() -> None:
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(AgentFailedError, match="killed by SIGKILL"):
        member(0, ours).sync_agent_statuses(None)


def test_a_silent_agent_is_an_error() -> None:
    ours, theirs = Pipe()
    with pytest.raises(AgentFailedError, match="silent"):
        member(0, ours, patience=0.01).sync_agent_statuses(None)
    theirs.close()


def test_a_launch_that_outlives_its_time_opens_nothing_for_the_next_one() -> None:
    """Its names are its own: what a thread puts back late would be put back under a launch that was started again."""
    ours, theirs = Pipe()
    usual = dict(vars(torchrunx.launcher))
    launcher = torchrunx.launcher.Launcher(hostnames=["127.0.0.1"], workers_per_host=[1], backend=None)
    launcher.set_logging_handlers(None)

    agent: Any = SimpleNamespace(socket=ours, how_it_ended=lambda: "killed by SIGKILL")

    def launch() -> None:
        with suppress(AgentFailedError):
            patched_run(agent, 60)(launcher, print)

    thread = threading.Thread(target=launch)
    thread.start()
    theirs.send_bytes(pickle.dumps(SimpleNamespace(process_id=0)))
    assert theirs.poll(60)
    assert {name for name, value in vars(torchrunx.launcher).items() if value is not usual.get(name)} == set()
    theirs.close()
    thread.join(timeout=10)
    assert not thread.is_alive()


# What the libraries still do ----------------------------------------------------------------------------------------

MODULES = (torchrunx.launcher, torchrunx.agent, torchrunx.worker)
each_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)


def replaced_names(module: ModuleType) -> set[str]:
    """The names of a module of torchrunx that a launch replaces, wherever it does."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(torchrunx_patch))) if isinstance(node, ast.Call)]
    calls = [call for call in calls if ast.unparse(call.func).endswith("replaced")]
    return {
        named.arg or "" for call in calls if ast.unparse(call.args[0]) == module.__name__ for named in call.keywords
    }


@each_module
def test_torchrunx_still_uses_each_name_that_is_replaced(module: ModuleType) -> None:
    # A new release that opens its sockets under other names would leave the door open.
    source, names = inspect.getsource(module), replaced_names(module)
    assert names
    assert {name for name in names if not re.search(rf"\b{name}[.\[(,]", source)} == set()


@each_module
def test_torchrunx_opens_nothing_under_a_name_that_is_not_replaced(module: ModuleType) -> None:
    # A worker has a store for a backend that Shoal does not ask it for.
    opening = ["init_process_group(", "TCPStore("] if module is torchrunx.worker else []
    found = re.findall(
        r"TCPStore\(|init_process_group\(|create_server\(|\.listen\(|socket\.socket\(", inspect.getsource(module)
    )
    assert found == opening


def test_the_module_keeps_its_own_names() -> None:
    before = torchrunx.launcher.socket
    assert replaced(torchrunx.launcher, socket=None)["socket"] is None
    assert torchrunx.launcher.socket is before


def test_a_name_that_is_not_there_is_not_made() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        replaced(torchrunx.launcher, no_such_name=None)


UNPICKLING = re.compile(r"(?:(?:all_gather|gather|broadcast|scatter|send|recv)_object(?:_list)?|pickle\.loads?)\(")


def test_what_crosses_between_ranks_is_never_unpickled() -> None:
    # gloo's connections have no password: whoever joins them must not reach pickle.
    files = [*Path(shoal.__file__).parent.rglob("*.py"), *Path(rsl_rl.__file__).parent.rglob("*.py")]
    found = {file.name for file in files if UNPICKLING.search(file.read_text(encoding="utf-8"))}
    assert found == {"torchrunx_patch.py"}  # the channel to the agent
