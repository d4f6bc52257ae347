"""The controller of docs/examples acts as Shoal does, from what an exported policy says of itself."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from shoal.cli.parse import parse
from shoal.commands.export import export
from shoal.config import ExportConfig
from shoal.envs.vec_env import build_vec_env
from shoal.learn.export import exportable_policy, write_policy
from shoal.learn.groups import World
from shoal.learn.learner import build_learner
from shoal.mdp.robots import SHIPPED
from shoal.mdp.terms import Action, Obs
from shoal.sim.engines.model_files import find_robot, names_of_robots
from shoal.tasks.registry import resolve

CONTROLLER = Path(__file__).parents[2] / "docs" / "examples" / "controller.py"
TASK = "Quadruped-Velocity-Flat"
TOLERANCE = 1e-4
"""Shoal's kernels compute in 32 bits, the controller in 64: differences of 1e-7 grow where feet touch the ground."""


STEPPING: dict[str, Any] = {
    "actions": {
        "joint_pos": Action(
            "gait_joint_position",
            actuators=".*",
            scale=0.3,
            swing={".*hip": 0.0, ".*thigh": 0.1, ".*calf": -0.2},
            shift={"(FL|RR).*": 0.0, "(FR|RL).*": 0.5},
            period=0.4,
            command="twist",
        )
    },
    "observations": {group: {"phase": Obs("gait_phase", period=0.4)} for group in ("policy", "critic")},
}
"""Diagonal legs step together."""


CASES = {
    "of itself": (TASK, {}, "", 100),
    "by a clock": (TASK, STEPPING, "", 100),
    "of a file without actuators": ("G1-Velocity-Flat", {"commands": {"twist": {"heading_command": False}}}, "g1", 40),
}
"""Task, changes of it, robot, and steps, of which it survives more."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_controller_observes_and_acts_as_the_task_does(tmp_path: Path, case: str) -> None:
    name, changes, robot, steps = CASES[case]
    if robot and robot not in names_of_robots():
        pytest.skip("mjlab is not installed: make robots")
    spec = resolve(name)
    usual: Any = spec.env
    # The nominal robot, in a command that stays.
    startup = {name: None for name, event in usual.terms("events").items() if event.mode == "startup"}
    config = usual.undisturbed().change(events=startup).change(**changes)
    speeds = replace(config.observations.policy.joint_vel, scale=0.05, clip=3.0, history_length=3)
    observed = replace(config.observations, policy=replace(config.observations.policy, joint_vel=speeds))
    twist = replace(config.commands.twist, resampling_time=(1e3, 1e3), rel_standing_envs=0.0)
    config = replace(config, engine="mujoco", commands=replace(config.commands, twist=twist), observations=observed)
    export_config = ExportConfig(task=name, env=config, agent=spec.agent)
    env: Any = build_vec_env(spec, export_config.env, num_envs=1, device="cpu", seed=3)
    learner = build_learner(env, export_config, World(device="cpu"))
    exported = exportable_policy(learner, env, name=name, checkpoint="", iteration=0)
    file, _ = write_policy(exported, tmp_path / "policy.onnx")

    controller = runpy.run_path(str(CONTROLLER))["Controller"](str(file), str(find_robot(robot) if robot else SHIPPED))
    data = controller.data
    data.qpos[:], data.qvel[:] = env.task.qpos.numpy()[0], env.task.qvel.numpy()[0]
    controller.commands["twist"][:] = env.task.command_array.numpy()[0]
    policy, observed = learner.policy(), env.get_observations()
    moved = 0.0
    for step in range(steps):
        with torch.inference_mode():
            actions = policy(observed)
        observation, action = controller.step()
        np.testing.assert_allclose(observation, observed["policy"][0], atol=TOLERANCE, err_msg=f"step {step}")
        np.testing.assert_allclose(action, actions[0], atol=TOLERANCE, err_msg=f"step {step}")
        moved = max(moved, float(actions.abs().max()))
        observed, _, done, _ = env.step(actions)
        assert not done.any()
    assert moved > 0.1


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """The controller with the policy that ships, from the robot's keyframe, commanded forward with 0.5 m/s."""
    out = tmp_path_factory.mktemp("shipped") / "policy.onnx"
    export(parse("export", [TASK, "--checkpoint", "shipped", "--out", str(out)])[0])
    make = runpy.run_path(str(CONTROLLER))["Controller"]

    def build(**changes: float) -> Any:
        controller = make(str(out), str(SHIPPED), **changes)
        controller.commands["twist"][0] = 0.5
        return controller

    return build


@pytest.mark.parametrize(
    "changes", [{"friction": 0.5}, {"friction": 1.5}, {"mass": 0.9}, {"mass": 1.1}, {"delay": 0.02}], ids=str
)
def test_the_shipped_policy_walks_as_far_on_another_robot_than_that_of_its_training(
    walker: Callable[..., Any], changes: dict[str, float]
) -> None:
    controller = walker(**changes)
    for _ in range(200):
        controller.step()
    x, y, z = controller.data.qpos[:3]
    assert np.hypot(x, y) == pytest.approx(0.5 * 4, rel=0.15)  # It speeds up, and may turn a little.
    assert z > 0.25


def test_the_controller_changes_friction_and_masses_and_delays_actions(walker: Callable[..., Any]) -> None:
    usual, changed = walker(), walker(friction=0.3, mass=1.1, delay=0.02)
    before, after = usual.data.model, changed.data.model
    assert (after.geom_friction[:, 0] == 0.3).all()
    np.testing.assert_allclose(after.geom_friction[:, 1:], before.geom_friction[:, 1:])
    assert mujoco.mj_getTotalmass(after) == pytest.approx(1.1 * mujoco.mj_getTotalmass(before))
    np.testing.assert_allclose(after.body_inertia, 1.1 * before.body_inertia)
    np.testing.assert_allclose(after.body_subtreemass, 1.1 * before.body_subtreemass)
    first = changed.control(changed.step()[1])
    np.testing.assert_array_equal(changed.data.ctrl, changed.control(np.zeros(12)))  # A period of 20 ms later.
    changed.step()
    np.testing.assert_array_equal(changed.data.ctrl, first)
    assert np.abs(first - changed.control(np.zeros(12))).max() > 0.0
