"""`gym:ENV_ID` steps Gymnasium's environments as Gymnasium does, and learns with the distribution of their actions."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.commands import run, start
from torch.distributions import Categorical, kl_divergence

from shoal.cli.parse import parse
from shoal.config import CheckEnvConfig
from shoal.envs.contract import check_env
from shoal.envs.gymnasium_env import GymEnv, _actions_of
from shoal.envs.gymnasium_spec import CATEGORICAL, GymConfig
from shoal.errors import UsageError
from shoal.learn.rsl_rl.categorical import CategoricalDistribution
from shoal.tasks.registry import resolve
from shoal.user_code import absolute

if TYPE_CHECKING:
    from pathlib import Path


class Counter(gymnasium.Env[Any, Any]):
    """Counts to 7; its actions and observations are of the given spaces."""

    def __init__(self, action_space: spaces.Space[Any], observation_space: spaces.Space[Any] | None = None) -> None:
        self.action_space = action_space
        seen = spaces.Dict({"count": spaces.Discrete(9), "spread": spaces.Box(-1, 1, (2,))})
        self.observation_space = observation_space or seen
        self.count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self.count = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        self.count += 1
        return self.seen(), 0.5, self.count == 7, False, {}

    def seen(self) -> Any:
        """A count, and random numbers."""
        if "spread" not in (self.observation_space.spaces if isinstance(self.observation_space, spaces.Dict) else ()):
            return self.observation_space.sample()
        return {"count": self.count, "spread": self.np_random.uniform(-1, 1, 2).astype(np.float32)}


class Screen(Counter):
    """Its count is the row of a white pixel."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(spaces.Discrete(2), spaces.Box(0, 255, shape, np.uint8))

    def seen(self) -> Any:
        """An image of 24 rows and 32 columns, whose channels may come first or last."""
        shape: Any = self.observation_space.shape
        image = np.zeros(shape, np.uint8)
        image[(self.count, 5, 1) if shape[0] == 24 else (1, self.count, 5)] = 255
        return image


SCREENS = {"Last": (24, 32, 3), "First": (3, 24, 32)}
TWO_DIMENSIONAL = spaces.MultiDiscrete(np.array([[2, 3], [2, 2]]), start=np.array([[0, 1], [2, 3]]))
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "Tuple": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2), spaces.Box(-1, 1, (2, 2)))),
    "Text": spaces.Text(min_length=0, max_length=5),
    "Discretes": spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Discrete(4, start=-2)}),
    "MultiDiscretes": spaces.MultiDiscrete(np.array([[2, 3], [4, 1]])),
    "Graph": spaces.Graph(spaces.Box(-1, 1, (2,)), None),
    "Sequence": spaces.Dict({"a": spaces.Sequence(spaces.Box(-1, 1, (2,)))}),
}
"""Spaces of observations, of which the last two have no fixed size."""


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    kinds: dict[str, spaces.Space[Any]] = {
        "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
        "TwoDimensional": TWO_DIMENSIONAL,
        "Integers": spaces.Box(0, 10, (2,), np.int32),
        "MultiBinary": spaces.MultiBinary(3),
        "Dict": spaces.Dict({"a": spaces.Discrete(2)}),
    }
    for name, space in kinds.items():
        factory: Any = partial(Counter, space)
        gymnasium.register(f"Shoal{name}-v0", factory, max_episode_steps=20)
    for name, space in OBSERVATIONS.items():
        factory = partial(Counter, spaces.Discrete(2), space)
        gymnasium.register(f"ShoalSees{name}-v0", factory, max_episode_steps=20)
    for name, shape in SCREENS.items():
        factory = partial(Screen, shape)
        gymnasium.register(f"ShoalScreen{name}-v0", factory, max_episode_steps=20)


def made(env_id: str, **more: Any) -> GymEnv:
    """Three environments."""
    return GymEnv(GymConfig(env_id=env_id, **more), num_envs=3, device="cpu", seed=5)


@pytest.mark.parametrize(
    "env_id",
    [
        *("CartPole-v1", "Pendulum-v1", "ShoalMultiDiscrete-v0", "ShoalMultiBinary-v0", "ShoalTwoDimensional-v0"),
        "ShoalIntegers-v0",
    ],
)
def test_gymnasiums_environments_keep_the_contract(env_id: str) -> None:
    spec = resolve(f"gym:{env_id}")
    checked = check_env(CheckEnvConfig(task=spec.name, env=spec.env, num_envs=3, steps=230), spec, "cpu")
    assert checked.failed == []
    assert checked.episodes >= 3


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_steps_are_those_of_gymnasium(vectorization: str) -> None:
    env = made("Pendulum-v1", vectorization=vectorization, max_episode_steps=12)
    env.keep_final_observations()
    env.restart(seed=3)
    theirs = [gymnasium.make("Pendulum-v1", max_episode_steps=12) for _ in range(3)]
    seeds = [int(np.random.SeedSequence([3, index]).generate_state(1)[0]) for index in range(3)]
    seen = np.stack([each.reset(seed=seed)[0] for each, seed in zip(theirs, seeds, strict=True)])
    random = np.random.default_rng(0)
    for step in range(12):
        assert np.allclose(env.get_observations()["policy"].numpy(), seen, atol=1e-5)
        actions = random.uniform(-1.5, 1.5, (3, 1)).astype(np.float32)
        _, rewards, dones, extras = env.step(torch.from_numpy(actions))
        # Pendulum's torques go from -2 to 2 Nm.
        stepped = [each.step(2 * action.clip(-1, 1)) for each, action in zip(theirs, actions, strict=True)]
        seen = np.stack([each[0] for each in stepped])
        assert np.allclose(rewards.numpy(), [float(each[1]) for each in stepped])
        assert dones.tolist() == extras["time_outs"].tolist() == [step == 11] * 3
        last = extras["final_observation"]["policy"].numpy()
        assert np.allclose(last, seen, atol=1e-5) == (step == 11)


def test_an_episode_that_fails_in_its_last_step_has_failed() -> None:
    env = made("ShoalMultiBinary-v0", max_episode_steps=7)  # It counts to 7.
    for step in range(7):
        *_, dones, extras = env.step(torch.zeros(3, env.num_actions))
        assert dones.tolist() == [step == 6] * 3
        assert extras["time_outs"].tolist() == [False] * 3


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_episodes_begin_again_after_steps_in_any_mode_of_torch(mode: Any) -> None:
    env = made("CartPole-v1")
    env.keep_final_observations()
    firsts: list[torch.Tensor] = []
    for _ in range(2):
        env.restart(seed=1)
        firsts.append(env.get_observations()["policy"])
        assert env.episode_length_buf.tolist() == [0, 0, 0]
        with mode():
            for _ in range(30):
                env.step(torch.tensor([[1.0, 0.0]]).repeat(3, 1))
    assert torch.equal(*firsts)


def test_each_kind_of_action_has_its_columns() -> None:
    columns = np.array([[0.2, 0.9, -3.0, 0.0, 0.5], [4.0, 0.1, 0.1, 0.7, 0.0]])
    count, to_action = _actions_of(spaces.Discrete(5, start=2))
    assert (count, to_action(columns).tolist()) == (5, [3, 2])
    count, to_action = _actions_of(spaces.MultiDiscrete([2, 3]))
    assert (count, to_action(columns).tolist()) == (5, [[1, 2], [0, 1]])
    count, to_action = _actions_of(spaces.MultiBinary(5))
    assert (count, to_action(columns).tolist()) == (5, [[1, 1, 0, 0, 1], [1, 1, 1, 1, 0]])
    count, to_action = _actions_of(spaces.Box(np.array([0, -2, -np.inf, -np.inf, 0], dtype=np.float32), np.inf))
    assert count == 5
    assert np.allclose(to_action(columns), [[0.2, 0.9, -3, 0, 0.5], [4, 0.1, 0.1, 0.7, 0]])
    count, to_action = _actions_of(spaces.Box(-2, 6, (1, 5)))
    assert to_action(columns).shape == (2, 1, 5)
    assert np.allclose(to_action(columns)[0], [[2.8, 5.6, -2, 2, 4]])


def test_integers_are_rounded_to_the_nearest() -> None:
    count, to_action = _actions_of(spaces.Box(0, 10, (3,), np.int32))
    # The ends -1 and 1 are 0 and 10, so 0.34 is 6.7 and -0.66 is 1.7; beyond the ends they are clipped.
    actions = to_action(np.array([[0.34, -0.66, 7.0]], dtype=np.float32))
    assert (count, actions.dtype, actions.tolist()) == (3, np.int32, [[7, 2, 10]])
    _, to_action = _actions_of(spaces.Box(-np.inf, np.inf, (3,), np.int64))
    assert to_action(np.array([[2.7, -2.7, 0.2]])).tolist() == [[3, -3, 0]]
    _, to_action = _actions_of(spaces.Box(0, 255, (1,), np.uint8))
    assert to_action(np.array([[-1.0], [0.0], [1.0]])).tolist() == [[0], [128], [255]]  # 127.5 is rounded to even.


def test_parts_of_a_two_dimensional_space_follow_each_other() -> None:
    count, to_action = _actions_of(TWO_DIMENSIONAL)
    # Largest in columns 0-1: 1, in 2-4: 2, in 5-6: 0, in 7-8: 1; each after its start.
    columns = np.array([[0.1, 0.9, 0.0, 0.3, 0.5, 0.8, 0.2, -1.0, 0.0]])
    assert (count, to_action(columns).tolist()) == (9, [[[1, 3], [2, 4]]])


@pytest.mark.parametrize(("kind", "columns"), [("Tuple", 3 + 2 + 4), ("Text", 5), ("Discretes", 7)])
def test_observations_of_a_fixed_size_are_one_row(kind: str, columns: int) -> None:
    assert resolve(f"gym:ShoalSees{kind}-v0")
    env = made(f"ShoalSees{kind}-v0")
    observations, *_ = env.step(torch.zeros(3, 2))
    assert observations["policy"].shape == env.get_observations()["policy"].shape == (3, columns)
    assert observations["policy"].isfinite().all()


def test_a_multi_discrete_observation_has_a_column_for_each_value() -> None:
    first = made("ShoalSeesMultiDiscretes-v0").get_observations()["policy"]
    assert first.shape == (3, 2 + 3 + 4 + 1)
    assert first.sum(dim=1).tolist() == [4, 4, 4]


@pytest.mark.parametrize("channels", SCREENS)
def test_images_have_their_channels_first_and_values_from_0_to_1(channels: str) -> None:
    env = made(f"ShoalScreen{channels}-v0")
    env.keep_final_observations()
    agent: Any = resolve(f"gym:ShoalScreen{channels}-v0").agent
    assert agent.actor.class_name == agent.critic.class_name == "CNNModel"
    for count in range(1, 8):
        observations, _, dones, extras = env.step(torch.zeros(3, 2))
        assert dones.tolist() == [count == 7] * 3
        last = extras["final_observation"]["policy"] if count == 7 else observations["policy"]
        assert last.nonzero().tolist() == [[env, 1, count, 5] for env in range(3)]
        assert last.max() == 1.0


@pytest.mark.soak
def test_processes_of_environments_end_without_a_word_however_their_parent_ends() -> None:
    code = (
        "import os, torch\n"
        "from shoal.envs.gymnasium_env import GymEnv\n"
        "from shoal.envs.gymnasium_spec import GymConfig\n"
        "config = GymConfig(env_id='CartPole-v1', vectorization='async')\n"
        "env = GymEnv(config, num_envs=3, device='cpu', seed=1)\n"
        "env.step(torch.zeros(3, 2))\n"
        "print('stepped', flush=True)\n"
    )
    for end in ("", "os._exit(0)", "os.kill(os.getpid(), 9)"):
        # The pipes close only when all processes have ended.
        ended = subprocess.run(
            [sys.executable, "-c", code + end], capture_output=True, text=True, timeout=120, check=False
        )
        assert (ended.stdout, ended.stderr) == ("stepped\n", ""), end


def test_observations_of_a_dictionary_are_one_row() -> None:
    first = made("ShoalMultiBinary-v0").get_observations()["policy"]
    assert first.shape == (3, 11)
    assert first[:, :9].argmax(dim=1).tolist() == [0, 0, 0]


def test_the_distribution_is_that_of_the_actions() -> None:
    agents: list[Any] = [resolve(f"gym:{env_id}").agent for env_id in ("CartPole-v1", "Pendulum-v1")]
    kinds = [agent.actor.distribution.class_name for agent in agents]
    assert kinds == [CATEGORICAL, "GaussianDistribution"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("gym:CartPol-v1", "Gymnasium does not make 'CartPol-v1' .* Did you mean 'CartPole-v1'?"),
        ("gym:ShoalDict-v0", "gym:ShoalDict-v0 has actions of the kind Dict, which no learner has"),
        (
            "gym:ShoalSeesGraph-v0",
            "gym:ShoalSeesGraph-v0 has observations of the kind Graph, or with such a part, that",
        ),
        (
            "gym:ShoalSeesSequence-v0",
            "ShoalSeesSequence-v0 has observations of the kind Dict, or with such a part, that",
        ),
        ("gym:", "Gymnasium does not make ''"),
    ],
)
def test_what_cannot_be_trained_is_named(task: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(task)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_box2d(env_id: str) -> None:
        message = f'Box2D is not installed, run `pip install "gymnasium[box2d]"` for {env_id}'
        raise gymnasium.error.DependencyNotInstalled(message)

    monkeypatch.setattr(gymnasium, "make", without_box2d)
    with pytest.raises(UsageError, match=re.escape("'LunarLander-v3' (Box2D is not installed, run `pip install")):
        resolve("gym:LunarLander-v3")


def test_a_categorical_distribution_is_that_of_torch() -> None:
    torch.manual_seed(0)
    logits, older = torch.randn(64, 4), torch.randn(64, 4)
    distribution, torchs = CategoricalDistribution(4), Categorical(logits=logits)
    distribution.update(logits)
    sampled = distribution.sample()
    assert sampled.shape == (64, 4)
    assert torch.equal(sampled.sum(dim=1), torch.ones(64))
    assert torch.allclose(distribution.log_prob(sampled), torchs.log_prob(sampled.argmax(dim=1)))
    assert torch.allclose(distribution.entropy, torchs.entropy())
    assert torch.allclose(distribution.mean, logits.softmax(dim=1))
    old = CategoricalDistribution(4)
    old.update(older)
    divergence = distribution.kl_divergence(old.params, distribution.params)
    assert torch.allclose(divergence, kl_divergence(Categorical(logits=older), torchs))
    many = torch.stack([distribution.sample() for _ in range(4000)]).mean(dim=0)
    assert torch.allclose(many, distribution.mean, atol=0.04)
    assert torch.allclose(
        distribution.std, torch.stack([distribution.sample() for _ in range(4000)]).std(dim=0), atol=0.04
    )


@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("env_id", "threshold", "iterations"), [("CartPole-v1", 475, 100), ("LunarLander-v3", 200, 150)]
)
def test_the_defaults_reach_the_threshold_that_gymnasium_states(
    env_id: str, threshold: float, iterations: int, tmp_path: Path
) -> None:
    if env_id.startswith("LunarLander"):
        pytest.importorskip("Box2D")
    assert gymnasium.spec(env_id).reward_threshold == threshold
    shoal, words = (sys.executable, "-m", "shoal"), (f"gym:{env_id}", "--gpu-ids", "None")
    trained = start((*shoal, "train", *words, "--max-iterations", str(iterations)), tmp_path).end(timeout=1000)
    assert trained.code == 0, trained.stderr
    evaluated = run((*shoal, "evaluate", *words, "--json", "--num-episodes", "100"), tmp_path)
    assert json.loads(evaluated.stdout)["summary"]["return"]["mean"] >= threshold, evaluated.stdout


OWN = """
import gymnasium
from gymnasium.envs.classic_control.pendulum import PendulumEnv

class Slow(PendulumEnv):
    def __init__(self):
        super().__init__()
        self.max_torque = {torque}

gymnasium.register("{name}", Slow, max_episode_steps=9)
"""


@pytest.mark.parametrize("way", ["file", "module"])
def test_environments_of_a_file_of_ones_own_are_tasks(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"of_{way}.py").write_text(OWN.format(torque=0.5, name=f"Of{way.title()}-v0"), encoding="utf-8")
    task = "gym:of_file.py:OfFile-v0" if way == "file" else "gym:of_module:OfModule-v0"
    spec = resolve(task)
    env = spec.build(spec.env, num_envs=2, device="cpu", seed=1)
    assert (env.max_episode_length, env.num_actions) == (9, 1)
    (plan,) = parse("train", [task, "--gpu-ids", "None"])
    assert plan.task == task
    if way == "file":
        assert (spec.name, spec.experiment) == ("gym:of_file.py:OfFile-v0", "gym_of_file.py_OfFile-v0")
        assert resolve(absolute(task)) == spec
        assert absolute(task) == f"gym:{tmp_path}/of_file.py:OfFile-v0"


def test_a_file_of_environments_that_is_not_there_or_fails_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"asks for the file .*none\.py, which does not exist"):
        resolve(f"gym:{tmp_path}/none.py:A-v0")
    (tmp_path / "fails.py").write_text("import math\n\ndef f():\n    math.sqrt(-1)\n\nf()\n", encoding="utf-8")
    sentence = r"fails\.py failed when it was imported \(ValueError: .*\): look at line 4 of .*fails\.py, in f\(\)\."
    with pytest.raises(UsageError, match=sentence):
        resolve(f"gym:{tmp_path}/fails.py:A-v0")
