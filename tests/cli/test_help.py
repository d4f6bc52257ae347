"""The flags of every command. A new flag fails here until somebody means it; what a task tunes is its own business."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.snapshots import matches_snapshot

from shoal import __version__
from shoal.cli import main
from shoal.cli.flags import flags_of
from shoal.errors import UsageError
from shoal.tasks.registry import registered

SNAPSHOTS = Path(__file__).with_name("snapshots")

COMMANDS = {
    "train": ("train", "Cartpole-Swingup"),
    "play": ("play", "Cartpole-Swingup"),
    "evaluate": ("evaluate", "Cartpole-Swingup"),
    "export": ("export", "Cartpole-Swingup"),
    "bench": ("bench", "Cartpole-Swingup"),
    "check-env": ("check-env", "Cartpole-Swingup"),
}

WITHOUT_A_TASK = {name: (name,) for name in ("demo", "doctor", "sweep", "replay", "motion", "convert", "runs")} | {
    "compare": ("compare", "Cartpole-Swingup", "A", "B"),
    "compare_results": ("compare", "A", "B"),
}
"""Commands whose usage names more, or other things, than a task."""

OF_EACH_FAMILY = ("Cartpole-Swingup", "Quadruped-Velocity-Rough", "Hopper-v5", "G1-Velocity-Rough", "Arm-Lift-Cube")
"""One task of each family; `make test-soak` has them all."""
each_task = pytest.mark.parametrize(
    "task", [task if task in OF_EACH_FAMILY else pytest.param(task, marks=pytest.mark.soak) for task in registered()]
)


@pytest.fixture(autouse=True)
def _narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def help_of(capsys: pytest.CaptureFixture[str], *words: str, group: tuple[str, ...] = ("all",)) -> str:
    """Output of `--help GROUP`; of everything by default."""
    with pytest.raises(SystemExit) as left:
        main.shoal([*words, "--help", *group])
    assert left.value.code == 0
    return capsys.readouterr().out


def flags_in(text: str) -> str:
    """The flags in a help text, a line each. A flag that is on by default is listed as what switches it off."""
    return "".join(f"{flag}\n" for flag in re.findall(r"^(--[a-z][a-z.0-9-]*)", text, re.MULTILINE))


@pytest.mark.parametrize("command", COMMANDS | WITHOUT_A_TASK)
def test_the_flags_are_those_that_are_meant(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = flags_in(help_of(capsys, *(COMMANDS | WITHOUT_A_TASK)[command]))
    assert matches_snapshot(SNAPSHOTS / f"flags_of_{command}.txt", flags)


@pytest.mark.parametrize("command", ["play", "evaluate", "export", "bench", *WITHOUT_A_TASK])
def test_the_help_of_a_command_has_at_most_80_lines(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(help_of(capsys, *(COMMANDS | WITHOUT_A_TASK)[command], group=()).splitlines()) <= 80


@each_task
def test_the_help_of_train_is_short(
    task: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(help_of(capsys, "train", task, group=()).splitlines()) <= 80


@pytest.mark.parametrize("task", ["Cartpole-Swingup", pytest.param("Quadruped-Velocity-Flat", marks=pytest.mark.soak)])
def test_the_help_of_train_names_every_group(
    task: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short = help_of(capsys, "train", task, group=())
    listed = short.partition("Groups of flags")[2]
    names = [line.split("  ")[1] for line in listed.splitlines()[1:]]
    assert {"nodes", "videos", "checkpoints", "env", "env rewards", "agent", "agent.algorithm"} <= set(names)
    shown = [flags_in(help_of(capsys, "train", task, group=(name,))).split() for name in names]
    shown.append(flags_in(short).split())
    assert {flag for flags in shown for flag in flags} == set(flags_in(help_of(capsys, "train", task)).split())


def test_the_help_of_train_begins_with_what_is_changed_first(capsys: pytest.CaptureFixture[str]) -> None:
    flags = flags_in(help_of(capsys, *COMMANDS["train"], group=())).split()
    assert flags[:4] == ["--task", "--learner", "--gpu-ids", "--nproc-per-node"]
    assert {"--num-envs", "--max-iterations", "--resume", "--checkpoint", "--run-name", "--log-root"} <= set(flags)


@pytest.mark.parametrize(
    ("group", "flag"),
    [
        (("nodes",), "--hosts"),
        (("env", "rewards"), "--env.swung-up-weight"),
        (("env.rewards",), "--env.swung-up-weight"),
        (("agent.actor.distribution",), "--agent.actor.distribution.init-std"),
        (("agent.algorithm",), "--agent.algorithm.gamma"),
    ],
)
def test_help_shows_one_group_of_flags(group: tuple[str, ...], flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = flags_in(help_of(capsys, *COMMANDS["train"], group=group)).split()
    assert flag in flags
    assert "--seed" not in flags


def test_an_unknown_group_of_flags_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"has no group 'agnt'\. Did you mean 'agent'\?"):
        main.shoal(["train", "Cartpole-Swingup", "--help", "agnt"])


def test_every_flag_of_the_design_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, *COMMANDS["train"])
    flags = "gpu-ids nproc-per-node num-envs num-envs-total max-iterations seed run-name log-root resume checkpoint"
    flags += " torchrunx-log-dir logger dry-run"
    assert [flag for flag in flags.split() if not re.search(rf"^--{flag}[ ,]", text, re.MULTILINE)] == []


@each_task
def test_help_shows_the_defaults_of_the_task(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "train", task)
    assert "default: None" not in text
    shown = re.search(r"--num-envs INT.*?\(default: (\d+)\)", text, re.DOTALL)
    assert shown is not None
    assert int(shown[1]) == registered()[task].num_envs


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_shoal_alone_lists_its_commands(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main.shoal(words)
    text = capsys.readouterr().out
    assert [
        name
        for name in (
            "demo",
            "train",
            "play",
            "evaluate",
            "compare",
            "export",
            "replay",
            "motion",
            "runs",
            "convert",
            "tasks",
            "doctor",
            "bench",
            "check-env",
            "completion",
        )
        if f"\n  {name} " not in text
    ] == []


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("more", [(), ("--help",)])
def test_a_command_without_a_task_tells_its_usage(
    command: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    main.shoal([command, *more])
    text = capsys.readouterr().out
    assert re.match(rf"usage: (shoal )?{command} TASK \[flags\]\n", text)
    assert "Cartpole-Swingup" in text


@pytest.mark.parametrize("command", ["train", "play", "evaluate", "compare"])
def test_the_usage_of_a_command_has_the_tasks_and_its_flags_in_80_lines_and_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main.shoal([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 80
    flags = {line.split()[0].rstrip(",") for line in lines if line.startswith("  --")}
    assert {"--gpu-ids", "--log-root"} <= flags
    if command == "train":
        assert {"--num-envs", "--max-iterations", "--save-interval", "--resume", "--video", "--config"} <= flags


@pytest.mark.parametrize("task", ["Quadruped-Velocity-Rough", "G1-Velocity-Rough", "Hand-Reorient-Cube"])
def test_every_term_says_what_it_is(task: str) -> None:
    flags = flags_of(registered()[task].defaults())
    described = {flag.section for flag in flags if flag.description}
    terms = {
        flag.section for flag in flags if re.match(r"--env\.(rewards|observations|events|terminations)\.", flag.name)
    }
    assert terms <= described
    assert [flag.name for flag in flags if not flag.description and not flag.name.startswith("--env.")] == []


@pytest.mark.parametrize("words", [("train",), ("train", "--help"), ("tasks",)])
def test_what_can_be_trained_is_listed(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main.shoal(words)
    text = capsys.readouterr().out
    assert "Cartpole-Swingup" in text
    assert "Cartpole-Balance" in text


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main.shoal(["--version"])
    assert capsys.readouterr().out == f"shoal {__version__}\n"
