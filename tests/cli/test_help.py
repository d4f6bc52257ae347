"""The flags of every command. A new flag, and a new default, fails here until somebody means it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.snapshots import matches_snapshot

from shoal import __version__
from shoal.cli import main

SNAPSHOTS = Path(__file__).with_name("snapshots")

COMMANDS = {
    "train": ("train", "Cartpole-Swingup"),
    "play": ("play", "Cartpole-Swingup"),
    "evaluate": ("evaluate", "Cartpole-Swingup"),
    "bench": ("bench", "Cartpole-Swingup"),
    "plan": ("plan", "Cartpole-Swingup"),
}


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints when it is asked for help."""
    with pytest.raises(SystemExit) as left:
        main._shoal([*words, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def flags_in(text: str) -> str:
    """The flags in a help text with what they take, and their defaults, a line each."""
    plain = re.sub(r"\s+", " ", re.sub(r"[╭╮╰╯│─]", " ", text))
    found = re.finditer(r" (--[a-z][a-z.0-9-]*(?: (?:\{|\[|[A-Z])\S*(?: \S*[\]}|]+\S*)*)?)(.*?)(?= --[a-z]|$)", plain)
    told = ((match[1], re.search(r"\((default: .*?|required)\)", match[2])) for match in found)
    return "".join(f"{flag}  {default[1] if default else ''}".rstrip() + "\n" for flag, default in told if default)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_flags_are_those_that_are_meant(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = flags_in(help_of(capsys, *COMMANDS[command]))
    assert matches_snapshot(SNAPSHOTS / f"flags_of_{command}.txt", flags)


def test_every_flag_of_the_design_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, *COMMANDS["train"])
    flags = "gpu-ids nproc-per-node num-envs num-envs-total max-iterations seed run-name log-root resume checkpoint"
    flags += " torchrunx-log-dir logger dry-run"
    assert [flag for flag in flags.split() if f" --{flag} " not in text] == []


def test_help_shows_the_defaults_of_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {task: help_of(capsys, "train", f"Cartpole-{task}") for task in ("Swingup", "Balance")}
    number = {task: re.search(r"--num-envs INT.*?\(default: (\d+)\)", text, re.DOTALL) for task, text in shown.items()}
    assert {task: match and match[1] for task, match in number.items()} == {"Swingup": "1024", "Balance": "512"}


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_shoal_alone_lists_its_commands(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main._shoal(words)
    text = capsys.readouterr().out
    assert [
        name for name in ("train", "play", "evaluate", "tasks", "plan", "bench") if f"\n  {name} " not in text
    ] == []


@pytest.mark.parametrize("words", [("train",), ("train", "--help"), ("tasks",)])
def test_what_can_be_trained_is_listed(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main._shoal(words)
    text = capsys.readouterr().out
    assert "Cartpole-Swingup" in text
    assert "Cartpole-Balance" in text


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main._shoal(["--version"])
    assert capsys.readouterr().out == f"shoal {__version__}\n"
