"""What is done to observations: noise, biases, limits, delays and histories, against mjlab's own classes."""

# The functions of terms are Warp's language, whose arrays pyright reads as Python's.
# pyright: reportReturnType=false, reportArgumentType=false, reportGeneralTypeIssues=false
# ruff: noqa: ARG001

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
import warp as wp
from support.arm_task import Arm, start_near

from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError
from shoal.mdp.annotations import Joints
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.noise import Gaussian, Uniform
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Done, Event, Obs, ObsGroup, ObsTerm, Reward

NUM_ENVS = 3000


@wp.func
def four(state: Any, env: int, i: int, joints: Joints) -> float:
    """Return 4 for each joint."""
    return 4.0


@wp.func
def age(state: Any, env: int) -> float:
    """Return the age of the episode [steps]."""
    return wp.float32(state.age[env])


@wp.func
def at_age(state: Any, env: int, steps: int) -> bool:
    """Whether the episode has so many steps."""
    return state.age[env] >= steps


def configured(terms: dict[str, ObsTerm], **changes: Any) -> TermsConfig:
    return task_config(
        TermsConfig,
        **{
            "actions": {"targets": Action("joint_position", actuators=".*", scale=0.5)},
            "observations": {"policy": terms},
            "rewards": {"alive": Reward("is_alive", weight=1.0)},
            "events": {"start": Event(start_near, "reset", joints=".*", spread=0.5)},
        }
        | changes,
    )


def observed(terms: dict[str, ObsTerm], steps: int = 1, num_envs: int = NUM_ENVS, **changes: Any) -> np.ndarray:
    """Return what is observed at first, and after each step. Shape (steps + 1, num_envs, columns)."""
    task = Arm(configured(terms, **changes), num_envs=num_envs, device="cpu", seed=3)
    seen = [task.obs["policy"].numpy().copy()]
    for _ in range(steps):
        task.step()
        seen.append(task.obs["policy"].numpy().copy())
    return np.stack(seen)


@pytest.fixture
def mjlabs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return what imports a module of mjlab's utilities, without what its packages import beside."""
    found = find_spec("mjlab")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("mjlab is not installed")
    for name in ("mjlab", "mjlab.utils"):
        package: Any = ModuleType(name)
        package.__path__ = [str(Path(*found.submodule_search_locations, *name.split(".")[1:]))]
        monkeypatch.setitem(sys.modules, name, package)
    torch.manual_seed(1)  # It draws from torch's global state.
    return lambda name: import_module(f"mjlab.utils.{name}")


def noise_of_mjlab(cfg: Any) -> torch.Tensor:
    """Return what mjlab makes of 4 in both columns. Shape (NUM_ENVS, 2)."""
    return cfg.apply(torch.full((NUM_ENVS, 2), 4.0))


@pytest.mark.parametrize("operation", ["add", "scale", "abs"])
def test_noise_has_the_distribution_of_mjlabs_in_each_column(operation: Any, mjlabs: Any) -> None:
    cfgs = mjlabs("noise.noise_cfg")
    by_name = {"should.*": 0.5, "elbow": 2.0}
    seen = observed(
        {
            "a": Obs(four, joints=".*", noise=Gaussian(by_name, mean=(1.0, -1.0), operation=operation)),
            "b": Obs(four, joints=".*", noise=Uniform(-1.0, {"should.*": 0.0, "elbow": 3.0}, operation=operation)),
        }
    )
    gaussian = noise_of_mjlab(cfgs.GaussianNoiseCfg(mean=(1.0, -1.0), std=(0.5, 2.0), operation=operation))
    uniform = noise_of_mjlab(cfgs.UniformNoiseCfg(n_min=(-1.0, -1.0), n_max=(0.0, 3.0), operation=operation))
    theirs = torch.cat([gaussian, uniform], dim=1).numpy()
    quantiles = (0.05, 0.25, 0.5, 0.75, 0.95)
    spread = theirs.std(axis=0)
    for each in seen:
        found, wanted = np.quantile(each, quantiles, axis=0), np.quantile(theirs, quantiles, axis=0)
        assert (np.abs(found - wanted) < 0.15 * spread).all()
    assert (seen[0] != seen[1]).all()
    assert np.abs(np.corrcoef(np.concatenate([*seen], axis=1).T) - np.eye(8)).max() < 0.08


def test_a_bias_is_drawn_for_each_column_and_episode_and_kept_in_it() -> None:
    terms = {"a": Obs(four, joints=".*", bias=Gaussian(0.5), noise=0.01), "b": Obs(four, joints="elbow", bias=0.2)}
    seen = observed(terms, steps=5, terminations={"late": Done(at_age, steps=3)})
    for first, episode in ((0, seen[:3]), (3, seen[3:])):
        assert (np.ptp(episode[:, :, :2], axis=0) <= 0.02 + 1e-6).all()
        assert (np.ptp(episode[:, :, 2], axis=0) == 0.0).all(), first
    bias = np.concatenate([seen[0] - 4.0, seen[3] - 4.0], axis=1)
    np.testing.assert_allclose(bias.std(axis=0), [0.5, 0.5, 0.2 / 3**0.5] * 2, rtol=0.06)
    assert np.abs(np.corrcoef(bias.T) - np.eye(6)).max() < 0.08
    assert np.abs(bias[:, 2]).max() <= 0.2


def test_clip_has_two_ends_and_scales_may_differ_between_columns() -> None:
    terms = {
        "a": Obs(four, joints=".*", clip=(-1.0, 3.0), scale={"should.*": 0.5, "elbow": -2.0}),
        "b": Obs(four, joints=".*", clip={"should.*": 1.5, "elbow": 9.0}, scale=(1.0, 3.0)),
        "c": Obs(four, joints=".*", clip=(5.0, 6.0)),
    }
    assert observed(terms, num_envs=1)[:, 0].tolist() == [[1.5, -6.0, 1.5, 12.0, 5.0, 5.0]] * 2


def test_the_history_of_a_group_is_that_of_each_term_in_turn() -> None:
    seen = observed(ObsGroup({"a": Obs(age), "b": Obs(age, scale=10.0)}, history_length=3), steps=3, num_envs=1)
    assert seen[:, 0].tolist() == [[0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 10], [0, 1, 2, 0, 10, 20], [1, 2, 3, 10, 20, 30]]


LAGS: dict[str, dict[str, Any]] = {
    "constant": {"delay_min_lag": 2, "delay_max_lag": 2},
    "each step": {"delay_min_lag": 1, "delay_max_lag": 4},
    "held": {"delay_max_lag": 3, "delay_hold_prob": 0.7},
    "by period": {"delay_max_lag": 3, "delay_update_period": 4, "delay_per_env_phase": False},
    "staggered": {"delay_max_lag": 3, "delay_update_period": 4},
    "all": {"delay_min_lag": 1, "delay_max_lag": 4, "delay_update_period": 3, "delay_hold_prob": 0.4},
}


@pytest.fixture(scope="module")
def lags() -> dict[str, np.ndarray]:
    """Return the lags that are seen after each of 24 steps. Shapes (24, NUM_ENVS)."""
    seen = observed({"now": Obs(age)} | {f"x{at}": Obs(age, **each) for at, each in enumerate(LAGS.values())}, steps=24)
    return {name: (seen[:, :, 0] - seen[:, :, 1 + at])[1:] for at, name in enumerate(LAGS)}


@pytest.mark.parametrize("name", LAGS)
def test_lags_change_as_in_the_buffer_of_mjlab(name: str, lags: dict[str, np.ndarray], mjlabs: Any) -> None:
    buffers = mjlabs("buffers")
    given = {key.removeprefix("delay_"): value for key, value in LAGS[name].items()}
    buffer = buffers.DelayBuffer(batch_size=NUM_ENVS, generator=torch.Generator().manual_seed(0), **given)
    steps = []
    for step in range(25):
        buffer.append(torch.full((NUM_ENVS, 1), float(step)))
        if step:
            steps.append(step - buffer.compute()[:, 0].numpy())
    theirs, ours = np.stack(steps)[8:], lags[name][8:]  # A lag of mjlab begins at 0, and one of ours as any.
    values = np.arange(5)
    shares = [(each[:, :, None] == values).mean(axis=(0, 1)) for each in (ours, theirs)]
    np.testing.assert_allclose(*shares, atol=0.03)
    changes = [(each[1:] != each[:-1]).mean(axis=1) for each in (ours, theirs)]  # In each step.
    np.testing.assert_allclose(*changes, atol=0.05)
    gaps = [(each[4:] == each[:-4]).mean() for each in (ours, theirs)]
    np.testing.assert_allclose(*gaps, atol=0.03)


SHARED = {
    "each step": {"delay_max_lag": 3, "delay_per_env": False},
    "held": {"delay_max_lag": 3, "delay_per_env": False, "delay_hold_prob": 0.5},
}


def lags_seen(num_envs: int, seed: int, steps: int) -> dict[str, np.ndarray]:
    """Return the lags that are seen in episodes without end. Shapes (steps, num_envs)."""
    terms = {"now": Obs(age)} | {name.split()[0]: Obs(age, **each) for name, each in SHARED.items()}
    task = Arm(configured(terms), num_envs=num_envs, device="cpu", seed=seed)
    seen = []
    for _ in range(steps):
        task.step()
        seen.append(task.obs["policy"].numpy().copy())
    seen = np.stack(seen)[4:]
    return {name: seen[:, :, 0] - seen[:, :, 1 + at] for at, name in enumerate(SHARED)}


def test_environments_that_draw_a_lag_in_one_step_get_the_same_as_in_the_buffer_of_mjlab(mjlabs: Any) -> None:
    buffers, envs, steps = mjlabs("buffers"), 40, 204
    ours, other_seed = lags_seen(envs, 3, steps), lags_seen(1, 4, steps)
    for name, given in SHARED.items():
        generator = torch.Generator().manual_seed(0)
        params = {key.removeprefix("delay_"): value for key, value in given.items()}
        buffer, theirs = buffers.DelayBuffer(batch_size=envs, generator=generator, **params), []
        for step in range(steps):
            buffer.append(torch.full((envs, 1), float(step)))
            theirs.append(step - buffer.compute()[:, 0].numpy())
        for seen in (ours[name], np.stack(theirs)[4:]):
            changed = seen[1:] != seen[:-1]
            assert all(len({*row[at].tolist()}) <= 1 for row, at in zip(seen[1:], changed, strict=True))
            kinds = np.array([len({*row.tolist()}) for row in seen])
            assert (kinds == 1).all() if name == "each step" else (kinds > 1).mean() > 0.5
            shares = [(seen == lag).mean() for lag in range(4)]
            np.testing.assert_allclose(shares, 0.25, atol=0.12)
    assert (ours["each step"][:, :1] != other_seed["each step"]).mean() > 0.5


def test_nothing_is_older_than_the_episode_and_one_lag_may_last_for_all_of_it() -> None:
    terms = {"now": Obs(age), "late": Obs(age, delay_min_lag=1, delay_max_lag=3, delay_hold_prob=1.0)}
    seen = observed(terms, steps=11, num_envs=64, terminations={"late": Done(at_age, steps=6)})
    lag = seen[:, :, 0] - seen[:, :, 1]
    assert (lag <= seen[:, :, 0]).all()
    for episode in (lag[3:6], lag[9:12]):
        assert (episode == episode[0]).all()
        assert {*episode[0].tolist()} == {1, 2, 3}


def test_actions_act_by_the_lags_that_are_drawn_in_the_period() -> None:
    late = Action("joint_position", actuators=".*", scale=1.0, clip=99.0, delay_max_lag=2, delay_update_period=3)
    task = Arm(configured({"now": Obs(age)}, actions={"targets": late}), num_envs=200, device="cpu", seed=3)
    home = task.ctrl.numpy()[0].copy()
    ages = []
    for step in range(1, 13):
        task.actions.fill_(float(step))
        task.step()
        acting = task.ctrl.numpy() - home
        np.testing.assert_allclose(acting[:, 0], acting[:, 1])
        ages.append(step - acting[:, 0].round())
    ages = np.stack(ages)
    assert {*ages[3:].ravel().tolist()} == {0, 1, 2}
    changes = np.abs(np.diff(ages[3:], axis=0)) > 0
    assert (changes[1:] & changes[:-1]).sum() == 0  # Three steps apart.
    assert 0.1 < changes.mean() < 0.35


def test_numbers_of_noise_are_flags_and_undisturbed_turns_all_errors_off() -> None:
    terms = {
        "a": Obs(four, joints=".*", noise=Gaussian({"should.*": 0.5, "elbow": 2.0}), bias=Uniform(0.1, 0.2)),
        "b": Obs(four, joints=".*", noise=(0.5, 0.25), bias={".*": 1.0}, delay_max_lag=2),
    }
    config = configured(terms)
    plain = to_plain(config)
    assert from_plain(config, plain) == config
    changed = from_plain(config, {"observations": {"policy": {"a": {"bias": {"n_max": 0.4}}}}})
    assert changed.observations.policy.a.bias == replace(config.observations.policy.a.bias, n_max=0.4)  # pyright: ignore[reportAttributeAccessIssue]
    task = Arm(config.undisturbed(), num_envs=2, device="cpu", seed=3)
    task.step()
    assert (task.obs["policy"].numpy() == 4.0).all()
    assert not any(name.startswith("observations_") for name in task.arrays)


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (Obs(four, joints=".*", noise=Gaussian({"elbow": 0.1})), "x.noise.std has no pattern for 'shoulder'"),
        (Obs(four, joints=".*", scale=(1.0, 2.0, 3.0)), "x.scale has 3 numbers for 2 names (shoulder, elbow)."),
        (Obs(four, joints=".*", clip=(-1.0, 0.0, 1.0)), "x.clip is (-1.0, 0.0, 1.0), but must be 2 numbers."),
    ],
)
def test_numbers_that_do_not_fit_the_columns_are_refused(term: ObsTerm, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        observed({"x": term})
    assert said in str(refused.value)


CART = """
<mujoco>
  <option timestep="0.005" gravity="0 0 0"/>
  <worldbody><body><joint name="rail" type="slide" axis="1 0 0"/><geom size="0.1" mass="1"/></body></worldbody>
  <actuator><motor name="rail" joint="rail" delay="0.01" nsample="8"/></actuator>
</mujoco>
"""


@wp.func
def own_delay(state: Any, env: int) -> None:
    """Let the actuator of each environment act after as many physics steps as its index."""
    state.actuator_delay[env, 0] = 0.005 * wp.float32(env)


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_mujocos_own_delay_of_an_actuator_may_be_drawn_in_physics_steps(engine: Any) -> None:
    class Cart(TermsTask[TermsConfig]):
        config = configured(
            {"now": Obs(age)},
            engine=engine,
            decimation=4,
            actions={"force": Action("joint_effort", actuators="rail", scale=1.0)},
            events={"own": Event(own_delay, "startup")},
        )

        @classmethod
        def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
            del config
            return mujoco.MjModel.from_xml_string(CART)

    task = Cart(Cart.config, num_envs=4, device="cpu", seed=0)
    task.actions.fill_(1.0)
    task.step()
    speeds = []
    for env in range(4):
        model = task.build_model(task.config)
        model.actuator_delay[0] = 0.005 * env
        data = mujoco.MjData(model)
        data.ctrl[:] = 1.0
        mujoco.mj_step(model, data, nstep=4)
        speeds.append(data.qvel[0])
    np.testing.assert_allclose(task.qvel.numpy()[:, 0], speeds, atol=1e-6)
    np.testing.assert_allclose(speeds, [0.02, 0.015, 0.01, 0.005], atol=1e-6)
