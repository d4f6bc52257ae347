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

from shoal.cli import registry

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
    "computes": ("hangs", "while True: pass"),
    "grows": ("traceback", "try: bytes(3 << 30)\nexcept MemoryError: raise GeneratorExit"),
    "is refused memory": ("memory", "try: bytes(3 << 30)\nexcept MemoryError as error: print(repr(error))"),
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
            words = plan_of_task(place, code)
            before = place.state()
            answer = server.run(place, words, seconds=5)
            findings[name] = list(judge(0, name, "a task", place, answer, before))
    return findings


def plan_of_task(place: Place, code: str) -> list[str]:
    """Write a task that runs code as it is imported; return a command that imports it."""
    place.given.mkdir()
    task = place.given / "task.py"
    places = {"outside": str(place.outside), "given": str(place.given)}
    task.write_text(f"{code.format(**places)}\nfrom shoal.tasks.cartpole.task import *\n", encoding="utf-8")
    logs = str(place.given / "logs")
    return ["shoal", "train", f"{task}:Nothing", "--dry-run", "--gpu-ids", "None", "--log-root", logs]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTY)
def test_the_harness_finds_a_command_that_misbehaves(name: str, found: dict[str, list[Finding]]) -> None:
    assert FAULTY[name][0] in {each.kind for each in found[name]}, found[name]


@pytest.mark.slow
def test_the_harness_finds_that_code_of_a_file_ran(found: dict[str, list[Finding]]) -> None:
    assert [each.kind for each in found["nothing"]] == ["code"]


@pytest.mark.slow
def test_a_witness_tells_what_is_touched_below_a_descriptor(tmp_path: Path) -> None:
    place = Place(path=tmp_path / "place")
    place.make()
    lines = (
        "import os",
        "below = os.open({given!r}, 0)",
        "os.mkdir('folder', dir_fd=below)",
        "os.close(os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=below))",
        "os.rename('new', 'renamed', src_dir_fd=below, dst_dir_fd=below)",
    )
    words = plan_of_task(place, "\n".join(lines))
    with Server(tmp_path / "home") as server:
        told = server.run(place, words, witness=True).told
    assert {f"writes {place.given}/{name}" for name in ("folder", "new", "renamed")} <= {*told}, told


def test_every_command_that_reads_files_is_among_the_cases() -> None:
    read_nothing = {"tasks", "doctor", "completion", "bench", "new", "demo"}
    started = {word for command in COMMANDS.values() for word in command.words[:2]}
    assert started & registry.COMMANDS.keys() == registry.COMMANDS.keys() - read_nothing
