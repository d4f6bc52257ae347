"""Policies that observe images: trained, checkpointed, exported, and refused where their networks do not take them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnxruntime
import pytest
import torch
from rsl_rl.utils import split_and_pad_trajectories
from support.learners import RslRlLoop, loop_on, train
from tensordict import TensorDict

from shoal import mdp
from shoal.config import CnnConfig, GrpoConfig, ModelConfig, TrainConfig
from shoal.config.rsl_rl import to_rsl_rl
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.learn.export import exportable_policy, write_policy
from shoal.learn.learner import _refuse_other_models
from shoal.learn.rsl_rl.cnn import RecurrentCNNModel, SpatialSoftmax, encoder_of
from shoal.tasks.cartpole.mujoco_task import SwingupDepth
from shoal.tasks.registry import resolve

if TYPE_CHECKING:
    from pathlib import Path

NUM_ENVS = 3
AGENT: Any = resolve("Cartpole-Swingup-Depth").agent
AGENT = replace(AGENT, num_steps_per_env=4, algorithm=replace(AGENT.algorithm, num_mini_batches=2))
BOTH = replace(
    AGENT,
    obs_groups={"actor": ("policy", "critic", "last"), "critic": ("critic",)},
    actor=replace(AGENT.actor, obs_normalization=True),
)
SOFT = replace(AGENT.actor.cnn, spatial_softmax_temperature=0.5)
SHARED = replace(
    AGENT,
    obs_groups={"actor": ("policy",), "critic": ("policy", "critic")},
    actor=replace(AGENT.actor, cnn=SOFT),
    critic=replace(AGENT.critic, class_name="CNNModel", cnn=SOFT),
    algorithm=replace(AGENT.algorithm, share_cnn_encoders=True),
)
RECURRENT = replace(
    BOTH,
    actor=replace(BOTH.actor, rnn_type="gru", rnn_hidden_dim=8, cnn=SOFT),
    algorithm=replace(AGENT.algorithm, num_mini_batches=1),
)
AGENTS = {
    "images alone": AGENT,
    "images and numbers": BOTH,
    "a shared encoder with a spatial softmax": SHARED,
    "a memory of images and numbers": RECURRENT,
}


def built() -> WarpVecEnv:
    last = mdp.Obs("camera_depth", sensor_name="eye", cutoff_distance=4.0)
    config = SwingupDepth.config.change(engine="mujoco", observations={"last": {"depth": last}})
    return WarpVecEnv(SwingupDepth(config, num_envs=NUM_ENVS, device="cpu", seed=0))


@pytest.fixture(scope="module")
def env() -> WarpVecEnv:
    return built()


def loop_of(env: WarpVecEnv, agent: Any, seed: int = 0) -> RslRlLoop:
    config = TrainConfig(task="Cartpole-Swingup-Depth", num_envs=NUM_ENVS, max_iterations=2, agent=agent)
    return loop_on(env, config, seed=seed)


@pytest.fixture(scope="module", params=AGENTS)
def loop(env: WarpVecEnv, request: pytest.FixtureRequest) -> RslRlLoop:
    """A training that has ended."""
    made = loop_of(env, AGENTS[request.param])
    before = {name: each.clone() for name, each in made.learner.modules["actor"].named_parameters()}
    train(made)
    after = dict(made.learner.modules["actor"].named_parameters())
    assert [name for name, each in before.items() if "cnn" in name and torch.equal(each, after[name])] == []
    return made


def random_observations(env: WarpVecEnv) -> TensorDict:
    random = torch.Generator().manual_seed(5)
    groups = {name: torch.rand(NUM_ENVS, *rows.shape[1:], generator=random) for name, rows in env._live.items()}
    return TensorDict(groups, batch_size=[NUM_ENVS])


def test_a_checkpoint_restores_the_convolutions(loop: RslRlLoop, env: WarpVecEnv) -> None:
    seen, other = random_observations(env), loop_of(env, loop.config.agent, seed=1)
    policy, theirs = loop.learner.policy(), other.learner.policy()
    with torch.inference_mode():
        policy.reset()
        wanted = policy(seen)
        assert not torch.equal(theirs(seen), wanted)
        other.learner.restore(loop.learner.state(), weights_only=False)
        theirs.reset()
        assert torch.equal(theirs(seen), wanted)


def test_environments_go_on_with_the_images_that_they_had(env: WarpVecEnv) -> None:
    env.restart(seed=3)
    for _ in range(4):
        env.step(torch.ones(NUM_ENVS, 1))
    rows, other = {name: row.clone() for name, row in env.rows().items()}, built()
    other.put_rows(rows)
    for _ in range(3):
        ours, theirs = (each.step(-torch.ones(NUM_ENVS, 1))[0]["policy"] for each in (env, other))
        assert torch.equal(ours, theirs)
        assert (ours[:, 0] != ours[:, 2]).any()  # The pole moves in the stack.


def test_an_exported_policy_takes_images_row_by_row(loop: RslRlLoop, env: WarpVecEnv, tmp_path: Path) -> None:
    exported = exportable_policy(loop.learner, env, name="depth", checkpoint="", iteration=2)
    onnx, program = write_policy(exported, tmp_path / "policy.onnx")
    seen, session = random_observations(env), onnxruntime.InferenceSession(onnx)
    metadata = session.get_modelmeta().custom_metadata_map
    groups = json.loads(metadata["observation_groups"])
    assert groups == (["critic", "policy", "last"] if loop.config.agent in (BOTH, RECURRENT) else ["policy"])
    at = groups.index("policy")
    assert json.loads(metadata["observation_shapes"])[at] == [3, 24, 48]
    assert json.loads(metadata["observation_columns"])[at] == 3 * 24 * 48
    assert json.loads(metadata["observations"])["policy"][0]["shape"] == [3, 24, 48]
    flat = torch.cat([seen[group].flatten(1) for group in groups], dim=1)
    policy, exported = loop.learner.policy(), torch.export.load(program).module()
    memory = [torch.zeros(1, NUM_ENVS, 8)] if loop.config.agent is RECURRENT else []
    policy.reset()
    for _ in range(2):  # A memory makes another action of the same image.
        inputs = dict(zip([each.name for each in session.get_inputs()], (flat, *memory), strict=True))
        made = session.run(None, {name: each.numpy() for name, each in inputs.items()})
        with torch.inference_mode():
            wanted = policy(seen)
            there = exported(*inputs.values())
        torch.testing.assert_close(there[0] if memory else there, wanted, atol=1e-5, rtol=0)
        torch.testing.assert_close(torch.from_numpy(made[0]), wanted, atol=1e-5, rtol=0)
        memory = [torch.from_numpy(each) for each in made[1:]]


def test_whole_trajectories_give_what_their_steps_give() -> None:
    steps, width, groups = 5, 3, {"actor": ["numbers", "image"]}
    random = torch.Generator().manual_seed(1)
    shapes = {"numbers": (4,), "image": (1, 8, 9)}
    rows = {name: torch.rand(steps, NUM_ENVS, *shape, generator=random) for name, shape in shapes.items()}
    seen, dones = TensorDict(rows, batch_size=[steps, NUM_ENVS]), torch.zeros(steps, NUM_ENVS)
    dones[1, 0] = dones[3, 2] = 1
    cnn = {"output_channels": [3], "kernel_size": [3], "stride": [2]}
    model = RecurrentCNNModel(seen[0], groups, "actor", 2, cnn_cfg=cnn, rnn_type="gru", rnn_hidden_dim=width)
    by_step = []
    with torch.no_grad():
        for at in range(steps):
            by_step.append(model(seen[at]))
            model.reset(dones[at])
        padded, masks = split_and_pad_trajectories(seen, dones)
        memory = torch.zeros(1, NUM_ENVS + 2, width)  # Each begins with none.
        whole = model(padded, masks=masks, hidden_state=memory)
    torch.testing.assert_close(whole, torch.stack(by_step))
    assert not torch.allclose(whole[1, 1], model(seen[1])[1]), "the step before counts"


def test_a_spatial_softmax_is_the_position_of_what_a_channel_responds_to() -> None:
    features = torch.zeros(1, 3, 3, 5)
    features[0, 0, 0, 4] = features[0, 1, 2, 1] = 9.0
    seen = SpatialSoftmax(3, 5, temperature=0.1)(features)
    torch.testing.assert_close(seen, torch.tensor([[-1.0, 1.0, 1.0, -0.5, 0.0, 0.0]]))
    seen = SpatialSoftmax(1, 2, temperature=0.5)(torch.tensor([[[[1.0, 0.0]]]]))
    odds = math.exp(1.0 / 0.5)  # That it is the left one, at -1.
    assert float(seen[0, 1]) == pytest.approx((1 - odds) / (1 + odds))


def test_weights_of_an_encoder_have_mjlabs_names() -> None:
    encoder = encoder_of((3, 24, 48), to_rsl_rl(SOFT))
    layers = [f"cnn.{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")]
    assert [*encoder.state_dict()] == [*layers, "spatial_softmax.pos_x", "spatial_softmax.pos_y"]


def test_a_shared_encoder_moves_once_by_the_gradients_of_actor_and_critic(env: WarpVecEnv) -> None:
    steps = {"optimizer": "sgd", "schedule": "fixed", "learning_rate": 1.0, "max_grad_norm": 1e-3}
    once = replace(SHARED.algorithm, num_learning_epochs=1, num_mini_batches=1, **steps)
    learner: Any = loop_of(env, replace(SHARED, algorithm=once)).learner
    actor, critic = learner.modules["actor"], learner.modules["critic"]
    assert critic.cnns is actor.cnns
    before = torch.nn.utils.parameters_to_vector(actor.parameters())
    with torch.inference_mode():
        for _ in range(SHARED.num_steps_per_env):
            seen = env.get_observations()
            learner.alg.act(seen)
            _, rewards, dones, extras = env.step(torch.ones(NUM_ENVS, 1))
            learner.alg.process_env_step(seen, rewards, dones, extras)
        learner.alg.compute_returns(env.get_observations())
    learner.alg.update()
    moved = torch.nn.utils.parameters_to_vector(actor.parameters()) - before
    assert float(moved.norm()) == pytest.approx(1e-3, rel=1e-2)  # By a gradient of that norm.


CNN = AGENT.actor.cnn
WRONG = {
    "a perceptron": (
        replace(AGENT, actor=replace(AGENT.actor, class_name="MLPModel", cnn=CnnConfig())),
        "agent.actor.class_name is 'MLPModel', but 'policy' is images: set it to 'CNNModel', or name other groups in",
    ),
    "convolutions of numbers": (
        replace(AGENT, critic=ModelConfig(class_name="CNNModel", cnn=CNN)),
        "agent.critic.class_name is 'CNNModel', but none of its groups is images: set it to 'MLPModel'",
    ),
    "kernels larger than the image": (
        replace(AGENT, actor=replace(AGENT.actor, cnn=replace(CNN, kernel_size=(5, 13)))),
        "agent.actor.cnn does not fit the images of 'policy', 24 rows of 48 pixels",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_network_that_does_not_take_its_groups_is_refused_in_one_sentence(wrong: str, env: WarpVecEnv) -> None:
    agent, message = WRONG[wrong]
    with pytest.raises(UsageError, match=message):
        loop_of(env, agent)


def test_an_encoder_that_is_shared_needs_the_images_of_both_networks() -> None:
    images = TensorDict({name: torch.zeros(2, 1, 24, 48) for name in ("left", "right")}, batch_size=[2])
    agent = replace(SHARED, obs_groups={"actor": ("left",), "critic": ("left", "right")})
    with pytest.raises(UsageError, match="one of actor and critic does not observe the images 'right': add them"):
        _refuse_other_models(agent, images)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelConfig(class_name="CNNModel"), "'CNNModel', but cnn.output_channels is empty"),
        (
            lambda: ModelConfig(cnn=CNN),
            "class_name is 'MLPModel', which does not take it: set class_name to 'CNNModel'",
        ),
        (
            lambda: replace(CNN, kernel_size=(3,)),
            r"kernel_size is \(3,\), but must have a number of 1 or more for each",
        ),
        (lambda: replace(CNN, stride=(1, 0)), r"stride is \(1, 0\), but must have a number of 1 or more for each"),
        (
            lambda: replace(SHARED, critic=AGENT.critic),
            "share_cnn_encoders is True, but agent.actor and agent.critic are not both a CNNModel with the same cnn",
        ),
        (lambda: GrpoConfig(actor=AGENT.actor), "agent.actor must be a perceptron with a distribution for GRPO"),
    ],
)
def test_convolutions_that_cannot_be_are_refused_in_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
