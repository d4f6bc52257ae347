"""The controller of docs/examples acts as Shoal does, from what an exported policy says of itself."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shoal.config import ExportConfig
from shoal.envs.vec_env import build_vec_env
from shoal.learn.export import exportable_policy, write_policy
from shoal.learn.groups import World
from shoal.learn.learner import build_learner
from shoal.mdp.robots import SHIPPED
from shoal.mdp.terms import Action, Obs
from shoal.tasks.registry import resolve

CONTROLLER = Path(__file__).parents[2] / "docs" / "examples" / "controller.py"
TASK = "Quadruped-Velocity-Flat"
STEPS = 100
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


@pytest.mark.slow
@pytest.mark.parametrize("steps", [False, True], ids=["of itself", "by a clock"])
def test_the_controller_observes_and_acts_as_the_task_does(tmp_path: Path, steps: bool) -> None:
    spec = resolve(TASK)
    usual: Any = spec.env
    # The nominal robot, in a command that stays.
    startup = {name: None for name, event in usual.terms("events").items() if event.mode == "startup"}
    config = usual.undisturbed().change(events=startup)
    if steps:
        config = config.change(**STEPPING)
    speeds = replace(config.observations.policy.joint_vel, scale=0.05, clip=3.0, history_length=3)
    observed = replace(config.observations, policy=replace(config.observations.policy, joint_vel=speeds))
    twist = replace(config.commands.twist, resampling_time=(1e3, 1e3), rel_standing_envs=0.0)
    config = replace(config, engine="mujoco", commands=replace(config.commands, twist=twist), observations=observed)
    export = ExportConfig(task=TASK, env=config, agent=spec.agent)
    env: Any = build_vec_env(spec, export.env, num_envs=1, device="cpu", seed=3)
    learner = build_learner(env, export, World(device="cpu"))
    exported = exportable_policy(learner, env, name=TASK, checkpoint="", iteration=0)
    file, _ = write_policy(exported, tmp_path / "policy.onnx")

    controller = runpy.run_path(str(CONTROLLER))["Controller"](str(file), str(SHIPPED))
    data = controller.data
    data.qpos[:], data.qvel[:] = env.task.qpos.numpy()[0], env.task.qvel.numpy()[0]
    controller.commands["twist"][:] = env.task.command_array.numpy()[0]
    policy, observed = learner.policy(), env.get_observations()
    moved = 0.0
    for step in range(STEPS):
        with torch.inference_mode():
            actions = policy(observed)
        observation, action = controller.step()
        np.testing.assert_allclose(observation, observed["policy"][0], atol=TOLERANCE, err_msg=f"step {step}")
        np.testing.assert_allclose(action, actions[0], atol=TOLERANCE, err_msg=f"step {step}")
        moved = max(moved, float(actions.abs().max()))
        observed, _, done, _ = env.step(actions)
        assert not done.any()
    assert moved > 0.1
