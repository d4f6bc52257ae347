"""What cannot be done is refused at once, in one sentence that is meant, before anything is imported or written."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.refusals import HEAVY, WISHES
from support.snapshots import matches_snapshot

from shoal.cli.flags import flags_of
from shoal.cli.habits import HABITS
from shoal.cli.parse import parse_train
from shoal.config import PlayConfig
from shoal.errors import UsageError
from shoal.tasks import registry

SNAPSHOTS = Path(__file__).with_name("snapshots")
TESTS = Path(__file__).parents[1]


def timed(where: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run Python in a process of its own; return how it ended, and the processor's time that it took [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-X", "importtime", *words]
    ended = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.fixture(scope="module")
def allowed_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long an answer may take [s]: three quarters of torch's import, which it must not wait for, on any machine."""
    return 0.75 * timed(tmp_path_factory.mktemp("torch"), "-c", "import torch")[1]


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


def test_each_refusal_exits_with_two_and_imports_and_writes_nothing(
    answers: dict[str, dict[str, Any]], allowed_s: float
) -> None:
    did = {name: (answer["code"], answer["imported"], answer["written"]) for name, answer in answers.items()}
    assert {name: each for name, each in did.items() if each != (2, [], [])} == {}
    assert {name: answer["seconds"] for name, answer in answers.items() if answer["seconds"] >= allowed_s} == {}


def test_each_refusal_is_one_line_that_ends_as_a_sentence(answers: dict[str, dict[str, Any]]) -> None:
    sentences = [answer["sentence"] for answer in answers.values()]
    assert len(sentences) == len(WISHES)
    assert [each for each in sentences if "\n" in each or not each.endswith((".", "?"))] == []
    assert [each for each in sentences if "<here>/<here>" in each] == []


@pytest.mark.parametrize("words", ["train Cartpole-Swingupp", "train --help", "tasks", ""])
def test_a_real_command_answers_at_once(tmp_path: Path, words: str, allowed_s: float) -> None:
    ended, seconds = timed(tmp_path, "-m", "shoal", *words.split())
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert "shoal.cli.main" in imported
    assert imported.isdisjoint(HEAVY)
    assert seconds < allowed_s
    assert ended.returncode == (2 if "Swingupp" in words else 0)


def test_a_refusal_is_one_line_on_standard_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal", "train", "Cartpole-Swingupp"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    sentence = "There is no task 'Cartpole-Swingupp'. Did you mean 'Cartpole-Swingup'?"
    assert ended.stderr == f"Error: {sentence} `shoal tasks` lists what can be trained.\n"
    assert ended.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("train {task} --max-iteration 3", "`train` has no flag --max-iteration. Did you mean '--max-iterations'?"),
        ("train {task} --agent.algorithm.gama 0.9", "Did you mean '--agent.algorithm.gamma'?"),
        ("train {task} --gamma 0.9", "Did you mean '--agent.algorithm.gamma'?"),
        ("train {task} --env.gravty 1", "Did you mean '--env.gravity'?"),
        ("play {task} --episode 1", "`play` has no flag --episode. Did you mean '--episodes'?"),
        ("train {task} --num-envs many", "--num-envs cannot be read (invalid literal for int() with base 10: 'many')"),
        ("train {task} --num-envs", "--num-envs lacks values: pass --num-envs INT."),
        ("train {task} --logger wand", "must be one of tensorboard, wandb, none. Did you mean 'wandb'?"),
        ("train {task} more", "`train` takes no 'more' here"),
        ("train {task} --video True", "--video is a switch and takes no True: type `--video`."),
        ("train {task} --video False", "type `--no-video`."),
        ("train {task} agent.save_interval=7", "type `--agent.save_interval=7` for agent.save_interval=7."),
        ("replay", "No file was named: pass one, `shoal replay FILE`."),
    ],
)
def test_words_that_are_not_understood_are_answered_in_one_line(words: str, told: str) -> None:
    from shoal.cli import main

    with pytest.raises(UsageError) as refused:
        main.shoal(words.format(task="Cartpole-Swingup").split())
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


def test_flags_of_mjlab_and_isaac_lab_are_answered_with_what_the_page_has_for_them() -> None:
    page = (TESTS.parent / "docs" / "coming_from_mjlab.md").read_text(encoding="utf-8")
    spec = registry.resolve("Quadruped-Velocity-Flat")
    known = {flag.name for flag in flags_of(spec.defaults())}
    known |= {flag.name for flag in flags_of(PlayConfig(task="", env=spec.env, agent=spec.agent))}
    for row in re.findall(r"^\| (.*`--.*) \|$", page, re.MULTILINE):
        *theirs, ours = row.split(" | ")
        for flag in re.findall(r"(?<=`)--[a-z_.-]+(?![a-z_.*-])", " ".join(theirs)):
            name = flag.replace("_", "-")
            answer = HABITS.get(name)
            assert name in known or answer is not None, flag
            shown = re.findall(r"--[a-z-]+(?:\.[a-z-]+)*", answer or "")
            assert not shown or any(each in ours for each in shown), (flag, answer, ours)


@pytest.mark.parametrize("flag", HABITS)
def test_a_habit_is_no_flag_of_ours(flag: str) -> None:
    assert flag not in {each.name for each in flags_of(registry.resolve("Cartpole-Swingup").defaults())}
    with pytest.raises(UsageError, match=f"has no flag {flag}: type "):
        parse_train(["Cartpole-Swingup", flag, "1"])


def test_a_deleted_working_directory_is_refused(tmp_path: Path) -> None:
    script = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "shoal", "tasks"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "Error: The working directory does not exist any more: change to one that does.\n"
