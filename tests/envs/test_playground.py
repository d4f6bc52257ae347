"""MuJoCo Playground's environments step as Playground steps them, and train, in an environment that this test makes."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from support.commands import start
from support.venvs import python_with, trains_everywhere

from shoal.envs.playground_spec import PLAYGROUND
from shoal.errors import UsageError
from shoal.tasks.registry import resolve

if TYPE_CHECKING:
    from pathlib import Path

TASK = "playground:CartpoleBalance"

BESIDE_PLAYGROUND = """
import jax, numpy as np, torch
from mujoco_playground import registry, wrapper
from shoal.tasks.registry import resolve

spec = resolve("playground:CartpoleBalance")
config = type(spec.env)(env_name="CartpoleBalance", set={"episode_length": "12"})
env = spec.build(config, num_envs=3, device="cpu", seed=5)
theirs = wrapper.wrap_for_brax_training(registry.load("CartpoleBalance"), episode_length=12)
keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.PRNGKey(7), jax.numpy.arange(3))
state, step = jax.jit(theirs.reset)(keys), jax.jit(theirs.step)
env.restart(7)
random, ended = np.random.default_rng(0), 0
for _ in range(30):
    before = env.get_observations()
    assert np.array_equal(before["policy"], state.obs) and torch.equal(before["critic"], before["policy"])
    actions = random.uniform(-1.5, 1.5, (3, 1)).astype(np.float32)
    _, rewards, dones, extras = env.step(torch.from_numpy(actions))
    state = step(state, np.clip(actions, -1, 1))
    assert np.array_equal(rewards, state.reward) and np.array_equal(dones, state.done > 0)
    assert np.array_equal(extras["time_outs"], state.info["truncation"] > 0)
    assert np.array_equal(extras["log"]["Metrics/reward/upright"], state.metrics["reward/upright"])
    last = extras["final_observation"]["policy"]
    assert torch.equal(last, env.get_observations()["policy"]) != bool(dones.any())
    ended += int(dones.sum())
print("equal, and", ended, "episodes ended")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with Shoal and MuJoCo Playground."""
    return python_with(tmp_path_factory.mktemp("playground"), f"playground=={PLAYGROUND}")


def test_without_playground_the_command_that_installs_it_is_named() -> None:
    with pytest.raises(UsageError, match=f"run `uv pip install playground=={PLAYGROUND}`"):
        resolve(TASK)


@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_steps_are_those_of_playground(python: str) -> None:
    done = subprocess.run((python, "-c", BESIDE_PLAYGROUND), capture_output=True, text=True, check=False)
    assert "equal, and 6 episodes ended" in done.stdout, done.stderr


@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_an_environment_of_playground_trains_through_every_launch_mode(python: str, tmp_path: Path) -> None:
    trains_everywhere(python, TASK, tmp_path)
    words = ("--gpu-ids", "None", "--num-envs", "8", "--steps", "30", "--env.set", "episode_length", "20")
    checked = subprocess.run(
        (python, "-m", "shoal", "check-env", TASK, *words), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
    for asked, answer in {
        "CartpoleBalanc": "Did you mean 'CartpoleBalance'?",
        "Cartpole": "It has AcrobotSwingup",
    }.items():
        refused = start((python, "-m", "shoal", "train", f"playground:{asked}"), tmp_path / asked).end(timeout=120)
        assert (refused.code, answer in refused.stderr) == (2, True), refused.stderr
