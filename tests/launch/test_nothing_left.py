"""Nothing outlives a run whose launcher, agent or terminal is gone: no process, no port, no temporary file."""

from __future__ import annotations

import re
import signal
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest
from support.commands import SMALL, TRAIN, command_line, has_loaded, left_in, marked, marks, start, torchrun, wait_until
from support.ports import listeners
from support.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from support.commands import Ended, Running

pytestmark = pytest.mark.spawn

SWINGUP = ("Cartpole-Swingup", *SMALL, "--max-iterations", "100000", "--logger", "none")
SPAWNED = ("--nproc-per-node", "2")
AGENT = f"{sys.executable} -u -m shoal.launch.torchrunx_patch "
SOON_S = 5.0
"""Within this time after its launcher nothing of a run is there."""


def training(where: Path, words: tuple[str, ...] = (*TRAIN, *SWINGUP, *SPAWNED)) -> Running:
    """A training that has done its first iteration."""
    running = start(words, where)
    running.read_until("[1/")
    return running


def ports_of(mark: str) -> set[int]:
    """The ports on which processes of a command listen."""
    return {each.port for each in listeners(marked(mark))}


def listened_on() -> set[int]:
    """The ports of this machine on which somebody listens."""
    return {each.port for each in listeners(psutil.pids())}


def assert_nothing_is_left(mark: str, temporary: Path, ports: set[int], since: float) -> None:
    assert wait_until(lambda: not list(marked(mark)), since + SOON_S - time.monotonic()), [
        command_line(pid) for pid in marked(mark)
    ]
    assert left_in(temporary) == []
    # The kernel closes files a moment after a process has lost its name.
    assert wait_until(lambda: not ports & listened_on(), since + SOON_S - time.monotonic())


def assert_saved(log_root: Path) -> None:
    """The newest checkpoint is that of the last iteration."""
    (run,) = log_root.glob("*/*")
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"{len(rows):06d}"]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((*TRAIN, *SWINGUP, *SPAWNED), id="spawned"),
        pytest.param((*torchrun(2), *SWINGUP), id="joined", marks=pytest.mark.soak),
    ],
)
def test_ranks_whose_launcher_is_killed_save_and_go(tmp_path: Path, words: tuple[str, ...]) -> None:
    running = training(tmp_path, words)
    ports = ports_of(running.mark)
    assert ports
    running.signal_itself(signal.SIGKILL)
    assert_nothing_is_left(running.mark, running.temporary, ports, time.monotonic())
    assert_saved(running.log_root)


def test_workers_that_start_when_their_launcher_is_killed_never_run(tmp_path: Path) -> None:
    running = start((*TRAIN, *SWINGUP, *SPAWNED), tmp_path)
    assert wait_until(lambda: agent_of(running) is not None, timeout=120)
    running.signal_itself(signal.SIGKILL)
    assert_nothing_is_left(running.mark, running.temporary, set(), time.monotonic())


@pytest.mark.soak
def test_ranks_that_import_torch_when_torchrun_is_killed_never_run(tmp_path: Path) -> None:
    running = start((*torchrun(2), *SWINGUP), tmp_path)
    assert wait_until(lambda: len(importing(running)) == 2, timeout=120)
    running.signal_itself(signal.SIGKILL)
    assert_nothing_is_left(running.mark, running.temporary, set(), time.monotonic())


def test_a_closed_terminal_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    mark, environ = marks(tmp_path)
    terminal = Terminal((*TRAIN, *SWINGUP, *SPAWNED), tmp_path, environ)
    terminal.read_until(r"Total steps\s+\d")
    ports = ports_of(mark)
    terminal.close()
    closed = time.monotonic()
    assert terminal.process.wait(timeout=60) == 143
    assert_nothing_is_left(mark, tmp_path / "tmp", ports, closed)
    assert_saved(tmp_path / "logs")


def end_without_its_agent(running: Running) -> Ended:
    """Kill torchrunx's agent of a launch, which then ends soon, and as one that is worth another try."""
    agent = agent_of(running)
    assert agent is not None
    running.signal_process(agent, signal.SIGKILL)
    ended = running.end()
    assert ended.code == 75, ended.stdout + ended.stderr
    assert ended.seconds_after_signal < SOON_S
    return ended


def test_a_lost_agent_is_named_after_the_ranks_have_saved(tmp_path: Path) -> None:
    running = training(tmp_path)
    ended = end_without_its_agent(running)
    assert re.search(r"Lost torchrunx's agent on .* \(killed by SIGKILL\)\.", ended.last_line)
    assert ended.last_line.endswith(f"Pass --resume to go on from iteration {len(ended.rows)}.")
    assert_saved(running.log_root)
    assert (ended.left_processes, ended.left_files) == ([], [])


def test_an_agent_that_is_lost_while_it_starts_is_noticed_at_once(tmp_path: Path) -> None:
    running = start((*TRAIN, *SWINGUP, *SPAWNED), tmp_path)
    assert wait_until(lambda: agent_of(running) is not None, timeout=120)
    ended = end_without_its_agent(running)
    assert ended.last_line.endswith("did not start: killed by SIGKILL.")
    assert (ended.left_processes, ended.left_files) == ([], [])


def importing(running: Running) -> list[int]:
    """The ranks of torchrun that have begun to load torch."""
    return [pid for pid in running.processes() if pid != running.leader and has_loaded(pid, "libtorch")]


def agent_of(running: Running) -> int | None:
    """The process id of torchrunx's agent."""
    return next((pid for pid in marked(running.mark) if command_line(pid).startswith(AGENT)), None)
