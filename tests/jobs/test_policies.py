"""Policies of jobs: every format of one network plays the same episodes, and each error names its cause."""

from __future__ import annotations

import io
import sys
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.hostile import Hostile
from support.learners import ALONE, loop_on, tiny_agent, tiny_config, tiny_loop, train
from support.saved import write_checkpoint
from support.tiny_env import TinyEnv

from shoal.config import DistributionConfig, ModelConfig, RslRlConfig
from shoal.config.evaluate import JobEntry
from shoal.config.plain import to_plain
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.jobs.entries import expand
from shoal.jobs.policies import DevicePolicy, JobPolicy, open_policy, policy_device
from shoal.learn.evaluation import TrainedPolicy
from shoal.learn.export import exportable_policy, write_policy
from shoal.plan.job import Job
from shoal.plan.rundir import RunDir
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shoal.learn.loop import TrainingLoop

SPEC = registry.resolve("Cartpole-Balance")
CPU = torch.device("cpu")
NUM_ENVS = 5
NUM_STEPS = 40
"""More than two episodes of 15 steps."""
TOLERANCE = 1e-5
"""Actions and rewards are about 1, where float32 has 1.2e-7; sums in another order are fed back for 40 steps."""
GAUSSIAN = DistributionConfig(class_name="GaussianDistribution")
ACTORS = {
    "MLP": ModelConfig(hidden_dims=(16,), obs_normalization=True, distribution=GAUSSIAN),
    "LSTM": ModelConfig(
        class_name="RNNModel", rnn_num_layers=2, rnn_hidden_dim=8, obs_normalization=True, distribution=GAUSSIAN
    ),
}
GRU = ModelConfig(class_name="RNNModel", rnn_type="gru", rnn_hidden_dim=8, distribution=GAUSSIAN)


def cartpole(num_envs: int = NUM_ENVS) -> WarpVecEnv:
    """Cart-poles whose episodes last 15 steps."""
    config = replace(SPEC.env, episode_length_s=0.3)
    return WarpVecEnv(SPEC.build(config, num_envs=num_envs, device="cpu", seed=3))


@dataclass(frozen=True)
class Trained:
    """One network in every format."""

    agent: RslRlConfig
    files: dict[str, Path]
    other: Path
    """A checkpoint of the same networks with other weights."""

    def job(self, kind: str) -> Job:
        """The job of one format."""
        return job(str(self.files[kind]), learner="rsl_rl", agent=to_plain(self.agent))


def job(policy: str, **more: Any) -> Job:
    """A job on the cart-pole."""
    return Job(name="a", task=SPEC.name, policy=policy, **more)


def trained_loop(agent: RslRlConfig, seed: int) -> TrainingLoop:
    """Two iterations, after which the normaliser knows the observations."""
    config = replace(SPEC.defaults(), agent=agent, max_iterations=2, num_envs=NUM_ENVS)
    loop = loop_on(cartpole(), config, ALONE, seed=seed)
    train(loop)
    return loop


def export(loop: TrainingLoop, file: Path) -> dict[str, Path]:
    """Write both exported formats."""
    policy = exportable_policy(loop.learner, loop.env, name="a", checkpoint="b", iteration=2)
    return dict(zip(("onnx", "pt2"), write_policy(policy, file), strict=True))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=ACTORS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A perceptron, and a recurrent network."""
    critic = replace(ACTORS[request.param], distribution=DistributionConfig())
    agent = replace(
        tiny_agent(),
        actor=ACTORS[request.param],
        critic=critic,
        obs_groups={"actor": ("policy",), "critic": ("policy",)},
    )
    run = RunDir(tmp_path_factory.mktemp("trained"))
    loops = [trained_loop(agent, seed=seed) for seed in (0, 1)]
    model, other = (write_checkpoint(run, 1 + i, loop.state(), 1) / "model.pt" for i, loop in enumerate(loops))
    return Trained(agent, {"trained": model, **export(loops[0], run.path / "policy.onnx")}, other)


def episodes(env: WarpVecEnv, policy: JobPolicy) -> torch.Tensor:
    """Actions, rewards and ends of new episodes. Shape (NUM_STEPS, num_envs, num_actions + 2)."""
    observations, steps = env.reset(seed=9), []
    policy.begin(range(env.num_envs), seed=1)
    with torch.no_grad():
        for _ in range(NUM_STEPS):
            actions = policy(observations)
            observations, rewards, dones, _ = env.step(actions)
            policy.reset(dones)
            steps.append(torch.cat((actions, rewards[:, None], dones[:, None].float()), dim=1))
    return torch.stack(steps)


def played(job: Job, device: torch.device = CPU) -> torch.Tensor:
    """Run the episodes of a job."""
    env = cartpole()
    return episodes(env, open_policy(job, env, device))


def test_a_program_of_torch_export_runs_code_so_that_one_from_elsewhere_is_refused(
    trained: Trained, tmp_path: Path
) -> None:
    theirs, marker = tmp_path / "theirs" / "policy.pt2", tmp_path / "ran"
    theirs.parent.mkdir()
    pickled = io.BytesIO()
    torch.save(Hostile(marker), pickled)
    with zipfile.ZipFile(trained.files["pt2"]) as whole, zipfile.ZipFile(theirs, "w") as spoilt:
        for name in whole.namelist():
            spoilt.writestr(name, pickled.getvalue() if "sample_inputs" in name else whole.read(name))
    entry = JobEntry(name="a", task=SPEC.name, policy=str(theirs))
    with pytest.raises(UsageError, match=r"policy\.pt2 is a program of torch\.export, which may run code .*--trust"):
        expand([entry], log_root=str(tmp_path / "mine"))
    assert not marker.exists()
    (trusted,) = expand([entry], log_root=str(tmp_path / "mine"), trust=True)
    with suppress(Exception):
        open_policy(trusted, cartpole(), CPU)
    assert marker.exists(), "torch does not unpickle it any more: the refusal may go"


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_exported_files_play_the_episodes_of_the_checkpoint(trained: Trained, kind: str) -> None:
    expected = played(trained.job("trained"))
    assert expected[..., -1].sum(dim=0).min() >= 2  # Each environment began again.
    assert expected[..., 0].std() > 100 * TOLERANCE
    assert (played(trained.job(kind)) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("kind", ["trained", "onnx", "pt2"])
def test_memory_ends_with_its_episode(trained: Trained, kind: str) -> None:
    env = cartpole(num_envs=2)
    policy = open_policy(trained.job(kind), env, CPU)
    observations = env.get_observations()
    policy.begin([0, 1], seed=1)
    first = policy(observations).clone()
    policy.reset(torch.tensor([True, False]))
    second = policy(observations).clone()
    policy.begin([2, 3], seed=1)
    third = policy(observations).clone()
    assert torch.equal(second[0], first[0])
    assert torch.equal(third, first)
    assert torch.equal(second[1], first[1]) == (trained.agent.actor.class_name != "RNNModel")


def test_another_checkpoint_is_loaded_into_the_same_networks(trained: Trained) -> None:
    env = cartpole()
    policy = open_policy(trained.job("trained"), env, CPU)
    before = episodes(env, policy)
    assert isinstance(policy, DevicePolicy)
    assert isinstance(policy.policy, TrainedPolicy)
    policy.policy.load(trained.other)
    after = episodes(env, policy)
    assert torch.equal(after, played(replace(trained.job("trained"), policy=str(trained.other))))
    assert not torch.allclose(after, before)


def test_an_onnx_file_runs_on_the_cpu_where_onnxruntime_has_no_cuda(
    trained: Trained, recwarn: pytest.WarningsRecorder
) -> None:
    assert torch.equal(played(trained.job("onnx"), torch.device("cuda:0")), played(trained.job("onnx")))
    assert [str(each.message) for each in recwarn] == []


@pytest.mark.parametrize("kind", ["onnx", pytest.param("pt2", marks=pytest.mark.soak)])
def test_a_gru_takes_its_groups_in_the_order_of_the_export(tmp_path: Path, kind: str) -> None:
    groups = {"actor": ("privileged", "policy"), "critic": ("policy",)}
    loop = tiny_loop(tiny_config(agent=tiny_agent(actor=GRU, obs_groups=groups)))
    file = export(loop, tmp_path / "policy.onnx")[kind]
    env: Any = TinyEnv()
    policy, expected = open_policy(job(str(file)), env, CPU), loop.learner.policy()
    with torch.inference_mode():
        policy.begin(range(4), seed=1)
        expected.reset()
        for _ in range(3):
            observations, *_ = env.step(torch.ones(4, 2))
            assert (policy(observations) - expected(observations)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_an_exported_policy_of_another_task_is_refused(trained: Trained, kind: str) -> None:
    env: Any = TinyEnv()
    with pytest.raises(UsageError, match=r"needs the observation groups {'policy': 5}, .* has {'policy': 3, 'privi"):
        open_policy(trained.job(kind), env, CPU)


def test_a_missing_onnxruntime_is_answered_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"policy.onnx needs onnxruntime, .* `uv add 'shoal\[onnx\]'`"):
        open_policy(job("/policy.onnx"), cartpole(), CPU)


# Zero and random actions


def test_zero_actions_are_zero() -> None:
    actions = played(job("zero"))[..., 0]
    assert actions.shape == (NUM_STEPS, NUM_ENVS)
    assert actions.abs().max() == 0


@torch.inference_mode()
def random_actions(*indices: int, seed: int = 1, num_steps: int = 200) -> torch.Tensor:
    """Shape (num_steps, len(indices))."""
    env = cartpole(num_envs=len(indices))
    policy = open_policy(job("random"), env, CPU)
    policy.begin(indices, seed)
    policy(env.get_observations())
    policy.begin(indices, seed)  # Again from the first step.
    return torch.cat([policy(env.get_observations()) for _ in range(num_steps)], dim=1).T


def test_random_actions_of_an_episode_do_not_depend_on_the_others() -> None:
    together = random_actions(4, 7, 8)
    assert torch.equal(together[:, 1:2], random_actions(7))
    assert torch.equal(together, random_actions(8, 4, 7)[:, [1, 2, 0]])


def test_random_actions_are_uniform_and_never_repeat() -> None:
    actions = random_actions(*range(10))
    assert actions.dtype == torch.float32
    assert len(torch.unique(actions)) > 0.99 * actions.numel()  # Float32 has some 2^24 of these numbers.
    assert -1 <= actions.min() < -0.99
    assert 0.99 < actions.max() <= 1
    assert abs(actions.mean()) < 0.05  # Four standard errors of 2,000 numbers.
    assert actions.std() == pytest.approx(3**-0.5, abs=0.03)


def test_random_actions_follow_the_seed() -> None:
    assert not torch.equal(random_actions(0, seed=2), random_actions(0, seed=1))


# Classes of the user's own

USER_CODE = """
import torch

class Forwards:
    def __init__(self, device, gain=1.0, columns=1):
        self.device, self.gain, self.columns, self.ended = device, gain, columns, []

    def __call__(self, observations):
        self.seen = observations
        shape = (len(observations["policy"]), self.columns)
        return torch.full(shape, self.gain, dtype=torch.bfloat16)

class Remembering(Forwards):
    def reset(self, dones):
        self.ended.append(dones)

class Broken:
    def __init__(self, device):
        raise RuntimeError("no such weights")
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    """A file with policies."""
    file = tmp_path / "my_policies.py"
    file.write_text(USER_CODE, encoding="utf-8")
    return file


@pytest.mark.parametrize("as_module", [False, True])
def test_a_class_of_the_users_acts(user_file: Path, as_module: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(user_file.parent)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    reference = "my_policies" if as_module else user_file
    env = cartpole()
    policy = open_policy(job(f"{reference}:Forwards", config={"gain": 0.5}), env, CPU)
    actions = policy(env.get_observations())
    assert (actions.dtype, actions.shape) == (torch.float32, (NUM_ENVS, 1))
    assert episodes(env, policy)[..., 0].unique().tolist() == [0.5]


def test_a_policy_on_another_device_is_handed_its_observations_there(user_file: Path) -> None:
    env, meta = cartpole(), torch.device("meta")
    policy: Any = open_policy(job(f"{user_file}:Remembering"), env, meta)
    policy.begin(range(NUM_ENVS), seed=1)
    assert policy(env.get_observations()).device == CPU
    policy.reset(torch.zeros(NUM_ENVS, dtype=torch.bool))
    own = policy.policy
    assert own.device == meta
    assert own.seen["policy"].device == meta
    assert [(each.device, each.shape, each.dtype) for each in own.ended] == [(meta, (NUM_ENVS,), torch.bool)] * 2


def test_observations_on_the_policys_own_device_are_not_copied(user_file: Path) -> None:
    policy: Any = open_policy(job(f"{user_file}:Forwards"), cartpole(), CPU)
    policy(observations := cartpole().get_observations())
    assert policy.policy.seen is observations


def test_actions_of_a_wrong_shape_are_refused_with_both_shapes(user_file: Path) -> None:
    policy = open_policy(job(f"{user_file}:Forwards", config={"columns": 3}), env := cartpole(), CPU)
    with pytest.raises(UsageError, match=r"the shape \(5, 3\), but 5 environments with 1 actions each need \(5, 1\)"):
        policy(env.get_observations())


def test_what_a_constructor_raises_is_passed_on(user_file: Path) -> None:
    with pytest.raises(RuntimeError, match="no such weights"):
        open_policy(job(f"{user_file}:Broken"), cartpole(), CPU)


@pytest.mark.parametrize(
    ("reference", "cause"),
    [
        ("no_such_module:Policy", "No module named 'no_such_module'"),
        ("collections:Policy", "module 'collections' has no attribute 'Policy'"),
        ("latest", "Empty module name"),
    ],
)
def test_a_class_that_cannot_be_imported_is_named(reference: str, cause: str) -> None:
    with pytest.raises(UsageError, match=f"The policy '{reference}' cannot be imported .*{cause}.*: pass a .pt, "):
        open_policy(job(reference), cartpole(), CPU)


# Device of the policy


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What decides on the device of a policy, on a machine with two GPUs."""

    environ: dict[str, str] = field(default_factory=dict)
    device: str | None = None
    of_job: str | None = None
    env_device: str = "cpu"
    num_gpus: int = 2

    def device_of_policy(self) -> torch.device:
        """The decision."""
        of_machine: dict[str, Any] = {"environ": self.environ, "env_device": self.env_device, "num_gpus": self.num_gpus}
        return policy_device(job("zero", policy_device=self.of_job), self.device, **of_machine)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Asked(), "cpu"),
        (Asked(env_device="cuda:1"), "cuda:1"),
        (Asked(of_job="cpu", env_device="cuda:1"), "cpu"),
        (Asked(of_job="cuda:0", env_device="cuda:1"), "cuda:0"),
        (Asked(device="cuda:0", of_job="cpu", env_device="cuda:1"), "cuda:0"),
        (Asked(device="cuda", env_device="cuda:1"), "cuda:1"),
        (Asked(device="cuda"), "cuda:0"),
        (Asked(device="0", of_job="cpu"), "cuda:0"),
        (Asked(device="1"), "cuda:1"),
        (Asked(environ={"LOCAL_RANK": "1"}, device="0", of_job="cpu", env_device="cuda:1"), "cuda:1"),
        (Asked(environ={"LOCAL_RANK": "1"}, device="cpu", of_job="cpu", env_device="cuda:1"), "cuda:1"),
        (Asked(environ={"LOCAL_RANK": "1"}, num_gpus=0), "cpu"),
    ],
)
def test_the_device_of_a_policy(asked: Asked, expected: str) -> None:
    assert asked.device_of_policy() == torch.device(expected)


@pytest.mark.parametrize(
    "asked", [Asked(device="2"), Asked(device="-1"), Asked(device="cuda:2"), Asked(device="gpu"), Asked(of_job="mps")]
)
def test_a_device_that_is_not_there_is_refused(asked: Asked) -> None:
    with pytest.raises(UsageError, match="but the devices here are cpu, cuda:0, cuda:1: pass one"):
        asked.device_of_policy()
