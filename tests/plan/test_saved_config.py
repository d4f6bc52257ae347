"""Reading the configuration of a run. `cli/test_parse` tests what the commands make of it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, get_type_hints

import pytest
import yaml
from support.bombs import YAML
from support.fake_devices import seen

from shoal.cli.parse import parse_train
from shoal.config import MujocoConfig, TrainConfig
from shoal.config.checks import Source, foreign_code, sources_of
from shoal.config.learners import LEARNERS
from shoal.config.plain import to_plain
from shoal.errors import UsageError
from shoal.plan.changes import config_of_run, nested
from shoal.plan.checkpoints import sha256
from shoal.plan.rundir import RunDir
from shoal.plan.training import plan_training
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from _typeshed import DataclassInstance

LEARNER = """
from pathlib import Path
from shoal.config import AgentConfig

Path(__file__).with_suffix(".imported").touch()

class Learner:
    config = AgentConfig()
"""


def test_a_learner_of_another_s_run_is_not_imported_before_it_is_trusted(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "theirs" / "2026-01-01_00-00-00")
    run.params_dir.mkdir(parents=True)
    file = tmp_path / "evil.py"
    file.write_text(LEARNER, encoding="utf-8")
    run.train_yaml.write_text(f"task: Cartpole-Swingup\nlearner: {file}:Learner\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"would import '.*evil.py:Learner' \(learner\).* pass --trust"):
        config_of_run("Cartpole-Swingup", None, run, str(tmp_path / "mine"), trust="--trust")
    assert not file.with_suffix(".imported").exists()
    config_of_run("Cartpole-Swingup", None, run, str(tmp_path / "mine"), trust=None)
    assert file.with_suffix(".imported").exists()


def test_a_run_of_before_keeps_the_limit_of_diverged_environments(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "2026-01-01_00-00-00")
    run.params_dir.mkdir(parents=True)
    run.train_yaml.write_text("task: Cartpole-Swingup-Mujoco\nenv: {lost_limit: 0.25}\n", encoding="utf-8")
    env = config_of_run("Cartpole-Swingup-Mujoco", None, run, str(tmp_path), trust="--trust").env
    assert isinstance(env, MujocoConfig)
    assert env.diverged_limit == 0.25


def test_a_run_of_before_is_read_without_the_fields_that_have_gone(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "2026-01-01_00-00-00")
    run.params_dir.mkdir(parents=True)
    run.train_yaml.write_text(
        "task: Cartpole-Swingup\nkeep_every: null\nvideo_size: [1280, 720]\nseed: 7\n", encoding="utf-8"
    )
    assert config_of_run("Cartpole-Swingup", None, run, str(tmp_path), trust="--trust").seed == 7
    with pytest.raises(UsageError, match=r"keep_every is given, but TrainConfig has no such field"):
        parse_train(["Cartpole-Swingup", "--config", str(run.train_yaml)])


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", YAML)
def test_a_configuration_that_multiplies_or_nests_is_refused(kind: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "2026-01-01_00-00-00")
    run.params_dir.mkdir(parents=True)
    run.train_yaml.write_text(YAML[kind], encoding="utf-8")
    for trust in (None, "--trust"):
        with pytest.raises(UsageError, match=r"^--config .*train\.yaml (cannot be read \(|holds no named values)"):
            config_of_run("Cartpole-Swingup", None, run, str(tmp_path / "mine"), trust=trust)


# Which files may supply which fields


def without_a_source(config: type[DataclassInstance]) -> set[str]:
    return {each.name for each in fields(config)} - sources_of(config).keys()


def test_each_field_of_a_training_says_which_files_may_supply_it() -> None:
    @dataclass(frozen=True, kw_only=True)
    class WithAnother(TrainConfig):
        another: str = ""

    assert not without_a_source(TrainConfig)
    assert without_a_source(WithAnother) == {"another"}


def strings_of(config: DataclassInstance, path: str = "") -> Iterator[str]:
    """Yield the dotted names of all fields that may hold any string, and one entry of those that hold several."""
    for name, kind in get_type_hints(type(config)).items():
        value, where = getattr(config, name), f"{path}{name}"
        if is_dataclass(value) and not isinstance(value, type):
            yield from strings_of(value, f"{where}.")
        elif "Literal" not in str(kind) and any(word in str(kind) for word in ("str", "Any")):
            yield f"{where}.key" if "dict" in str(kind) else where


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("task", ["Cartpole-Swingup", "Humanoid-Tracking-Flat", "Hand-Reorient-Cube"])
def test_a_name_of_code_is_noticed_in_each_string_of_a_configuration(task: str, learner: str) -> None:
    own = registry.resolve(task).defaults(task, learner)
    names = [*strings_of(own.env, "env."), *strings_of(own.agent, "agent."), "task", "learner", "new.section"]
    assert len(names) > 5
    for name in names:
        assert foreign_code([to_plain(own)], [nested({name: "evil:Name"})]) == (name, "evil:Name")


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A run in a folder of another user, whose files ask for other nodes, and start a program to reach them."""
    run = tmp_path / "theirs" / "logs" / "Cartpole-Swingup" / "2026-01-01_00-00-00"
    checkpoint = run / "checkpoints" / "000100"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.pt").touch()
    empty = {"bytes": 0, "sha256": sha256(checkpoint / "model.pt")}
    (checkpoint / "manifest.json").write_text(json.dumps({"files": {"model.pt": empty}}), encoding="utf-8")
    ran = tmp_path / "ran"
    (tmp_path / "theirs" / "ssh").write_text(
        f'Match exec "touch {ran}.match"\n  User x\nHost *\n  ProxyCommand touch {ran}.proxy\n', encoding="utf-8"
    )
    (run / "params").mkdir()
    for name, ssh_config in (("train", tmp_path / "theirs" / "ssh"), ("relative", "ssh")):
        asked = {"task": "Cartpole-Swingup", "seed": 7, "log_root": str(tmp_path / "chosen"), "logger": "wandb"}
        asked |= {"hosts": ["x"], "ssh_config": str(ssh_config), "torchrunx_log_dir": str(tmp_path / "chosen")}
        (run / "params" / f"{name}.yaml").write_text(yaml.safe_dump(asked), encoding="utf-8")
    return run


def test_a_run_s_own_file_does_not_decide_where_anything_is_started_or_written(unpacked: Path) -> None:
    config = parse_train(["Cartpole-Swingup", "--resume", str(unpacked)])
    assert config.seed == 7
    default = registry.resolve("Cartpole-Swingup").defaults("Cartpole-Swingup", None)
    for name, source in sources_of(TrainConfig).items():
        if source is not Source.RUN and name != "resume":
            assert getattr(config, name) == getattr(default, name), name


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("train", "Cartpole-Swingup", "--resume", "{run}", "--dry-run"), 0),
        (("train", "Cartpole-Swingup", "--resume", "{run}", "--gpu-ids", "None"), 2),  # Its checkpoint is empty.
        (("train", "--config", "{run}/params/relative.yaml", "--dry-run"), 2),
        (("train", "--config", "{run}/params/train.yaml"), 2),
        (("play", "Cartpole-Swingup", "--checkpoint", "{run}"), 2),
    ],
)
def test_no_program_that_a_run_or_its_files_name_is_started(unpacked: Path, words: tuple[str, ...], code: int) -> None:
    folder = unpacked.parents[2]  # The user has just unpacked it, and types the command there.
    command = [sys.executable, "-m", "shoal", *(word.format(run=unpacked) for word in words)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(folder.parent.glob("ran*"))
    assert not (folder.parent / "chosen").exists()
    if "--config" in words:
        assert ended.stderr.endswith("hosts is given, but no file supplies it: pass --hosts, and remove it there.\n")


def test_a_dry_run_with_other_machines_names_the_command_that_asks_them() -> None:
    with pytest.raises(UsageError, match=r"--dry-run connects to no node.* run `shoal doctor --hosts a b`"):
        parse_train(["Cartpole-Swingup", "--hosts", "a", "b", "--dry-run"])


def test_a_continued_run_that_was_logged_to_wandb_says_that_it_goes_on_without(unpacked: Path) -> None:
    (unpacked / "wandb_run_id").write_text("abc\n", encoding="utf-8")
    plan = plan_training(parse_train(["Cartpole-Swingup", "--resume", str(unpacked)]), {}, seen(0))
    assert "pass --logger wandb to go on there" in " ".join(plan.notes)
