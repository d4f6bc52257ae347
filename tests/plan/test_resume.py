"""What a run can be continued with, decided before anything is started."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
import yaml
from support.saved import write_checkpoint
from support.stories import plan_of

from shoal.cli.parse import parse
from shoal.config.learners import LEARNERS
from shoal.config.plain import to_plain
from shoal.errors import UsageError
from shoal.mdp.robots import SHIPPED
from shoal.plan.changes import flatten
from shoal.plan.resume import _OF_NETWORKS
from shoal.plan.rundir import RunDir
from shoal.run_record import make_run_dir, record_launch

if TYPE_CHECKING:
    from pathlib import Path

CARTPOLE = "Cartpole-Swingup"
DOG = "Quadruped-Velocity-Flat"
RND = "--agent.algorithm.rnd"


def run_of(log_root: Path, *words: str) -> RunDir:
    """Return a run with a checkpoint."""
    plan = plan_of(log_root, *words)
    run = make_run_dir(plan)
    record_launch(run, plan)
    write_checkpoint(run, 5, {}, 1)
    return run


@pytest.mark.parametrize(
    ("trained", "flags", "there"),
    [
        ("", "--agent.actor.hidden-dims 32", "--agent.actor.hidden-dims 64 64"),
        ("", "--agent.critic.no-obs-normalization", "--agent.critic.obs-normalization"),
        ("", "--agent.actor.distribution.std-type log", None),
        (f"{RND}.enabled", f"{RND}.num-outputs 4", f"{RND}.num-outputs 1"),
        ("", f"{RND}.enabled {RND}.num-outputs 4", None),
        ("", "--agent.actor.distribution.init-std 0.5 --agent.algorithm.learning-rate 0.1", None),
        ("--learner fast_sac", "--agent.num-atoms 8", "--agent.num-atoms 101"),
        ("--learner grpo", "--agent.actor.hidden-dims 8", "--agent.actor.hidden-dims 64 64"),
    ],
)
@pytest.mark.parametrize("start", ["--resume", "--checkpoint"])
def test_networks_are_compared_with_those_of_the_run(
    trained: str, flags: str, there: str | None, start: str, log_root: Path
) -> None:
    run = run_of(log_root, CARTPOLE, *trained.split())
    words = (CARTPOLE, start, str(run.path), *trained.split(), *flags.split())
    if there is None:  # Either is a default, of which the configuration does not tell the value, or fits.
        plan_of(log_root, *words)
        return
    with pytest.raises(UsageError) as caught:
        plan_of(log_root, *words)
    assert str(caught.value).startswith(f"{flags.partition(' --')[0]} was asked for, but the networks of the run ")
    assert f" were trained with {there}, and their weights fit no others" in str(caught.value)


def test_a_policy_is_played_with_the_networks_of_its_run(log_root: Path) -> None:
    run = run_of(log_root, CARTPOLE)
    words = [CARTPOLE, "--checkpoint", str(run.checkpoint_dir(5)), "--log-root", str(log_root)]
    parse("play", words)[0]
    with pytest.raises(UsageError, match="hidden-dims 9 was asked for, but the networks of the run"):
        parse("play", [*words, "--agent.actor.hidden-dims", "9"])[0]


def test_what_a_run_says_of_its_networks_may_be_anything(log_root: Path) -> None:
    run = run_of(log_root, CARTPOLE)
    own = yaml.safe_load(run.train_yaml.read_text(encoding="utf-8"))
    config = log_root / "config.yaml"
    config.write_text(yaml.safe_dump(own), encoding="utf-8")
    words = ("--config", str(config), "--resume", str(run.path))
    for agent in ("a word", ["a", "list"], {"actor": 5}, {"unknown": 1}, None):
        run.train_yaml.write_text(yaml.safe_dump(own | {"agent": agent}), encoding="utf-8")
        plan_of(log_root, *words)
    run.train_yaml.unlink()
    plan_of(log_root, *words)


def test_every_field_of_networks_is_one_of_a_learner() -> None:
    names = {name.rpartition(".")[2] for spec in LEARNERS.values() for name in flatten(to_plain(spec.config))}
    assert names >= _OF_NETWORKS


MESH = "v 0 0 0\nv .1 0 0\nv 0 .1 0\nv 0 0 .1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"


def write_robot(directory: Path) -> Path:
    """Write a robot of several files; return the first."""
    (directory / "dog").mkdir(parents=True)
    (directory / "meshes").mkdir()
    (directory / "meshes" / "horn.obj").write_text(MESH, encoding="utf-8")
    horn = '<mujoco><asset><mesh file="horn.obj"/></asset></mujoco>'
    (directory / "dog" / "horn.xml").write_text(horn, encoding="utf-8")
    more = '<compiler meshdir="../meshes"/><include file="horn.xml"/><worldbody>'
    text = SHIPPED.read_text(encoding="utf-8").replace("<worldbody>", more, 1)
    (directory / "dog" / "dog.xml").write_text(text, encoding="utf-8")
    return directory / "dog" / "dog.xml"


@pytest.mark.parametrize("file", ["dog/dog.xml", "dog/horn.xml", "meshes/horn.obj"])
def test_a_robot_is_compared_with_all_files_of_the_runs_own(file: str, log_root: Path, tmp_path: Path) -> None:
    one, other = write_robot(tmp_path / "one"), write_robot(tmp_path / "other")
    run = run_of(log_root, DOG, "--env.robot", str(one))
    words = (DOG, "--resume", str(run.path), "--env.robot", str(other))
    assert plan_of(log_root, *words).continued == run  # An equal one elsewhere.
    with (tmp_path / "other" / file).open("a", encoding="utf-8") as changed:
        changed.write("\n")
    with pytest.raises(UsageError) as caught:
        plan_of(log_root, *words)
    message = str(caught.value)
    assert f"from which {tmp_path / 'other' / file} differs: leave the flag out, or start a new run: train " in message
    new = shlex.split(message.rpartition("start a new run: train ")[2])
    plan = plan_of(log_root, *new)
    assert plan.start is not None
    assert (plan.continued, plan.start.mode) == (None, "weights")
    assert plan_of(log_root, DOG, "--resume", str(run.path)).continued == run
    with (run.models_dir / "robot" / file.replace("dog.xml", "model.xml").rpartition("/")[2]).open(
        "a", encoding="utf-8"
    ) as changed:
        changed.write("\n")
    assert plan_of(log_root, DOG, "--resume", str(run.path)).continued == run  # Its checkpoint does not tell.


def test_a_run_of_the_default_robot_takes_no_other_and_the_other_way_round(log_root: Path, tmp_path: Path) -> None:
    robot = str(write_robot(tmp_path))
    run = run_of(log_root, DOG)
    with pytest.raises(UsageError, match=f"--env.robot {robot} was asked for, but the run .* is of the default: leave"):
        plan_of(log_root, DOG, "--resume", str(run.path), "--env.robot", robot)
    run = run_of(log_root, DOG, "--env.robot", robot)
    with pytest.raises(UsageError, match=r"--env.robot '' was asked for, but the run .* is of .*/model.xml: leave"):
        plan_of(log_root, DOG, "--resume", str(run.path), "--env.robot", "")
