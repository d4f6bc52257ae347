"""What cannot be done is refused at once, in one sentence that is meant, before anything is imported or written."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.refusals import HEAVY, WISHES
from support.snapshots import matches_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
TESTS = Path(__file__).parents[1]
ALLOWED_S = 2.0
"""How long a refusal may take [s]; of the processor's time, since a busy machine tells nothing of ours."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """How each wish was refused, in a fresh process."""
    where = tmp_path_factory.mktemp("wishes")
    asked = subprocess.run(
        [sys.executable, "-m", "support.refusals"],
        cwd=where,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path)), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout.replace(str(where), "<here>"))


def test_every_sentence_is_meant(answers: dict[str, dict[str, Any]]) -> None:
    told = "".join(f"{name}\n    shoal {WISHES[name].words}\n    {answers[name]['sentence']}\n\n" for name in WISHES)
    assert matches_snapshot(SNAPSHOTS / "refusals.txt", told)


def test_each_refusal_exits_with_two_and_imports_and_writes_nothing(answers: dict[str, dict[str, Any]]) -> None:
    did = {name: (answer["code"], answer["imported"], answer["written"]) for name, answer in answers.items()}
    assert {name: each for name, each in did.items() if each != (2, [], [])} == {}
    assert {name: answer["seconds"] for name, answer in answers.items() if answer["seconds"] >= ALLOWED_S} == {}


def test_each_refusal_is_one_line_that_ends_as_a_sentence(answers: dict[str, dict[str, Any]]) -> None:
    sentences = [answer["sentence"] for answer in answers.values()]
    assert len(sentences) == len(WISHES)
    assert [each for each in sentences if "\n" in each or not each.endswith((".", "?"))] == []
    assert [each for each in sentences if "<here>/<here>" in each] == []


def shoal(where: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a command in a process of its own; return how it ended, and the processor's time that it took [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-X", "importtime", "-m", "shoal", *words]
    ended = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("words", ["train Cartpole-Swingupp", "train --help", "tasks", ""])
def test_a_real_command_answers_at_once(tmp_path: Path, words: str) -> None:
    ended, seconds = shoal(tmp_path, *words.split())
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "shoal.cli.main" in imported
    assert imported.isdisjoint(HEAVY)
    assert seconds < ALLOWED_S
    assert ended.returncode == (2 if "Swingupp" in words else 0)


def test_a_refusal_is_one_line_on_standard_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal", "train", "Cartpole-Swingupp"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    sentence = "There is no task 'Cartpole-Swingupp'. Did you mean 'Cartpole-Swingup'?"
    assert ended.stderr == f"Error: {sentence} `shoal tasks` lists what can be trained.\n"
    assert ended.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (("train", "Cartpole-Swingup", "--max-iteration", "3"), "--max-iterations INT"),
        (("train", "Cartpole-Swingup", "--agent.algorithm.gama", "0.9"), "--agent.algorithm.gamma FLOAT"),
        (("train", "Cartpole-Swingup", "--env.gravty", "1"), "--env.gravity FLOAT"),
        (("play", "Cartpole-Swingup", "--episode", "1"), "--episodes INT"),
    ],
)
def test_a_misspelt_flag_is_answered_with_the_nearest(
    words: tuple[str, ...], nearest: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.cli import main

    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as left:
        main._shoal(words)
    assert left.value.code == 2
    said = capsys.readouterr()
    assert nearest in said.err + said.out
