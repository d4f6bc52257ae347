"""The commands of docs/nodes.md, run on machines made of namespaces: on the CPU, small, and with their addresses."""

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

PAGE = "docs/nodes.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
COMMANDS = commands_of(TEXT, PAGE)
ADDRESS = "10.0.0.2"
"""Machine 0's, on the page."""
BY_SSH = [each for each in COMMANDS if "--hosts" in each.text]
TORCHRUN = [
    Command(page=PAGE, line=0, text=" ".join(found.replace("\\\n", " ").split()))
    for found in re.findall(r"^python -m torch.distributed.run (?:.*\\\n)*.*$", TEXT, re.MULTILINE)
]


@dataclass
class Typist:
    """Types what the page shows."""

    made: Machines

    def at(self, machine: Machine, command: Command) -> Ended:
        return self.start(machine, command).end()

    def start(self, machine: Machine, command: Command):  # noqa: ANN201
        words = command.small.replace(ADDRESS, self.made["a"].address).replace("--gpu-ids all", "--gpu-ids None")
        words = words.replace("--nproc_per_node=4", "--nproc_per_node=1")
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
    assert len(BY_SSH) >= 2
    assert [re.findall(r"--nnodes=2 --node_rank=\d", each.text) for each in TORCHRUN] == [
        [f"--nnodes=2 --node_rank={number}"] for number in range(2)
    ]


def test_the_login_that_the_page_asks_for(typist: Typist) -> None:
    (login,) = [each for each in COMMANDS if each.text == "ssh a hostname"]
    ended = typist.at(typist.made.launcher, login)
    assert (ended.code, ended.stdout) == (0, "a\n")


@pytest.mark.parametrize(
    "command",
    [
        # What reaches the machines is the same for all of them; trainings on two nodes are `launch/test_hosts`'.
        each if each is BY_SSH[0] else pytest.param(each, marks=pytest.mark.soak)
        for each in BY_SSH
    ],
    ids=str,
)
def test_a_command_that_reaches_the_machines(command: Command, typist: Typist) -> None:
    ended = typist.at(typist.made.launcher, command)
    assert ended.code == 0, ended.stdout + ended.stderr
    if "train" in command.text and "--dry-run" not in command.text:
        assert len(last_digests(typist.made)) == 2
    assert typist.made.left_processes() == []


@pytest.mark.soak
def test_torchrun_that_is_typed_on_each_machine(typist: Typist) -> None:
    running = [typist.start(*each) for each in zip(typist.made.workers, TORCHRUN, strict=True)]
    for ended in [each.end() for each in running]:
        assert ended.code == 0, ended.stdout + ended.stderr
    assert len(last_digests(typist.made)) == 2
