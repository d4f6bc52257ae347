"""Noise, delay and history of images, of a cart that drives at constant speed towards two walls: worked out by hand."""

# ruff: noqa: ARG003, ARG001
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest
import torch
import warp as wp

from shoal import mdp
from shoal.envs.vec_env import WarpVecEnv

MODEL = """<mujoco><worldbody>
  <geom type="box" pos="3 4 0" size="0.5 4 4"/><geom type="box" pos="4 -4 0" size="0.5 4 4"/>
  <body name="cart"><joint name="drive" type="slide" axis="1 0 0"/><geom size="0.1" mass="1" group="3" contype="0"/>
  </body></worldbody><actuator><motor name="drive" joint="drive"/></actuator></mujoco>"""
WIDTH, HEIGHT, FAR, SPEED, STEP, LENGTH = 8, 6, 4.0, 2.0, 0.01, 7
"""Pixels, of which the left half sees a wall at 2.5 m and the right half one at 3.5 m; [m], [m/s], [s], steps."""


@wp.func
def near_and_far(state: Any, env: int, i: int, image: mdp.Image) -> wp.vec2:
    return wp.vec2(image[env, i] / 4.0, 1.0 - image[env, i] / 4.0)


def depth(**more: Any) -> Any:
    return mdp.Obs("camera_depth", sensor_name="eye", cutoff_distance=FAR, **more)


CONFIG = mdp.task_config(
    mdp.TermsConfig,
    engine="mujoco",
    decimation=5,
    episode_length_s=LENGTH * STEP,
    actions={"drive": mdp.Action("joint_effort", actuators="drive", scale=1.0)},
    sensors={
        "eye": mdp.Camera(parent_body="cart", quat=(0.5, 0.5, -0.5, -0.5), fovy=60, width=WIDTH, height=HEIGHT),
    },
    observations={"image": {"now": depth()}},
    events={
        "start": mdp.Event("reset_joints_by_offset", "reset", joints=".*", position=(0.0, 0.0), velocity=(SPEED, SPEED))
    },
    rewards={"alive": mdp.Reward("is_alive", weight=1.0)},
    fresh_observations=True,
)
ENVS = 3


class Driving(mdp.TermsTask[mdp.TermsConfig]):
    """A cart with a camera."""

    config = CONFIG

    @classmethod
    def build_spec(cls, config: mdp.TermsConfig) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(MODEL)


def driven(period: int, steps: int, **terms: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return ages of environments and the images of some terms after each step. Episodes begin in different steps."""
    slow = {"eye": {"update_period": period * STEP}}
    config = CONFIG.change(sensors=slow, observations={"image": {"now": None, **terms}})
    task: Any = Driving(config, num_envs=ENVS, device="cpu", seed=0)
    env, found = WarpVecEnv(task), []
    env.reset(seed=1)
    task.episode_length.assign(np.arange(ENVS) * 2)
    for _ in range(steps):
        images = env.step(torch.zeros(ENVS, 1))[0]["image"].numpy().copy()
        found.append((task.age.numpy().copy(), images))
    return found


def image(age: int, period: int) -> np.ndarray:
    """Return what an environment sees some steps after its episode began, of the walls' distances. (HEIGHT, WIDTH)."""
    drawn_at = max(age, 0) // max(period, 1) * max(period, 1)
    return (np.repeat([2.5, 3.5], WIDTH // 2) - drawn_at * STEP * SPEED) / FAR * np.ones((HEIGHT, 1))


@pytest.mark.parametrize("period", [0, 3])
def test_a_delayed_image_is_that_of_some_steps_ago_and_a_stack_has_the_oldest_first(period: int) -> None:
    ages, lags = set[int](), set[int]()
    for age_of, images in driven(
        period,
        2 * LENGTH,
        late=depth(delay_min_lag=2, delay_max_lag=2),
        stack=depth(history_length=3),
        both=depth(delay_min_lag=1, delay_max_lag=1, history_length=2),
        pair=mdp.Obs(near_and_far, image="eye", history_length=2),
        drawn=depth(delay_max_lag=2),
    ):
        for age, seen in zip(age_of.tolist(), images, strict=True):
            before, now = image(age - 1, period), image(age, period)
            late = image(age - 2, period)
            wanted = [late, late, before, now, late, before, before, 1 - before, now, 1 - now]
            np.testing.assert_allclose(seen[:-1], wanted, rtol=0, atol=1e-5)
            # All pixels of an image have the lag that is drawn for it.
            found = [lag for lag in range(3) if np.allclose(seen[-1], image(age - lag, period), rtol=0, atol=1e-5)]
            assert found
            ages.add(age)
            lags |= {*found} if len(found) == 1 else set()
    assert ages == set(range(LENGTH))
    assert lags >= {0, 2}


@pytest.mark.parametrize("period", [0, 3])
def test_noise_of_an_image_is_drawn_for_each_pixel_and_step_and_a_bias_for_each_pixel_and_episode(period: int) -> None:
    errors: dict[str, list[np.ndarray]] = {"normal": [], "even": [], "factor": []}
    biases: dict[tuple[int, int], list[np.ndarray]] = {}
    episode = np.zeros(ENVS, dtype=int)
    for age_of, images in driven(
        period,
        4 * LENGTH,
        normal=depth(noise=mdp.Gaussian(0.05, mean=0.02)),
        even=depth(noise=0.1),
        factor=depth(noise=mdp.Uniform(0.9, 1.3, operation="scale")),
        biased=depth(bias=0.1),
    ):
        episode += age_of == 0
        for env, (age, seen) in enumerate(zip(age_of.tolist(), images, strict=True)):
            truth = image(age, period)
            for name, error in zip(errors, (seen[0] - truth, seen[1] - truth, seen[2] / truth), strict=True):
                errors[name].append(error.ravel())
            biases.setdefault((env, int(episode[env])), []).append((seen[3] - truth).ravel())
    normal, even, factor = map(np.array, errors.values())
    # 4032 numbers: five standard errors of a mean are 0.08 standard deviations, and of a standard deviation 0.06.
    for found, mean, std in ((normal, 0.02, 0.05), (even, 0.0, 0.2 / 12**0.5), (factor, 1.1, 0.4 / 12**0.5)):
        assert found.size == 4032
        assert abs(found.mean() - mean) < 0.08 * std
        assert found.std() == pytest.approx(std, rel=0.06)
        assert abs(np.corrcoef(found)[np.triu_indices(len(found), 1)]).max() < 6.0 / found.shape[1] ** 0.5 / 1.2
        assert abs(np.corrcoef(found.T)[np.triu_indices(found.shape[1], 1)]).max() < 6.0 / len(found) ** 0.5 / 1.2
    standard = np.sort((normal.ravel() - 0.02) / 0.05)
    shares = np.searchsorted(standard, [-2.0, -1.0, 0.0, 1.0, 2.0]) / standard.size
    np.testing.assert_allclose(shares, [0.0228, 0.1587, 0.5, 0.8413, 0.9772], atol=0.03)
    assert np.abs(even).max() <= 0.1 + 1e-5
    assert 0.9 - 1e-5 <= factor.min() <= factor.max() <= 1.3 + 1e-5
    drawn = list[np.ndarray]()
    for seen in biases.values():
        np.testing.assert_allclose(seen, np.broadcast_to(seen[0], np.shape(seen)), rtol=0, atol=1e-5)
        drawn.append(seen[0])
    assert len(drawn) > 4 * ENVS
    assert np.std(drawn) == pytest.approx(0.2 / 12**0.5, rel=0.2)
    assert len(np.unique(np.round(drawn, 5))) > 0.95 * np.size(drawn)
