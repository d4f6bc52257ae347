"""What the launching process writes before and after a launch."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from support.saved import write_checkpoint
from support.stories import plan_of

from shoal.cli.parse import parse, parse_train
from shoal.errors import UsageError
from shoal.learn.run_json import record_end, write_launch
from shoal.mdp.config import RobotConfig
from shoal.mdp.robots import SHIPPED
from shoal.plan.rundir import RunDir
from shoal.run_record import make_log_dir, make_run_dir, record_launch
from shoal.tasks import registry
from shoal.tasks.quadruped.task import FlatVelocity

if TYPE_CHECKING:
    from pathlib import Path

TASK = "Cartpole-Swingup"


def launches_in(run: Path) -> list[dict[str, object]]:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))["launches"]


def test_two_run_directories_of_one_second_differ(log_root: Path) -> None:
    plan = plan_of(log_root, TASK, "--run-name", "twin")
    names = [make_run_dir(plan).name for _ in range(3)]
    assert len(set(names)) == 3
    assert all("_twin" in name for name in names)


def test_a_run_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "logs", TASK)
    (tmp_path / "logs").write_text("", encoding="utf-8")  # It came after the plan was made.
    with pytest.raises(UsageError, match=r"cannot be made in .*logs.*\(Not a directory\): pass --log-root"):
        make_run_dir(plan)


def test_a_run_directory_that_cannot_be_written_is_refused(log_root: Path) -> None:
    plan = plan_of(log_root, TASK)
    run = make_run_dir(plan)
    run.params_dir.write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"cannot be written \(params is no directory\)"):
        record_launch(run, plan)


def test_a_run_keeps_its_robot_for_all_that_goes_on_with_it_from_anywhere(
    log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    robots = tmp_path / "robots"
    (robots / "dog").mkdir(parents=True)
    (robots / "meshes").mkdir()
    tetrahedron = "v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 .1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    (robots / "meshes" / "horn.obj").write_text(tetrahedron, encoding="utf-8")
    (robots / "dog" / "horn.xml").write_text(
        '<mujoco><asset><mesh file="horn.obj"/></asset></mujoco>', encoding="utf-8"
    )
    text = SHIPPED.read_text(encoding="utf-8")
    text = text.replace("<worldbody>", '<compiler meshdir="../meshes"/><include file="horn.xml"/><worldbody>', 1)
    (robots / "dog" / "dog.xml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(robots)
    plan = plan_of(log_root, "Quadruped-Velocity-Flat", "--env.robot", "dog/dog.xml")
    run = make_run_dir(plan)
    record_launch(run, plan)
    moved = RunDir(run.path.rename(tmp_path / "elsewhere"))
    shutil.rmtree(robots / "dog")
    monkeypatch.chdir(tmp_path)
    model = moved.checkpoint_dir(1) / "model.pt"
    model.parent.mkdir()
    model.touch()
    played = parse("play", ["Quadruped-Velocity-Flat", "--checkpoint", str(model)])[0].env
    again = parse_train(["--config", str(moved.train_yaml)])
    for env in (played, again.env):
        assert isinstance(env, RobotConfig)
        assert FlatVelocity.build_model(env).mesh("horn").id == 0
    # A training that goes on with it keeps it, and a flag wins over it.
    plan = plan_of(log_root, "--config", str(moved.env_yaml))
    record_launch(moved, replace(plan, continued=moved))
    assert moved.saved_model("robot") == moved.path / "models" / "robot" / "model.xml"
    asked = parse_train(["--config", str(moved.train_yaml), "--env.robot", "cat.xml"]).env
    assert isinstance(asked, RobotConfig)
    assert asked.robot == "cat.xml"


ROOM = """
import mujoco
from shoal import mdp


class Room(mdp.TermsTask):
    config = mdp.task_config(
        mdp.TermsConfig,
        objects={"door": mdp.Object("mjcf", file="door.xml", base="fixed")},
        actions={"push": mdp.Action("joint_effort", actuators="door/.*", scale=1.0)},
        observations={"policy": {"angle": mdp.Obs("joint_pos", joints="door/.*")}},
        rewards={"alive": mdp.Reward("is_alive", weight=1.0)},
    )

    @classmethod
    def build_spec(cls, config):
        return mujoco.MjSpec()
"""
DOOR = """<mujoco><asset><mesh file="leaf.obj"/></asset><worldbody><body name="leaf"><joint name="turn"/>
  <geom type="mesh" mesh="leaf"/></body></worldbody><actuator><motor name="turn" joint="turn"/></actuator></mujoco>"""


def test_a_run_keeps_the_files_of_its_objects(log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "door.xml").write_text(DOOR, encoding="utf-8")
    (tmp_path / "leaf.obj").write_text("v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 .1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n")
    (tmp_path / "room.py").write_text(ROOM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    plan = plan_of(log_root, "room.py:Room")
    run = make_run_dir(plan)
    record_launch(run, plan)
    for file in ("door.xml", "leaf.obj"):
        (tmp_path / file).unlink()
    again = parse_train(["--config", str(run.train_yaml)]).env
    assert again.model_files() == {"objects.door.file": str(run.models_dir / "objects.door.file" / "model.xml")}
    room: Any = registry.resolve("room.py:Room").load_builder()
    model = room.build_model(again)
    assert (model.nmesh, model.joint(0).name) == (1, "door/turn")


def test_rank_files_of_two_launches_in_one_second_do_not_mix(tmp_path: Path) -> None:
    made = [make_log_dir(RunDir(tmp_path / "run"), tmp_path / "files") for _ in range(3)]
    assert len(set(made)) == 3
    assert made[0] is not None
    datetime.fromisoformat(made[0].name)  # torchrunx's name


def test_a_directory_for_rank_files_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"cannot be written to .*files.*set TORCHRUNX_LOG_DIR"):
        make_log_dir(RunDir(tmp_path / "run"), tmp_path / "files")


def test_a_launch_that_has_not_ended_says_so(log_root: Path) -> None:
    plan = plan_of(log_root, TASK)
    run = make_run_dir(plan)
    record_launch(run, plan)
    (launch,) = launches_in(run.path)
    assert launch["ended"] is None
    assert {"command", "started", "host", "pid", "plan", "versions", "git"} <= launch.keys()
    written = launch["versions"]
    assert isinstance(written, dict)
    assert {"python", "torch", "mujoco-warp", "gymnasium"} <= written.keys()


def test_the_record_is_replaced_whole(log_root: Path) -> None:
    plan = plan_of(log_root, TASK)
    run = make_run_dir(plan)
    launch = record_launch(run, plan)
    first = run.run_json.stat().st_ino
    record_end(run, launch, 0, "finished", {0: "0123456789abcdef"})
    assert run.run_json.stat().st_ino != first
    assert not list(run.path.glob("*.unfinished"))


def test_the_end_of_a_launch_that_was_never_written_is_not_that_of_the_one_before(log_root: Path) -> None:
    plan = plan_of(log_root, TASK)
    run = make_run_dir(plan)
    first = record_launch(run, plan)
    write_checkpoint(run, 5, {}, 1)
    before = run.run_json.read_bytes()
    resumed = plan_of(log_root, TASK, "--resume")
    second = record_launch(run, resumed)
    assert second != first
    record_end(run, second, 2, "It does not fit.")
    assert run.run_json.read_bytes() == before
    write_launch(run, resumed.config, second)
    record_end(run, json.loads(json.dumps(second)), 0, "finished")  # As a rank has received it.
    assert [launch["ended"] is not None for launch in launches_in(run.path)] == [False, True]


def test_a_restart_that_is_lost_before_it_has_restored_is_recorded_if_what_it_replaces_was(log_root: Path) -> None:
    plan = plan_of(log_root, TASK)
    run = make_run_dir(plan)
    record_launch(run, plan)
    write_checkpoint(run, 5, {}, 1)
    resumed = plan_of(log_root, TASK, "--resume")
    before = run.run_json.read_bytes()
    failed = [record_launch(run, resumed) | {"started": f"2026-01-01T00:00:0{number}+00:00"} for number in range(2)]
    failed[1]["restart_of"] = failed[0]["started"]
    for launch in failed:
        record_end(run, launch, 75, "Lost rank 1.")
    assert run.run_json.read_bytes() == before

    write_launch(run, resumed.config, failed[0])
    record_end(run, failed[0], 75, "Lost rank 1.")
    record_end(run, failed[1], 75, "Lost rank 0.")
    _, *restarts = json.loads(run.run_json.read_text(encoding="utf-8"))["launches"]
    assert [launch["ended"]["last_line"] for launch in restarts] == ["Lost rank 1.", "Lost rank 0."]
    assert [launch | {"ended": None} for launch in restarts] == failed


def test_no_planted_link_is_written_through(log_root: Path, tmp_path: Path) -> None:
    plan = plan_of(log_root, TASK)
    run = make_run_dir(plan)
    run.params_dir.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("mine", encoding="utf-8")
    names = ("run.unfinished", f"run.{os.getpid()}", "params/env.yaml", f"params/env.{os.getpid()}")
    for name in names:
        (run.path / name).symlink_to(victim)
    record_end(run, record_launch(run, plan), 0, "finished")
    assert victim.read_text(encoding="utf-8") == "mine"
    assert run.env_yaml.is_file()
    assert not run.env_yaml.is_symlink()


@pytest.mark.parametrize(
    "name",
    [
        "params",
        "models",
        "checkpoints",
        "ranks",
        "exports",
        "videos",
        "torchrunx",
        "wandb",
        "wandb_run_id",
        "metrics.jsonl",
    ],
)
def test_a_link_in_a_run_that_goes_on_is_refused_by_name(log_root: Path, tmp_path: Path, name: str) -> None:
    run = make_run_dir(plan_of(log_root, TASK))
    write_checkpoint(run, 5, {}, 1)
    elsewhere = tmp_path / "elsewhere"
    if (run.path / name).exists():
        (run.path / name).rename(elsewhere)
    (run.path / name).symlink_to(elsewhere)
    with pytest.raises(UsageError, match=f"{run.path / name} is a link to {elsewhere}, and what is written there"):
        plan_of(log_root, TASK, "--resume", str(run.path))


def test_why_it_ended_is_not_hidden_by_a_record_that_cannot_be_written(
    log_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(log_root, TASK)
    run = make_run_dir(plan)
    launch = record_launch(run, plan)
    run.run_json.unlink()
    run.run_json.mkdir()  # What a rename cannot replace.
    record_end(run, launch, 1, "Rank 0 failed.")
    assert "does not tell how this launch ended" in caplog.text


def test_what_a_crash_has_left_of_checkpoints_is_swept_when_a_launch_begins(log_root: Path) -> None:
    plan = plan_of(log_root, TASK)
    run = make_run_dir(plan)
    left = (run.unfinished_dir(50), run.checkpoints_dir / ".dropped-000010", run.checkpoint_dir(40))
    for directory in left:
        directory.mkdir(parents=True)
        (directory / "model.pt").write_bytes(b"some of it")
    run.unfinished_dir(60).write_text("a file, where a directory would be made", encoding="utf-8")
    os.mkfifo(run.unfinished_dir(70))
    run.dropped_dir(70).symlink_to(run.checkpoint_dir(40))
    (run.checkpoints_dir / ".of-somebody-else").touch()
    record_launch(run, plan)
    assert sorted(path.name for path in run.checkpoints_dir.iterdir()) == [".of-somebody-else", "000040"]
    assert list(run.checkpoint_dir(40).iterdir())
