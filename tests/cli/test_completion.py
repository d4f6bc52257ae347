"""Shell completion: candidates, and the three scripts in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.refusals import HEAVY

from shoal.cli import main
from shoal.cli.completion import SCRIPTS, candidates
from shoal.cli.flags import docstring_of_function
from shoal.cli.parse import parse
from shoal.cli.registry import COMMANDS, load
from shoal.tasks.registry import registered

BIN = Path(sys.executable).parent

IN_SHELL = {
    "bash": """
eval "$(shoal completion bash)"
COMP_WORDS=({words}); COMP_CWORD=$(({count} - 1))
_shoal_complete "${{COMP_WORDS[0]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """
compdef() {{ :; }}
compadd() {{ print -l -- "${{(@P)2}}" }}
_files() {{ print files }}
eval "$(shoal completion zsh)"
words=({words}); CURRENT={count}
_shoal_complete
""",
    "fish": """
shoal completion fish | source
complete --do-complete {line}
""",
}
"""A program for each shell that prints the completions of a command line."""


OF_EACH_KIND = ("Cartpole-Swingup", "Quadruped-Velocity-Rough", "Hopper-v5", "Arm-Lift-Cube")
"""Tasks whose flags are completed in CI; `make test-soak` has them all."""


def completed(*words: str) -> list[str]:
    return candidates(words)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shoal pl", ["play"]),
        ("shoal train Cartpole-B", ["Cartpole-Balance"]),
        ("train Cartpole-B", ["Cartpole-Balance"]),
        ("train --seed 1 --task Cartpole-B", ["Cartpole-Balance"]),
        ("train Cartpole-Swingup --max-it", ["--max-iterations"]),
        ("train Cartpole-Swingup --env.swung", ["--env.swung-up-weight"]),
        ("train Quadruped-Velocity-Flat --env.swung", []),
        ("train Cartpole-Swingup --logger w", ["wandb"]),
        ("train Cartpole-Swingup --logger = w", ["wandb"]),
        ("train Cartpole-Swingup --agent.obs-groups.a", ["--agent.obs-groups.actor"]),
        ("train Cartpole-Swingup --no-exp", ["--no-export"]),
        ("train Cartpole-Swingup --help env.r", ["env.rewards"]),
        ("evaluate Cartpole-Swingup --policy z", ["zero"]),
        ("play Cartpole-Swingup --checkpoint b", ["best", "best-of-runs"]),
        ("shoal replay --vid", ["--video-path"]),
        ("shoal completion f", ["fish"]),
        ("/some/where/train Cartpole-B", ["Cartpole-Balance"]),
    ],
)
def test_a_word_is_completed(line: str, expected: list[str]) -> None:
    assert completed(*line.split()) == expected


@pytest.mark.parametrize(
    "task", [task if task in OF_EACH_KIND else pytest.param(task, marks=pytest.mark.soak) for task in registered()]
)
def test_every_flag_of_the_help_is_completed(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "play"):
        with pytest.raises(SystemExit):
            parse(command, [task, "--help", "all"])
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("--")]
        flags = {word for line in lines for word in line.replace(",", "").split() if word.startswith("--")}
        assert flags - {"--"} <= set(completed(command, task, "--"))


def test_all_parts_of_every_command_exist() -> None:
    for command in COMMANDS.values():
        parts = [command.run, command.config, command.parse]
        assert all(callable(load(part)) for part in parts if part is not None)
        assert docstring_of_function(f"shoal.{command.run}")


def test_the_scripts_are_printed_for_shells_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for shell, script in SCRIPTS.items():
        main.shoal(["completion", shell])
        assert capsys.readouterr().out == script


@pytest.mark.parametrize("shell", SCRIPTS)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "Cartpole-B"], ["Cartpole-Balance"]),
        (["train", "Cartpole-Swingup", "--max-it"], ["--max-iterations"]),
    ],
)
def test_a_shell_completes_tasks_and_flags(shell: str, words: list[str], expected: list[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    line = " ".join(words)
    program = IN_SHELL[shell].format(words=line, count=len(words), line=f'"{line}"')
    environ = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    ended = subprocess.run([shell, "-c", program], env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.stdout.split(), ended.stderr) == (expected, "")


def test_candidates_come_without_the_parser_and_without_a_simulator() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "shoal", "completion", "candidates", "train", "Cart"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert imported.isdisjoint({*HEAVY, "tyro"})
