"""Robots that start in the mirror image of the states of others, and act in the mirror."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from shoal.envs.vec_env import WarpVecEnv
from shoal.mdp.symmetry import mirror, mirrored_joints


def with_mirror_images(env: WarpVecEnv, observations: TensorDict) -> TensorDict:
    both, _ = mirror(env, observations, None)
    assert both is not None
    return both


def check_motion_in_the_mirror(
    task: Any, side: str, *, period: float = 0.0, size: float = 0.5, tolerance: float = 2e-3
) -> None:
    """Put half of the environments in the mirror image of the others, and let all act; they must observe alike.

    `side` matches the part of a name that says left or right, `period` is that of a clock [s], `size` that of actions.
    """
    env, half = WarpVecEnv(task), task.num_envs // 2
    torch.manual_seed(0)
    for _ in range(12):
        env.step(size * torch.randn(task.num_envs, task.num_actions))
    names, partners = task.robot.joint_names, mirrored_joints(task.model, task.home())  # In the joints' own order.
    joints = ([names.index(partners[name][0]) for name in names], [partners[name][1] for name in names])
    mirrored: list[tuple[Any, tuple[int, ...], tuple[list[int], list[float]]]] = [
        (task.qpos, (1, -1, 1, 1, -1, 1, -1), joints),  # A quaternion turns about x and z the other way.
        (task.qvel, (1, -1, 1, -1, 1, -1), joints),
        (task.command_array, (1, -1, -1), ([], [])),
        (task.action, (), joints),
    ]
    mirrored += [
        (task.arrays[f"contacts/{contact}/air_time"], (), _limbs(task.binder.columns[contact], side))
        for contact in task.config.terms("contacts")
    ]
    if "commands.twist.memory" in task.arrays:  # A heading, whether it is followed, a velocity, and whether that is.
        mirrored.append((task.arrays["commands.twist.memory"], (-1, 1, 1, -1, 1, 1), ([], [])))
    for array, base, (order, factors) in mirrored:
        values, first = array.numpy().copy().reshape(task.num_envs, -1), len(base)
        values[half:, :first] = values[:half, :first] * base
        values[half:, first:] = values[:half, first:][:, order] * factors
        array.assign(values.reshape(array.numpy().shape))
    half_a_period = np.repeat([0, round(period / 2 / task.step_dt)], half)
    task.age.assign(task.age.numpy() + half_a_period.astype(np.int32))
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    for _ in range(3):
        _, both = mirror(env, None, size * torch.randn(half, task.num_actions))
        assert both is not None
        observations, _, dones, _ = env.step(both)
        assert not dones.any()
        own = TensorDict({name: group[:half] for name, group in observations.items()}, batch_size=[half])
        expected = with_mirror_images(env, own)
        for name in ("policy", "critic"):
            torch.testing.assert_close(observations[name], expected[name], atol=tolerance, rtol=0.0)


def _limbs(names: tuple[str, ...], side: str) -> tuple[list[int], list[float]]:
    """Return the number of each body's or geom's mirror image, by its name, and 1."""
    others = {"R": "L", "L": "R", "left": "right", "right": "left"}
    partners = [re.sub(side, lambda found: others[found[0]], name) for name in names]
    return [names.index(partner) for partner in partners], [1.0] * len(names)
