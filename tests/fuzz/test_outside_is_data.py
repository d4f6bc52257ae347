"""Whatever is in a file of others: what reads it runs nothing of it, neither hangs nor raises, and writes nowhere else.

pytest -m soak -s -n0 tests/fuzz --soak-cases 3000 --soak-seed 1
pytest -m soak -s -n0 tests/fuzz --soak-case 17          # one of them again
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from support.fuzz.cases import COMMANDS, Cases, run_cases, warm_up_commands
from support.fuzz.corpus import make_corpus
from support.fuzz.harness import Place, Server, distinct, judge

if TYPE_CHECKING:
    from pathlib import Path

    from support.fuzz.harness import Finding

SERVERS = 2
"""Processes side by side, one for each core of a small machine."""


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_file_runs_hangs_or_writes_outside(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    corpus, home = Place(path=tmp_path / "corpus"), tmp_path / "home"
    corpus.make()
    with Server(home) as server:
        make_corpus(corpus, server)
    one, count, seed = (request.config.getoption(f"--soak-{name}") for name in ("case", "cases", "seed"))
    assert isinstance(count, int)
    assert isinstance(seed, int)
    numbers = range(count) if one is None else [int(one)]
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(home, warm_up_commands(corpus))) for _ in range(SERVERS)]
        found = run_cases(Cases(corpus, servers, seed), numbers, servers, print)
    faults = distinct(found)
    print(f"{len(numbers)} cases with the seed {seed}, {len(found)} findings, {len(faults)} of them distinct.")  # noqa: T201
    assert not faults, "\n".join(["", *faults])


FAULTY = {
    "writes": ("open", "open({outside!r} + '/new', 'w')"),
    "writes below a descriptor": ("open", "import os; os.open('new', os.O_CREAT, dir_fd=os.open({outside!r}, 0))"),
    "removes": ("os.remove", "import os; os.remove({outside!r} + '/file')"),
    "renames": ("os.rename", "import os; os.rename({outside!r} + '/file', {outside!r} + '/other')"),
    "writes unseen": (
        "changed outside",
        "import ctypes; ctypes.CDLL(None).creat(({outside!r} + '/new').encode(), 0o644)",
    ),
    "works where it stands": ("os.mkdir", "import os; os.mkdir('new')"),
    "starts": ("subprocess.Popen", "import subprocess; subprocess.run(['true'])"),
    "starts and leaves": ("processes left", "import os; os.fork() or __import__('signal').pause()"),
    "reaches": ("socket.connect", "import socket; socket.socket().connect_ex(('127.0.0.1', 1))"),
    "raises": ("traceback", "raise GeneratorExit"),
    "hangs": ("hangs", "import signal; signal.pause()"),
    "grows": ("traceback", "try: bytes(3 << 30)\nexcept MemoryError: raise GeneratorExit"),
    "ends otherwise": ("exit code", "import os; os._exit(3)"),
}
"""What a task of one's own does as it is imported, which is to be found, and as what."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Finding]]:
    """The findings of commands that do what none may do, each by its name."""
    findings: dict[str, list[Finding]] = {}
    home = tmp_path_factory.mktemp("home")
    with Server(home) as server:
        for name, (_, code) in {**FAULTY, "nothing": ("", "")}.items():
            place = Place(path=tmp_path_factory.mktemp("case") / "place")
            place.make()
            place.given.mkdir()
            task = place.given / "task.py"
            task.write_text(
                code.format(outside=str(place.outside)) + "\nfrom shoal.tasks.cartpole.task import *\n",
                encoding="utf-8",
            )
            before = place.state()
            logs = str(place.given / "logs")
            words = ("shoal", "train", f"{task}:Nothing", "--dry-run", "--gpu-ids", "None", "--log-root", logs)
            answer = server.run(place, words, seconds=5)
            findings[name] = list(judge(0, name, "a task", place, answer, before))
    return findings


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTY)
def test_the_harness_finds_a_command_that_misbehaves(name: str, found: dict[str, list[Finding]]) -> None:
    assert FAULTY[name][0] in {each.kind for each in found[name]}, found[name]


@pytest.mark.slow
def test_the_harness_finds_that_code_of_a_file_ran(found: dict[str, list[Finding]]) -> None:
    assert [each.kind for each in found["nothing"]] == ["code"]


def test_every_command_that_reads_files_is_among_the_cases() -> None:
    from shoal.cli.main import _COMMANDS

    read_nothing = {"tasks", "doctor", "completion", "bench"}
    started = {word for command in COMMANDS.values() for word in command.words[:2]}
    assert started & _COMMANDS.keys() == _COMMANDS.keys() - read_nothing
