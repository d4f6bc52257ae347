"""The commands of docs/machines.md, run on machines made of namespaces: on the CPU, small, and with their addresses."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.documented import ROOT, Command, commands_of
from support.machines import machines, needs_machines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.commands import Ended
    from support.machines import Machine, Machines

pytestmark = [pytest.mark.spawn, pytest.mark.slow, needs_machines]

PAGE = "docs/machines.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
COMMANDS = commands_of(TEXT, PAGE)
ADDRESS = "10.0.0.2"
"""Machine 0's, on the page."""
BY_SSH = [each for each in COMMANDS if "--hosts" in each.text]
TYPED = [each for each in COMMANDS if "--node-rank 0" in each.text]
TORCHRUN = Command(
    page=PAGE,
    line=0,
    text=" ".join(re.findall(r"^torchrun (?:.*\\\n)*.*$", TEXT, re.MULTILINE)[0].replace("\\\n", " ").split()),
)


@dataclass
class Typist:
    """Types what the page shows."""

    made: Machines

    def at(self, machine: Machine, command: Command, **said_otherwise: str) -> Ended:
        return self.start(machine, command, **said_otherwise).end()

    def start(self, machine: Machine, command: Command, **said_otherwise: str):  # noqa: ANN201
        words = command.small.replace(ADDRESS, self.made["a"].address).replace("--gpu-ids all", "--gpu-ids None")
        words = words.replace("--nproc-per-node=4", "--nproc-per-node=1")
        for said, other in said_otherwise.items():
            words = words.replace(said.replace("_", "-"), other)
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return machine.start(("bash", "-c", words), self.made.shared, path)


@pytest.fixture
def typist(tmp_path: Path) -> Iterator[Typist]:
    with machines(tmp_path, "a", "b") as made:
        yield Typist(made)


def last_digests(made: Machines) -> dict[str, str]:
    (run_json,) = made.shared.glob("logs/*/*/run.json")
    return json.loads(run_json.read_text(encoding="utf-8"))["launches"][-1]["ended"]["digests"]


def test_the_page_has_commands_for_each_way() -> None:
    assert [len(each) for each in (BY_SSH, TYPED)] >= [2, 2]
    assert TORCHRUN.text.startswith("torchrun --nnodes=2 --node-rank=0 ")


def test_the_login_that_the_page_asks_for(typist: Typist) -> None:
    (login,) = [each for each in COMMANDS if each.text == "ssh a hostname"]
    ended = typist.at(typist.made.launcher, login)
    assert (ended.code, ended.stdout) == (0, "a\n")


@pytest.mark.parametrize("command", BY_SSH, ids=str)
def test_a_command_that_reaches_the_machines(command: Command, typist: Typist) -> None:
    ended = typist.at(typist.made.launcher, command)
    assert ended.code == 0, ended.stdout + ended.stderr
    if "train" in command.text and "--dry-run" not in command.text:
        assert len(last_digests(typist.made)) == 2
    assert typist.made.left_processes() == []


@pytest.mark.soak
@pytest.mark.parametrize("command", TYPED, ids=str)
def test_a_command_that_is_typed_on_each_machine(command: Command, typist: Typist) -> None:
    first, second = typist.made.workers
    running = [typist.start(first, command), typist.start(second, command, **{"--node-rank 0": "--node-rank 1"})]
    for ended in [each.end() for each in running]:
        assert ended.code == 0, ended.stdout + ended.stderr
    assert len(last_digests(typist.made)) == 2


@pytest.mark.soak
def test_torchrun_that_is_typed_on_each_machine(typist: Typist) -> None:
    first, second = typist.made.workers
    running = [typist.start(first, TORCHRUN), typist.start(second, TORCHRUN, **{"--node-rank=0": "--node-rank=1"})]
    for ended in [each.end() for each in running]:
        assert ended.code == 0, ended.stdout + ended.stderr
    assert len(last_digests(typist.made)) == 2
