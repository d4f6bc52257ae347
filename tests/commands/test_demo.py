"""The policies that ship: they fit their tasks, earn what the manifest says, and `demo` and `play` show them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.documented import ROOT, script
from support.videos import draws, frames_of

from shoal.cli.parse import parse
from shoal.commands import demo
from shoal.commands.play import play
from shoal.config import DemoConfig, PlayConfig
from shoal.errors import UsageError
from shoal.tasks import registry
from shoal.tasks.registry import POLICIES, TaskSpec

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST: dict[str, dict[str, Any]] = json.loads((POLICIES / "manifest.json").read_text(encoding="utf-8"))
MAKING = script(ROOT / "docs" / "make_policies.py")
TASK = "Cartpole-Swingup"
"""A policy whose episodes take a second."""
each_policy = pytest.mark.parametrize("name", MANIFEST)


def needs_its_robot(name: str) -> None:
    """Skip the test where the package of a policy's robot is not installed."""
    try:
        demo.offered(DemoConfig(task=name))
    except UsageError as error:
        pytest.skip(str(error))


def test_the_manifest_names_the_files_that_ship_and_they_are_small() -> None:
    sizes = {file.stem: file.stat().st_size for file in POLICIES.glob("*.pt")}
    assert sizes.keys() == MANIFEST.keys()
    assert [name for name, size in sizes.items() if size > 400_000] == []
    assert sum(sizes.values()) < 3_000_000
    assert [name for name in MANIFEST if name not in MAKING.RECIPES] == []


@each_policy
def test_a_policy_fits_the_observations_actions_and_gains_of_its_task(name: str) -> None:
    needs_its_robot(name)
    entry = MANIFEST[name]
    now = MAKING.interface(entry["task"], entry["env"])
    assert now == entry["interface"], f"The task has changed: run python docs/make_policies.py {name}"


def test_the_interface_shows_other_gains_scales_and_columns() -> None:
    task = "Quadruped-Velocity-Flat"
    said = MANIFEST[task]["interface"]
    policy = {"joint_vel": {"scale": 0.1}, "joint_pos": {"history_length": 2}}
    changes = {"stiffness": {".*": 33.0}, "actions": {"joint_pos": {"scale": 0.1}}, "observations": {"policy": policy}}
    now = MAKING.interface(task, changes)
    assert {key for key in said if now[key] != said[key]} == {"columns", "observations", "actions", "joint_stiffness"}


def test_the_swing_up_earns_what_its_evaluation_says() -> None:
    (playing, *_) = demo.offered(DemoConfig(task=TASK))[TASK]
    returns = [each["return"] for each in play(replace(playing, episodes=20, seed=3)).episodes]
    said = MANIFEST[TASK]["evaluation"]["return"]
    # A mean of 20 episodes: four of its standard errors.
    assert sum(returns) / 20 == pytest.approx(said["mean"], abs=4 * said["std"] / 20**0.5)


@pytest.mark.soak
@pytest.mark.slow
@each_policy
def test_an_evaluation_repeats_the_numbers_of_the_manifest(name: str) -> None:
    needs_its_robot(name)
    said, now = MANIFEST[name]["evaluation"], MAKING.evaluate(POLICIES / f"{name}.pt", MAKING.RECIPES[name])
    for kind in said.keys() - {"command"}:
        key = "mean" if kind == "return" else "rate"
        assert said[kind]["low"] <= now[kind][key] <= said[kind]["high"]


@pytest.mark.soak
@pytest.mark.slow
def test_the_swing_up_made_again_earns_as_much(tmp_path: Path) -> None:
    made = MAKING.make(TASK, MAKING.RECIPES[TASK], tmp_path, tmp_path / "logs")
    said = MANIFEST[TASK]
    assert {name: made[name] for name in ("command", "steps", "interface")} == {
        name: said[name] for name in ("command", "steps", "interface")
    }
    # Trainings differ between kinds of processors: the intervals overlap, or the new one is better.
    assert made["evaluation"]["return"]["high"] >= said["evaluation"]["return"]["low"]


def test_the_demo_offers_all_policies_that_can_run_and_the_one_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(iter(MANIFEST))
    assert next(iter(demo.offered(DemoConfig()))) == first
    assert next(iter(demo.offered(DemoConfig(task=TASK)))) == TASK

    def check(spec: TaskSpec, _: object) -> tuple[str, ...]:
        if spec.name == first:
            raise UsageError("The package is not installed.")
        return ()

    monkeypatch.setattr(TaskSpec, "check_env", check)
    assert TASK in demo.offered(DemoConfig())
    assert first not in demo.offered(DemoConfig())
    with pytest.raises(UsageError, match="not installed"):
        demo.offered(DemoConfig(task=first))


def test_a_policy_that_does_not_ship_is_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=rf"No policy of Hopper-v5 ships with Shoal, only of .*{TASK}"):
        demo.offered(DemoConfig(task="Hopper-v5"))


@pytest.mark.parametrize("command", ["play", "export"])
def test_the_word_shipped_names_a_policy_that_ships(command: str, tmp_path: Path) -> None:
    words = [TASK, "--checkpoint", "shipped", "--log-root", str(tmp_path)]
    assert parse(command, words)[0].checkpoint == str(POLICIES / f"{TASK}.pt")


def test_play_without_a_run_takes_the_shipped_policy_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        (config,) = parse("play", [TASK, "--log-root", str(tmp_path)])
    assert isinstance(config, PlayConfig)
    assert config.checkpoint == str(registry.shipped_policy(TASK))
    assert caplog.messages == [f"{TASK} has no run below {tmp_path}: the policy that ships with Shoal is taken."]
    with pytest.raises(UsageError, match="There is no run with a checkpoint"):
        parse("export", [TASK, "--log-root", str(tmp_path)])


@draws
def test_the_demo_writes_a_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "VIDEO_STEPS", 4)
    shown = demo.record(DemoConfig(task=TASK, record=str(tmp_path / "demo.mp4")))
    pictures, rate = frames_of(tmp_path / "demo.mp4")
    assert (len(pictures), rate, shown.video) == (4, 50, str(tmp_path / "demo.mp4"))
