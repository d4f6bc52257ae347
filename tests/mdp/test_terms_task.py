"""Tasks made of terms: what each declaration does in a step, and what is refused."""

# ruff: noqa: ARG001, ARG003

from __future__ import annotations

from typing import Annotated, Any

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.errors import ShoalError, UsageError
from shoal.mdp.annotations import Before, JointId, Joints, Memory, Numbers, SiteId
from shoal.mdp.config import TermsConfig, members, task_config
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Command, Done, Event, Metric, Obs, Reward

ARM = """
<mujoco>
  <worldbody>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" damping="0.1" limited="true" range="-2 2"/>
      <geom name="upper" type="capsule" size="0.03" fromto="0 0 0 0 0 -0.3"/>
      <body name="lower" pos="0 0 -0.3">
        <joint name="elbow" axis="0 1 0" damping="0.1"/>
        <geom name="lower" type="capsule" size="0.03" fromto="0 0 0 0 0 -0.3"/>
        <site name="tip" pos="0 0 -0.3"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="shoulder" joint="shoulder" kp="20" kv="1" forcelimited="true" forcerange="-5 5"/>
    <position name="elbow" joint="elbow" kp="20" kv="1"/>
  </actuator>
  <keyframe><key name="home" qpos="0.1 -0.2"/></keyframe>
</mujoco>
"""


@wp.func
def counted(state: Any, env: int, memory: Memory) -> float:
    """Return how often it was called since the episode began."""
    memory[env, 0] = memory[env, 0] + 1.0
    return memory[env, 0]


@wp.func
def elapsed(state: Any, env: int) -> float:
    """Return the steps since the episode began."""
    return wp.float32(state.episode_length[env])


@wp.func
def weighed(state: Any, env: int, joints: Joints, factors: Numbers) -> float:
    """Return the sum of joint positions, each with a factor."""
    total = wp.float32(0.0)
    for i in range(joints.shape[0]):
        total += factors[i] * state.qpos[env, joints[i].qpos]
    return total


@wp.func
def tip_height(state: Any, env: int, site: SiteId) -> float:
    """Return the height of a site [m]."""
    return state.site_xpos[env, site][2]


@wp.func
def longer_than(state: Any, env: int, steps: int) -> bool:
    """Whether the episode is in its step `steps` at least."""
    return state.episode_length[env] + 1 >= steps


@wp.func
def start_at(state: Any, env: int, joints: Joints, at: float) -> None:
    """Put joints at a position."""
    for i in range(joints.shape[0]):
        state.qpos[env, joints[i].qpos] = at


@wp.func
def kick(state: Any, env: int, joint: JointId, speed: float) -> None:
    """Set the speed of a joint."""
    state.qvel[env, joint] = speed


@wp.func
def height(state: Any, env: int) -> float:
    """Return the height of the first site [m]."""
    return state.site_xpos[env, 0][2]


@wp.func
def risen(state: Any, env: int, before: Annotated[Memory, Before(height)]) -> float:
    """Return how far it has risen in the step [m]."""
    return height(state, env) - before[env, 0]


CONFIG = task_config(
    TermsConfig,
    physics_dt=0.005,
    decimation=2,
    actions={"targets": Action("joint_position", actuators=".*", scale=0.5)},
    observations={
        "policy": {
            "joint_pos": Obs("joint_pos_rel", joints=".*"),
            "elapsed": Obs(elapsed, history_length=3),
            "last": Obs(elapsed, scale=0.5, clip=4.0),
        },
        "critic": {"joint_pos": Obs("joint_pos_rel", joints=".*", noise=0.1)},
    },
    rewards={
        "counted": Reward(counted, weight=1.0),
        "weighed": Reward(weighed, weight=2.0, joints=".*", factors={"should.*": 1.0, "elbow": 10.0}),
        "tip": Reward(tip_height, weight=0.5, site="tip"),
    },
    terminations={"late": Done(longer_than, steps=5), "cut": Done(longer_than, time_out=True, steps=100)},
    events={"start": Event(start_at, "reset", joints=".*", at=0.25)},
    metrics={"tip_height": Metric(tip_height, site="tip")},
)


class Arm(TermsTask[TermsConfig]):
    """Two joints."""

    config = CONFIG

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(ARM)


def build(num_envs: int = 4, **changes: Any) -> Arm:
    return Arm(CONFIG.change(**changes), num_envs=num_envs, device="cpu", seed=3)


def stepped(task: Arm, count: int) -> list[dict[str, np.ndarray]]:
    seen = []
    for _ in range(count):
        task.step()
        seen.append({name: array.numpy().copy() for name, array in task.arrays.items()})
    return seen


def test_a_step_computes_each_term_by_its_declaration() -> None:
    task = build()
    before = task.qpos.numpy().copy()
    np.testing.assert_allclose(before, 0.25)  # The reset event came after the engine's own reset.
    np.testing.assert_allclose(task.obs["policy"].numpy()[:, :2], before - [0.1, -0.2], atol=1e-6)  # Of the keyframe.
    task.actions.assign(np.full((4, 2), 0.4, dtype=np.float32))
    task.step()
    np.testing.assert_allclose(task.ctrl.numpy(), [[0.1 + 0.2, -0.2 + 0.2]] * 4, atol=1e-6)
    qpos, tips = task.qpos.numpy(), task.data("site_xpos").numpy()[:, 0, 2]
    expected = np.stack([np.ones(4), qpos @ [1.0, 10.0], tips], axis=1)
    np.testing.assert_allclose(task.terms.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(task.reward.numpy(), expected @ [1.0, 2.0, 0.5] * task.step_dt, rtol=1e-5)
    np.testing.assert_allclose(task.metric_values.numpy()[:, 0], tips)


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_a_reward_has_what_was_before_the_step_in_the_first_of_an_episode_too(engine: str) -> None:
    task = build(engine=engine, rewards={"risen": Reward(risen, weight=1.0)})
    data = mujoco.MjData(task.model)
    data.qpos[:] = 0.25
    mujoco.mj_kinematics(task.model, data)
    task.actions.fill_(1.0)
    for step in range(14):
        before = data.site_xpos[0, 2] if step % 5 == 0 else task.data("site_xpos").numpy()[:, 0, 2].copy()
        task.step()
        assert task.done.numpy().all() == (step % 5 == 4)
        if step % 5 < 4:
            gone = task.data("site_xpos").numpy()[:, 0, 2] - before
            assert np.abs(gone).min() > 1e-5
            np.testing.assert_allclose(task.terms.numpy()[:, 3], gone, atol=1e-6)


def test_names_and_columns_follow_from_the_declarations() -> None:
    task = build()
    assert task.observations == {"policy": 2 + 3 + 1, "critic": 2}
    assert task.num_actions == 2
    assert task.reward_terms == ("counted", "weighed", "tip")
    assert task.metrics == ("tip_height",)


def test_an_episode_ends_by_the_named_termination_and_memory_begins_anew() -> None:
    seen = stepped(build(), 7)
    assert [each["done"].all() for each in seen] == [False] * 4 + [True] + [False] * 2
    assert seen[4]["done_terms"].tolist() == [[True, False]] * 4
    assert [each["terms"][0, 0] for each in seen] == [1, 2, 3, 4, 5, 1, 2]


def test_history_is_oldest_first_and_begins_with_the_first_value() -> None:
    task = build()
    first = task.obs["policy"].numpy()[0, 2:5].tolist()
    seen = [each["observations/policy"][0, 2:5].tolist() for each in stepped(task, 6)]
    assert [first, *seen] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 0], [0, 0, 1]]
    assert task.obs["policy"].numpy()[0, 5] == 0.5  # Scaled.


def test_a_delay_is_drawn_for_each_episode_and_is_at_most_what_was_declared() -> None:
    observed = {
        "policy": {"joint_pos": None, "elapsed": None, "last": Obs(elapsed, delay_max_lag=2, delay_hold_prob=1.0)},
        "critic": {"x": Obs(elapsed)},
    }
    task = build(num_envs=64, observations=observed, terminations={"late": None})
    seen = stepped(task, 6)
    ages = np.stack([each["observations/critic"][:, 2] - each["observations/policy"][:, 0] for each in seen])
    assert (ages[3:] == ages[3]).all()
    assert sorted({*ages[3].tolist()}) == [0, 1, 2]
    assert (ages[0] <= 1).all()  # Nothing is older than the episode.


def test_noise_is_bounded_and_another_in_each_step_and_off_where_undisturbed() -> None:
    task = build(num_envs=64)
    task.step()
    noise = task.obs["critic"].numpy() - task.obs["policy"].numpy()[:, :2]
    assert 0.05 < np.abs(noise).max() <= 0.1
    assert len(np.unique(noise)) > 100
    task = Arm(CONFIG.undisturbed(), num_envs=2, device="cpu", seed=3)
    assert (task.obs["critic"].numpy() == task.obs["policy"].numpy()[:, :2]).all()


def test_events_in_intervals_happen_between_the_two_times() -> None:
    kicks = Event(kick, "interval", interval=(0.03, 0.05), joint="elbow", speed=50.0)
    task = build(num_envs=64, events={"kick": kicks}, terminations={"late": None})
    fast = np.stack([each["data/qvel"][:, 1] == 50.0 for each in stepped(task, 40)])
    gaps = np.concatenate([np.diff(np.flatnonzero(column)) for column in fast.T])
    assert {*gaps.tolist()} <= {3, 4, 5}
    assert len({*gaps.tolist()}) > 1


def test_commands_are_drawn_in_each_episode_and_in_intervals() -> None:
    twist = Command(
        "uniform_velocity",
        columns={"lin_vel_x": "m/s", "lin_vel_y": "m/s", "ang_vel_z": "rad/s"},
        resampling_time=(0.02, 0.02),
        lin_vel_x=(1.0, 2.0),
        lin_vel_y=(0.0, 0.0),
        ang_vel_z=(-3.0, -2.0),
        rel_standing_envs=0.25,
    )
    task = build(
        num_envs=400,
        commands={"twist": twist},
        observations={"policy": {"twist": Obs("velocity_command", command="twist")}},
    )
    drawn = task.command_array.numpy().copy()
    stands = (drawn == 0.0).all(axis=1)
    assert 0.15 < stands.mean() < 0.35
    assert ((drawn[~stands] >= [1, 0, -3]) & (drawn[~stands] <= [2, 0, -2])).all()
    assert [(name, each.low, each.high, each.unit) for name, each in task.commands.items()] == [
        ("lin_vel_x", 1.0, 2.0, "m/s"),
        ("lin_vel_y", 0.0, 0.0, "m/s"),
        ("ang_vel_z", -3.0, -2.0, "rad/s"),
    ]
    seen = [each["commands"] for each in stepped(task, 2)]
    assert (seen[0] == drawn).all()
    assert (seen[1] != drawn).any(axis=1).mean() > 0.8


def test_another_weight_or_parameter_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    build()
    monkeypatch.setattr(wp.Module, "_compile", None)
    changed = Arm(
        CONFIG.change(rewards={"tip": Reward(tip_height, weight=3.0, site="tip")}), num_envs=2, device="cpu", seed=3
    )
    assert changed.weights.numpy()[2] == pytest.approx(3.0 * changed.step_dt)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rewards": {"x": Reward("lin_vel_z_l3", 1.0)}},
            "rewards.x is 'lin_vel_z_l3', which is no function of shoal.mdp.rewards. Did you mean 'lin_vel_z_l2'?",
        ),
        (
            {"rewards": {"x": Reward(tip_height, 1.0, sight="tip")}},
            "rewards.x.sight is given, but tip_height() has no such parameter. Did you mean 'site'?",
        ),
        ({"rewards": {"x": Reward(tip_height, 1.0)}}, "rewards.x.site is missing: tip_height() needs it."),
        ({"rewards": {"x": Reward(tip_height, 1.0, site=None)}}, "rewards.x.site is missing: tip_height() needs it."),
        (
            {"rewards": {"x": Reward(tip_height, 1.0, site="top")}},
            "rewards.x.site is 'top', which matches no site of the model. Did you mean 'tip'?",
        ),
        (
            {"rewards": {"x": Reward(weighed, 1.0, joints="elbo", factors=1.0)}},
            "rewards.x.joints is 'elbo', which matches no joint of the model. Did you mean 'elbow'?",
        ),
        (
            {"rewards": {"x": Reward(weighed, 1.0, joints="(", factors=1.0)}},
            "rewards.x.joints is '(', which is no pattern that Python understands",
        ),
        (
            {"rewards": {"x": Reward(weighed, 1.0, joints=".*", factors={"elbow": 1.0})}},
            "rewards.x.factors has no pattern for 'shoulder'",
        ),
        (
            {"rewards": {"x": Reward(weighed, 1.0, joints=".*", factors={".*": 1.0, "elbow": 2.0})}},
            "rewards.x.factors has two patterns for 'elbow', '.*' and 'elbow': each name must match one.",
        ),
        (
            {"rewards": {"x": Reward(weighed, 1.0, joints=".*", factors={".*": 1.0, "wrist": 2.0})}},
            "rewards.x.factors has the pattern 'wrist', which matches none of shoulder, elbow.",
        ),
        (
            {"rewards": {"x": Reward(weighed, 1.0, joints=".*", factors={"elbow": 1.0, "(": 1.0})}},
            "A key of rewards.x.factors is '(', which is no pattern that Python understands",
        ),
        (
            {"events": {"x": Event(kick, "reset", joint=".*", speed=1.0)}},
            "which matches more than one joint (shoulder, elbow)",
        ),
        (
            {"observations": {"policy": {"x": Obs("velocity_command", command="twist")}}},
            "observations.policy.x.command is 'twist', but the task does not declare a command of that name.",
        ),
    ],
)
def test_what_is_misspelt_is_refused_with_the_nearest_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises((ShoalError, UsageError)) as refused:
        build(**changes)
    assert said in str(refused.value)


def test_what_is_out_of_range_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError, match=r"^env\.observations\.policy\.last\.history_length is -1, but must be at le"):
        CONFIG.change(observations={"policy": {"last": Obs(elapsed, history_length=-1)}})
    with pytest.raises(UsageError, match=r"^env\.events\.x\.speed is \(2\.0, 1\.0\), but must be finite, the smaller"):
        CONFIG.change(events={"x": Event(kick, "reset", speed=(2.0, 1.0))})
    with pytest.raises(UsageError, match=r"^env\.rewards\.x\.std is 0\.0, but must be above 0\."):
        CONFIG.change(rewards={"x": Reward("track_linear_velocity", 1.0, command="twist", std=0.0)})


@wp.func
def misspelt(state: Any, env: int) -> float:
    """Read what does not exist."""
    return state.qpso[env, 0]


def test_a_field_that_does_not_exist_is_named() -> None:
    with pytest.raises(ShoalError, match=r"A term reads state.qpso, .*Did you mean 'qpos'\?"):
        build(rewards={"x": Reward(misspelt, 1.0)})


def test_terms_are_added_replaced_and_removed() -> None:
    changed = CONFIG.change(rewards={"tip": None, "more": Reward(counted, 4.0)}, decimation=3)
    assert list(changed.terms("rewards")) == ["counted", "weighed", "more"]
    assert changed.decimation == 3
    again = changed.change(observations={"policy": {"elapsed": None}})
    assert list(again.terms("rewards")) == ["counted", "weighed", "more"]
    assert list(members(again.terms("observations")["policy"])) == ["joint_pos", "last"]
    with pytest.raises(ShoalError, match="There is no term 'tips' to remove"):
        CONFIG.change(rewards={"tips": None})
    with pytest.raises(ShoalError, match=r"'x' of rewards is ObsTerm_elapsed, but must be declared by Reward\(...\)"):
        CONFIG.change(rewards={"x": Obs(elapsed)})


def test_a_change_of_some_fields_of_a_term_keeps_the_others() -> None:
    changed = CONFIG.change(
        rewards={"weighed": {"weight": 3}},
        observations={"critic": {"joint_pos": {"biased": True}}},
        events={"start": {"at": 0.5}},
    )
    reward, event = changed.rewards.weighed, changed.events.start  # pyright: ignore[reportAttributeAccessIssue]
    observed = members(changed.terms("observations")["critic"])["joint_pos"]
    assert (reward.weight, reward.joints, reward.factors) == (3.0, ".*", {"should.*": 1.0, "elbow": 10.0})
    assert (event.mode, event.at, event.joints) == ("reset", 0.5, ".*")
    assert (observed.biased, observed.noise) == (True, 0.1)
    assert changed.terms("rewards")["tip"] == CONFIG.terms("rewards")["tip"]
    with pytest.raises(ShoalError, match=r"rewards.weighed.facters is given, but weighed\(\) has no such parameter"):
        build(rewards={"weighed": {"facters": 1.0}})


@pytest.mark.parametrize("is_observed", [True, False])
def test_a_reset_derives_the_fields_that_observations_read(is_observed: bool) -> None:
    height = {"height": Obs(tip_height, site="tip")} if is_observed else {}
    config = task_config(
        TermsConfig,
        engine="mjwarp",
        actions={"targets": Action("joint_position", actuators=".*", scale=0.5)},
        observations={"policy": {"joint_pos": Obs("joint_pos_rel", joints=".*"), **height}},
        rewards={"tip": Reward(tip_height, weight=1.0, site="tip")},
        terminations={"late": Done(longer_than, steps=5)},
        events={"start": Event(start_at, "reset", joints=".*", at=0.25)},
    )
    task = Arm(config, num_envs=2, device="cpu", seed=3)
    task.actions.fill_(1.0)
    for _ in range(5):
        task.step()
    assert task.done.numpy().all()
    np.testing.assert_allclose(task.qpos.numpy(), 0.25)
    data = mujoco.MjData(task.model)
    data.qpos[:] = 0.25
    mujoco.mj_kinematics(task.model, data)
    heights = task.data("site_xpos").numpy()[:, 0, 2]
    # What rewards alone read follows from the next physics step, which begins there.
    assert np.allclose(heights, data.site_xpos[0, 2], atol=1e-6) == is_observed
