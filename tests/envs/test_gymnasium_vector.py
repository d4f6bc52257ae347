"""Shoal's tasks through `gymnasium.make_vec`: semantics, arrays, pictures, and what Gymnasium itself checks."""

from __future__ import annotations

import subprocess
import sys
from ctypes.util import find_library
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium.utils import env_checker
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformReward
from support.tiny_env import TinyEnv

import shoal.gym  # noqa: F401  Registers.
from shoal.envs.capabilities import Capabilities
from shoal.envs.gymnasium_vector import GymnasiumVectorEnv
from shoal.errors import UsageError
from shoal.tasks.registry import registered

SWINGUP, BALANCE = "shoal/Cartpole-Swingup", "shoal/Cartpole-Balance"
SHORT = {"episode_length_s": 0.1}
"""Five steps."""


def made(name: str = SWINGUP, num_envs: int = 3, **more: Any) -> Any:
    return gymnasium.make_vec(name, num_envs=num_envs, device="cpu", **more)


@pytest.fixture(scope="module")
def short() -> Any:
    """Three cart-poles whose episodes last five steps."""
    return made(env=SHORT)


def test_every_task_is_registered() -> None:
    assert {f"shoal/{name}" for name in registered()} <= {*gymnasium.registry}
    assert gymnasium.spec("shoal/Ant-v5").version == 5
    assert isinstance(made(f"shoal.gym:{BALANCE}", num_envs=1), GymnasiumVectorEnv)


def test_gymnasium_finds_nothing_wrong(short: Any, recwarn: pytest.WarningsRecorder) -> None:
    assert short.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert short.spec.id == SWINGUP
    env_checker.check_reset_seed_determinism(short)
    env_checker.check_returned_data_not_reused(made(num_envs=1))
    env_checker.check_reset_return_type(short)
    env_checker.check_reset_options(short)
    env_checker.check_space_limit(short.action_space, "action")
    assert [str(each.message) for each in recwarn if "Box" not in str(each.message)] == []


def test_spaces_contain_what_is_returned(short: Any) -> None:
    observations, infos = short.reset(seed=1)
    short.action_space.seed(0)
    assert observations in short.observation_space
    assert infos == {}
    stepped = short.step(short.action_space.sample())
    assert stepped[0] in short.observation_space
    assert [each.dtype for each in stepped[1:4]] == [np.float32, np.bool_, np.bool_]
    assert [each.shape for each in stepped[1:4]] == [(3,)] * 3
    assert short.single_observation_space.shape == (5,)


def test_final_observations_are_those_of_an_episode_that_goes_on() -> None:
    cut, going_on = made(env=SHORT), made()
    for env in (cut, going_on):
        env.reset(seed=4)
    action = np.full((3, 1), 0.3)
    for _ in range(4):
        seen, _, terminated, truncated, infos = cut.step(action)
        assert np.array_equal(seen, going_on.step(action)[0])
        assert not (terminated | truncated).any()
        assert infos == {}
    seen, _, terminated, truncated, infos = cut.step(action)
    expected = going_on.step(action)[0]
    assert truncated.all()
    assert not terminated.any()
    assert infos["_final_obs"].tolist() == [True] * 3
    assert np.array_equal(np.stack(infos["final_obs"]), expected)
    assert not np.array_equal(seen, expected)  # The first ones of the next episodes.


def test_a_pole_that_falls_terminates_and_is_not_truncated() -> None:
    env = made(BALANCE)
    env.reset(seed=0)
    ended = np.zeros(3, dtype=bool)
    for _ in range(200):
        _, _, terminated, truncated, infos = env.step(np.ones((3, 1)))
        assert not truncated.any()
        for index, each in enumerate(infos.get("final_obs", [None] * 3)):
            assert (each is not None) == terminated[index]
        ended |= terminated
    assert ended.all()


def test_arrays_stay_as_they_are_unless_copies_are_declined() -> None:
    kept, live = made(), made(copy=False)
    for env, stays in ((kept, True), (live, False)):
        env.reset(seed=1)
        first = env.step(np.ones((3, 1)))[1]
        before = first.copy()
        env.step(-np.ones((3, 1)))
        assert np.array_equal(first, before) == stays


@pytest.mark.parametrize("arrays", ["torch", "jax"])
def test_arrays_of_torch_and_jax_share_the_memory_of_the_environments(arrays: str) -> None:
    env, plain = made(env=SHORT, arrays=arrays, copy=False), made(env=SHORT)
    action = torch.full((3, 1), 0.5) if arrays == "torch" else jnp.full((3, 1), 0.5)
    for each in (env, plain):
        each.reset(seed=2)
    for _ in range(4):
        env.step(action)
        plain.step(np.full((3, 1), 0.5))
    got, expected = env.step(action), plain.step(np.full((3, 1), 0.5))
    assert isinstance(got[0], torch.Tensor if arrays == "torch" else jax.Array)
    for mine, theirs in zip(got[:4], expected[:4], strict=True):
        assert np.array_equal(np.asarray(mine), theirs)
    assert np.array_equal(np.asarray(got[4]["final_obs"]), np.stack(expected[4]["final_obs"]))
    address = env.unwrapped._env.task.reward.ptr
    assert (got[1].data_ptr() if arrays == "torch" else got[1].unsafe_buffer_pointer()) == address


def test_gymnasiums_wrappers_work_on_it() -> None:
    env = TransformReward(RecordEpisodeStatistics(made(env=SHORT)), lambda reward: 2 * reward)
    env.reset(seed=1)
    stepped = [env.step(np.zeros((3, 1), dtype=np.float32)) for _ in range(5)]
    total, infos = sum(each[1] / 2 for each in stepped), stepped[-1][4]
    assert np.allclose(infos["episode"]["r"], total)
    assert infos["episode"]["l"].tolist() == [5, 5, 5]


def test_all_observation_groups_are_a_dict() -> None:
    kept = GymnasiumVectorEnv(Kept(num_envs=2), observations="all")
    observations, _ = kept.reset()
    assert {name: rows.shape for name, rows in observations.items()} == {"policy": (2, 3), "privileged": (2, 5)}
    assert observations in kept.observation_space


def test_images_are_boxes_of_channels_height_and_width() -> None:
    env = made("shoal/Cartpole-Swingup-Depth", num_envs=2, env={"engine": "mujoco"})
    assert env.single_observation_space.shape == (3, 24, 48)
    env_checker.check_reset_seed_determinism(env)
    env_checker.check_reset_return_type(env)
    observations, _ = env.reset(seed=1)
    assert observations in env.observation_space
    assert env.step(env.action_space.sample())[0] in env.observation_space
    both: Any = GymnasiumVectorEnv(env.unwrapped._env, observations="all").single_observation_space
    assert {name: box.shape for name, box in both.items()} == {"policy": (3, 24, 48), "critic": (5,)}


class Kept(Capabilities, TinyEnv):
    """Points on a line that keep their final observations."""

    can_restart = True

    def keep_final_observations(self) -> None:
        """Do nothing: this test reads none."""


def test_environments_without_final_observations_are_refused() -> None:
    with pytest.raises(UsageError, match="last observations of each episode, which these environments do not keep"):
        GymnasiumVectorEnv(TinyEnv(num_envs=2))


def test_what_gymnasium_could_ask_and_shoal_does_not_do_is_refused(short: Any) -> None:
    with pytest.raises(UsageError, match="reset_mask was passed"):
        short.reset(options={"reset_mask": np.ones(3, dtype=bool)})


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("observations", "critic", "policy, all"),
        ("arrays", "tensorflow", "numpy, torch, jax"),
        ("render_mode", "human", "None, rgb_array"),
    ],
)
def test_an_argument_that_has_no_such_value_is_refused(name: str, value: str, known: str) -> None:
    arguments: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=f"{name} is '{value}', but must be one of {known}"):
        made(**arguments)


PICTURES = """
import gymnasium, numpy as np
env = gymnasium.make_vec(
    "shoal.gym:shoal/Cartpole-Swingup", num_envs=2, device="cpu", render_mode="rgb_array", render_size=(64, 48)
)
env.reset(seed=1)
one, other = env.render()
for _ in range(20):
    env.step(np.ones((2, 1)))
later = env.render()[0]
env.close()
assert one.shape == other.shape == (48, 64, 3)
assert one.std() > 5, "there is something on it,"
assert (one != other).any(), "and not the same: the poles begin at other angles,"
assert (one != later).any(), "and move"
"""


@pytest.mark.skipif(find_library("OSMesa") is None, reason="libOSMesa draws")
def test_pictures_show_each_environment() -> None:
    # In a process of its own, in which MuJoCo reads how to draw when it is imported.
    subprocess.run([sys.executable, "-c", PICTURES], check=True)


def test_without_a_mode_nothing_is_drawn(short: Any) -> None:
    assert short.render() is None
