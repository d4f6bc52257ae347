"""Every command that README.md and docs/ show does what they say. How each is tested: `support.documented`."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from ctypes.util import find_library
from typing import TYPE_CHECKING

import pytest
from support.documented import ROOT, Command, Ran, commands_of, documented_commands, not_printed, pages, run
from support.fake_devices import machine_of
from support.warm import WarmCommands

from shoal.cli import main
from shoal.cli.output import print_error
from shoal.cli.parse import parse, parse_train
from shoal.errors import ShoalError
from shoal.machine import gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COMMANDS = documented_commands()
DEMO_LINE = "python3 -m pip install uv && make setup && uv run shoal demo"
TRAIN_LINE = "uv run train Cartpole-Swingup"
TEST_LINE = "uv run pytest"
LAUNCHED = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "{workers}",
    "LOCAL_WORLD_SIZE": "{workers}",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
"""What torchrun tells the first of its workers."""


def headline(command: Command) -> tuple[str, str] | None:
    """Environments and last iteration of the line that begins a training, as a page shows it."""
    found = (
        re.search(r"Training .* ([\d,]+) environments each, iterations 0 to (\d+)\.", line) for line in command.shown
    )
    return next(((match[1], match[2]) for match in found if match), None)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all pages' commands are run, one page after another."""
    path = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "docs" / "examples", path / "docs" / "examples")
    return path


@pytest.fixture(scope="module")
def once(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Command], Ran]]:
    """Runs a command: two pages that show the same one share one run of it."""
    ran: dict[str, Ran] = {}
    with WarmCommands(tmp_path_factory.mktemp("bin")) as warm:

        def run_once(command: Command) -> Ran:
            if command.small not in ran:
                ran[command.small] = run(command, directory, warm.folder)
            return ran[command.small]

        yield run_once


@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=[pytest.mark.soak] if each.is_said_to_be("run in soak") else [])
        for each in COMMANDS
        if each.is_run
    ],
    ids=str,
)
def test_a_command_of_the_pages_works(command: Command, once: Callable[[Command], Ran]) -> None:
    if "--video" in command.text and find_library("OSMesa") is None:
        pytest.skip("libOSMesa is missing: apt-get install libosmesa6")
    done = once(command)
    assert done.exit_code == command.exit_code, f"{command.small}\n{done.output}"
    missing = not_printed(command.shown, done.output, exact=command.is_exact)
    assert missing == [], f"{command.small}\n{done.output}"


@pytest.mark.spawn
@pytest.mark.slow
def test_every_metric_of_the_runs_is_explained(directory: Path, once: Callable[[Command], Ran]) -> None:
    once(Command(page="", line=0, text=TRAIN_LINE))
    rows = [json.loads(line) for file in directory.rglob("metrics.jsonl") for line in file.read_text().splitlines()]
    explained = set(
        re.findall(r"`(\w+(?:/\w+)?)`", (ROOT / "docs" / "guide" / "metrics.md").read_text(encoding="utf-8"))
    )
    written = {name for row in rows for name in row if not name.startswith(("Episode_Reward/", "Episode_Termination/"))}
    assert "Train/mean_reward" in written
    assert written <= explained


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.gpus is not None], ids=str)
def test_a_command_for_gpus_is_planned_as_shown(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "read_inventory", lambda: machine_of(command.gpus or 0))
    words = shlex.split(command.text.removeprefix("uv run "))
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    if words[0] == "torchrun":  # Be the first of its ranks.
        workers = words[1].removeprefix("--nproc_per_node=")
        for name, value in LAUNCHED.items():
            monkeypatch.setenv(name, value.format(workers=workers))
        assert words[2:5] == ["-m", "shoal", "train"]
        del words[:4]
    assert words[0] == "train"
    exit_code = 0
    try:
        main.shoal([*words, "--dry-run"])
    except ShoalError as error:
        print_error(error)
        exit_code = error.exit_code
    output = "".join(capsys.readouterr())
    assert exit_code == command.exit_code, output
    assert not_printed(command.shown, output, exact=True) == [], output


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.is_parsed], ids=str)
def test_a_command_that_takes_long_is_at_least_understood(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command.text.removeprefix("uv run "))
    if "shoal" in words[:-1] and words[(at := words.index("shoal") + 1)] == "train":
        words = words[at:]  # Of `shoal train` and of `python -m ... -m shoal train`.
    if words[:2] == ["shoal", "bench"]:
        assert parse("bench", words[2:])[0].task in command.text
    elif words[:2] == ["shoal", "doctor"]:
        assert parse("doctor", [word for word in words[2:] if word not in {">", "doctor.json"}])[0].gpu_ids == ("None",)
    elif words[:2] == ["shoal", "sweep"]:
        assert parse("sweep", words[2:])[0].file in command.text
    elif words[0] == "python" and not words[1].startswith("docs/examples"):
        monkeypatch.setattr(sys, "path", [*sys.path])  # The script adds to it.
        runpy.run_path(str(ROOT / words[1]))["flags"]().parse_args(words[2:])
    elif words[0] == "train":
        assert parse_train(words[1:]).task in command.text
    else:
        assert command.is_said_to_be("run in soak")


@pytest.mark.parametrize(
    "command", [each for each in COMMANDS if headline(each) and "--resume" not in each.text], ids=str
)
def test_a_headline_has_the_numbers_of_the_whole_command(
    command: Command, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    monkeypatch.chdir(directory)
    words = shlex.split(command.text)
    config = parse_train(words[words.index("train") + 1 :])
    assert headline(command) == (f"{config.num_envs:,}", str(config.max_iterations))


def test_every_command_is_tested_or_says_why_not() -> None:
    skipped = [str(each) for each in COMMANDS if not each.is_run and each.gpus is None and not _says_why(each)]
    assert skipped == []
    assert {each.page for each in COMMANDS} >= {"README.md", "docs/quickstart.md", "docs/guide/launch_modes.md"}


def _says_why(command: Command) -> bool:
    return command.is_said_to_be("not run") or command.is_said_to_be("parsed only")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_stand_in_blocks_that_are_looked_at(page: Path) -> None:
    fences = re.findall(r"^ *```([^\n`]*)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    unnamed = [text for info, text in fences if not info.strip()]
    unseen = [
        text
        for info, text in fences
        if info.strip() in {"shell", "shell-session", "zsh", "text"} and re.search(r"^\$ ", text, re.MULTILINE)
    ]
    assert (unnamed, unseen) == ([], [])


def test_every_page_is_in_the_table_of_contents() -> None:
    docs = ROOT / "docs"
    assert set(docs.rglob("*.md")) - {path for path in docs.rglob("*.md") if "_build" in path.parts} == {
        page for page in pages() if page.is_relative_to(docs)
    }


def test_the_readme_has_the_three_lines_that_do_everything() -> None:
    lines = [command.text for command in COMMANDS if command.page == "README.md"]
    assert lines[:3] == [DEMO_LINE, TRAIN_LINE, TEST_LINE]


def test_ci_ends_with_the_test_command_of_the_readme() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert steps[-1] == f"step {TEST_LINE}"
    assert "step python3 -m pip install --quiet uv" in steps


# What decides the above, shown on pages that are wrong.

PAGE = """
<!-- exits with 2 -->
```console
$ train Nowhere
Error: There is no task 'Nowhere'.
...
$ train A \\
    --max-iterations 300
```

<!-- planned on 4 GPUs -->
```bash
train B --gpu-ids all  # all four
```

```{literalinclude} c.py
:language: python
```

<!-- not run: a server -->
```sh
tensorboard --logdir logs
```

<!-- not run: -->
```sh
reboot
```

<!-- not run of `demo`: a server -->
```sh
shoal demo
train Nowhere
```
"""


def test_commands_are_found_with_their_lines_output_and_comments() -> None:
    found = commands_of(PAGE, "page.md")
    assert [(each.line, each.text) for each in found] == [
        (4, "train Nowhere"),
        (7, "train A --max-iterations 300"),
        (13, "train B --gpu-ids all"),
        (22, "tensorboard --logdir logs"),
        (27, "reboot"),
        (32, "shoal demo"),
        (33, "train Nowhere"),
    ]
    assert found[0].shown == ("Error: There is no task 'Nowhere'.", "...")
    assert [each.exit_code for each in found] == [2, 2, 0, 0, 0, 0, 0]
    assert [each.gpus for each in found] == [None, None, 4, None, None, None, None]
    assert [each.is_run for each in found] == [True, True, False, False, True, False, True]


@pytest.mark.parametrize(
    ("text", "small"),
    [
        (TRAIN_LINE, "train Cartpole-Swingup --num-envs 64 --max-iterations 2"),
        (DEMO_LINE, "shoal demo"),
        ("train A", "train A --num-envs 64 --max-iterations 2"),
        ("train A --max-iterations 600", "train A --max-iterations 600 --num-envs 64 --max-iterations 12 --no-export"),
        (
            "shoal train A --num-envs-total 4096",
            "shoal train A --num-envs-total 4096 --num-envs-total 128 --max-iterations 2 --no-export",
        ),
        ("train A --dry-run", "train A --dry-run"),
        ("uv run play A", "play A"),
        ("ls train", "ls train"),
    ],
)
def test_trainings_are_made_small(text: str, small: str) -> None:
    assert Command(page="", line=1, text=text).small == small


@pytest.mark.parametrize(
    ("shown", "output", "missing"),
    [
        (["reward 5.02"], "x\nreward 4.9\n", []),
        (["reward 5.02"], "reward -\n", []),
        (["reward 5.02"], "loss 5.02\n", ["reward 5.02"]),
        (["a", "b"], "b\na\n", ["b"]),
        (["Run directory: .../logs/..."], "Run directory: /tmp/logs/x", []),
        (["Run directory: .../logs/..."], "Run directory: /tmp/x", ["Run directory: .../logs/..."]),
        (["fingerprint 63f2513d567045e4 on 2"], "fingerprint 0123456789abcdef on 2", []),
    ],
)
def test_output_is_held_against_what_is_shown(shown: list[str], output: str, missing: list[str]) -> None:
    assert not_printed(tuple(shown), output) == missing


def test_a_plan_is_held_to_the_digit() -> None:
    assert not_printed(("num envs 512 ...",), "  num envs   512 x") == []
    assert not_printed(("num envs 512",), "  num envs   513", exact=True) == ["num envs 512"]
