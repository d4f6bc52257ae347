"""Curricula: numbers that change with the steps of the training, and nothing that is compiled again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import warp as wp
from support.arm_task import Arm
from support.arm_task import speeds as speeds_of_warp
from support.arm_task import weighed as weighed_of_warp
from support.learners import tiny_agent, tiny_config, tiny_loop, train

from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import ShoalError, UsageError
from shoal.learn.state import restore_curriculum
from shoal.mdp.curricula import Curricula
from shoal.mdp.noise import Gaussian
from shoal.mdp.terms import Command, Curriculum, CurriculumTerm, Event, Obs, Reward, changed


def build(**changes: Any) -> Arm:
    return Arm(Arm.config.change(**changes), num_envs=8, device="cpu", seed=3)


def rewarded(task: Arm) -> np.ndarray:
    """Return the weight of `reach` in each environment, from the reward of a step."""
    others = task.terms.numpy()[:, 1:] @ [-0.1, 0.01]
    return (task.reward.numpy() / task.step_dt - others) / task.terms.numpy()[:, 0]


def test_weights_and_parameters_change_at_their_steps_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    task = build()
    monkeypatch.setattr(wp.Module, "_compile", None)
    weights: list[float] = []
    logged: list[dict[str, float]] = []
    for _ in range(22):
        task.step()
        logged.append(dict(task.log))
        weights.append(round(float(np.median(rewarded(task))), 3))
        # The metric has the declared width, and the reward that of the curriculum.
        if task.curricula.steps <= 20:
            assert (task.terms.numpy()[:, 0] > task.metric_values.numpy()[:, 0]).all()
    assert weights == [0.5] * 20 + [2.0] * 2
    assert logged[0] == {
        "Curriculum/reach/weight": 0.5,
        "Curriculum/reach/std": 1.0,
        "Curriculum/spins/limit": 0.4,  # As declared.
    }
    assert [each["Curriculum/spins/limit"] for each in logged] == [0.4] * 12 + [0.35] * 10


def test_ranges_of_commands_change_before_the_first_episode_and_later() -> None:
    columns = {"lin_vel_x": "m/s", "lin_vel_y": "m/s", "ang_vel_z": "rad/s"}
    far = {"lin_vel_x": (-3.0, 3.0), "lin_vel_y": (-1.0, 1.0), "ang_vel_z": (-1.0, 1.0)}
    times: Any = {"resampling_time": (0.01, 0.01), "rel_standing_envs": 0.0}
    slow = Curriculum("commands_vel", command_name="twist", steps=(0, 5), lin_vel_x=((0.1, 0.2), (2, 3)))
    task = build(
        commands={"twist": Command("uniform_velocity", columns=columns, **far, **times)}, curricula={"x": slow}
    )
    speeds = [task.command_array.numpy()[:, 0].copy()]
    for _ in range(8):
        task.step()
        speeds.append(task.command_array.numpy()[:, 0].copy())
    ranges = [(0.1, 0.2)] * 6 + [(2.0, 3.0)] * 3
    assert all(((low <= each) & (each <= high)).all() for (low, high), each in zip(ranges, speeds, strict=True))
    assert (task.log["Curriculum/x/lin_vel_x_min"], task.log["Curriculum/x/lin_vel_x_max"]) == (2.0, 3.0)


def test_an_export_has_the_ranges_that_the_curriculum_of_its_checkpoint_had_come_to() -> None:
    columns = {"lin_vel_x": "m/s", "lin_vel_y": "m/s", "ang_vel_z": "rad/s"}
    ranges: Any = {"lin_vel_x": (-0.1, 0.1), "lin_vel_y": (0.0, 0.2), "ang_vel_z": (-1.0, 1.0)}
    twist = Command("uniform_velocity", columns=columns, resampling_time=(1.0, 1.0), rel_standing_envs=0.0, **ranges)
    wider = Curriculum("commands_vel", command_name="twist", steps=(5, 9), lin_vel_x=((-0.7, 0.3), (-2, 2)))
    task = build(commands={"twist": twist}, curricula={"x": wider})
    for steps, x in ((0, (-0.1, 0.1)), (7, (-0.7, 0.3)), (9, (-2.0, 2.0))):
        restore_curriculum(WarpVecEnv(task), {"infos": {"curriculum": {"steps": [2 * steps, 2]}}})
        found = [(each["low"], each["high"]) for each in task.deployment()["commands"]["twist"]]
        assert found == [x, (0.0, 0.2), (-1.0, 1.0)]


def test_a_resumed_curriculum_goes_on_from_the_steps_of_all_ranks() -> None:
    task, resumed = build(), build()
    env, other = WarpVecEnv(task), WarpVecEnv(resumed)
    for _ in range(21):
        task.step()
    pooled = {name: 3 * counts for name, counts in env.curriculum().items()}  # As of three ranks.
    other.set_curriculum(pooled)
    assert resumed.log == task.log
    for each in (task, resumed):
        each.step()
    assert other.curriculum()["steps"].tolist() == env.curriculum()["steps"].tolist() == [22, 1]
    np.testing.assert_allclose(rewarded(resumed), 2.0, rtol=1e-3)


def test_play_and_evaluate_have_the_declared_numbers() -> None:
    task = Arm(Arm.config.in_play(), num_envs=8, device="cpu", seed=3)
    task.step()
    np.testing.assert_allclose(rewarded(task), 1.0, rtol=1e-3)
    assert (dict(task.log), task.curriculum()) == ({}, {})


def by_metric(**changes: Any) -> Arm:
    """Build an arm whose reward and noise follow two metrics."""
    weights = Curriculum(
        "reward_curriculum", reward_name="reach", when="Metrics/reached", above=(0.2, 0.5), weight=(2.0, 4.0)
    )
    noise = Curriculum(
        "observation_curriculum",
        observation_name="policy.speeds.noise",
        when="Episode_Termination/spins",
        below=(0.5,),
        std=(0.3,),
    )
    speeds = Obs(speeds_of_warp, joints=".*", noise=Gaussian(0.1))
    observations = {"policy": {"speeds": speeds}}
    return build(curricula={"reach": weights, "spins": None, "noise": noise}, observations=observations, **changes)


def test_stages_follow_a_metric_one_in_each_iteration_and_stay() -> None:
    task = by_metric()
    seen: list[Any] = []
    rows = ({}, {"Metrics/reached": 0.1}, {"Metrics/reached": 0.9}, {"Metrics/reached": 0.9}, {"Metrics/reached": 0.9})
    for row in (*rows, {"Metrics/reached": 0.0}, {"Metrics/reached": math.nan, "Episode_Termination/spins": 0.4}):
        task.follow_metrics(row)
        task.step()
        log = task.log
        seen.append((log["Curriculum/reach/stage"], log["Curriculum/reach/weight"], log["Curriculum/noise/std"]))
        np.testing.assert_allclose(rewarded(task), log["Curriculum/reach/weight"], rtol=1e-3)
    assert [each[:2] for each in seen] == [(0, 1.0), (0, 1.0), (1, 2.0), (2, 4.0), (2, 4.0), (2, 4.0), (2, 4.0)]
    assert [each[2] for each in seen] == [0.1] * 6 + [0.3]
    assert task.numbers.numpy()[task.binder.positions["observations.policy.speeds.noise.std"]] == np.float32(0.3)


def weakest(metrics: Any) -> float:
    """Return the lower of two metrics."""
    return min(metrics.get(name, 0.0) for name in ("Metrics/reached", "Train/mean_reward"))


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_function_may_make_one_number_of_all_metrics(*, is_changed: bool) -> None:
    term = curriculum(steps=(), when="Metrics/reached" if is_changed else weakest, above=(0.5, 0.6))
    term = changed(term, {"when": weakest}) if is_changed else term
    task = build(curricula={"spins": None, "reach": term})
    for row, stage in (({"Metrics/reached": 9.0}, 0), ({"Metrics/reached": 9.0, "Train/mean_reward": 0.5}, 1)):
        task.follow_metrics(row)
        assert task.log["Curriculum/reach/stage"] == stage


def test_stages_are_in_checkpoints_and_those_of_several_ranks_are_one() -> None:
    task, resumed = by_metric(), by_metric()
    task.follow_metrics({"Metrics/reached": 0.9, "Episode_Termination/spins": 0.0})
    WarpVecEnv(resumed).set_curriculum({name: 3 * counts for name, counts in task.curriculum().items()})
    assert resumed.log == task.log
    assert resumed.log["Curriculum/reach/stage"] == 1.0
    np.testing.assert_array_equal(resumed.numbers.numpy(), task.numbers.numpy())


def test_a_stage_lasts_its_least_iterations_in_a_resumed_training_too() -> None:
    slow = curriculum(steps=(), when="Metrics/reached", above=(0.2, 0.2, 0.2), weight=(2.0, 3.0, 4.0), min_iterations=3)
    task, resumed = (build(curricula={"spins": None, "reach": slow}) for _ in range(2))
    seen: list[float] = []
    for iteration in range(9):
        if iteration == 3:
            WarpVecEnv(resumed).set_curriculum({name: 2 * counts for name, counts in task.curriculum().items()})
            task = resumed
        task.follow_metrics({"Metrics/reached": 0.9})
        seen.append(task.log["Curriculum/reach/stage"])
    assert seen == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_training_follows_its_metrics_and_saves_the_stage_with_the_iteration() -> None:
    short = curriculum(steps=(), when="Train/mean_episode_length", above=(0.5, 99.0))
    agent = tiny_agent(obs_groups={"actor": ("policy",), "critic": ("policy",)}, save_interval=1)
    loop = tiny_loop(
        tiny_config(agent=agent, max_iterations=6), env=WarpVecEnv(build(curricula={"reach": short, "spins": None}))
    )
    story = train(loop)
    stages = [row["Curriculum/reach/stage"] for row in story.rows]
    lengths = [row.get("Train/mean_episode_length", 0.0) for row in story.rows]
    assert stages[-1] == 1.0
    saved = [story.saved[at]["infos"]["curriculum"]["stages/reach"] for at in range(1, 7)]
    assert [stage for stage, _ in saved] == [float(length >= 0.5) for length in lengths]
    assert stages[1:] == [stage for stage, _ in saved[:-1]]  # What held in the next iteration.


def test_events_and_commands_change_by_a_metric_too() -> None:
    push = Event("push_by_setting_velocity", "interval", interval=(1.0, 2.0), x=(-0.5, 0.5), y=(0.0, 0.0))
    wider = Curriculum("event_curriculum", event_name="push", when="Metrics/reached", above=(0.5,), x=((-1.0, 1.0),))
    config = Arm.config.change(events={"push": push}, curricula={"x": wider})
    found = [(each.path, each.stage, each.value) for each in Curricula(config).changes if each.curriculum == "x"]
    assert found == [("events.push.x.0", 0, -0.5), ("events.push.x.1", 0, 0.5), ("events.push.x.0", 1, -1.0), (
        "events.push.x.1", 1, 1.0)]  # fmt: skip


def curriculum(func: str = "reward_curriculum", **params: Any) -> CurriculumTerm:
    return Curriculum(func, **{"reward_name": "reach", "steps": (0, 5), "weight": (1.0, 2.0)} | params)


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (
            curriculum("reward_curriculums"),
            "event_curriculum, observation_curriculum. Did you mean 'reward_curriculum'?",
        ),
        (
            curriculum(reward_name="reech"),
            "env.curricula.x.reward_name is 'reech', which is none of the rewards. Did you mean 'reach'?",
        ),
        (curriculum(above=(1.0, 2.0)), "x has steps and above: give steps, or what a metric is above, or below."),
        (curriculum(steps=(), above=(1.0, 2.0)), "x has above, but no metric: give its name as when."),
        (curriculum(steps=(), when="m", below=(1.0,)), ".curricula.x.weight has 2 values for 1 stages."),
        (curriculum(std=(1.0, 2.0)), "The curricula reach and x both change rewards.reach.weight: leave one out."),
        (curriculum(steps=(0, 1, 2)), ".curricula.x.weight has 2 values for 3 steps."),
        (curriculum(steps=(5, 0)), "env.curricula.x.steps is (5, 0), but must go up, from 0 or more."),
        (
            curriculum(widths=(1.0, 2.0)),
            "widths changes rewards.reach.widths, which is no number of it: it has weight, target, std.",
        ),
    ],
)
def test_a_curriculum_of_what_is_not_there_is_refused(term: CurriculumTerm, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        Arm.config.change(curricula={"x": term})
    assert str(refused.value).endswith(said)


def test_what_is_no_number_of_the_kernels_or_no_metric_is_refused() -> None:
    one = curriculum(reward_name="weighed", factors=(1.0, 2.0))
    with pytest.raises(UsageError, match=r"weighed\.factors, which is no number of it: it has weight\."):
        Arm.config.change(curricula={"x": one})
    with pytest.raises(UsageError, match=r"x\.when is 'Metrics/reech', .* Did you mean 'Metrics/reached'\?"):
        build(curricula={"x": curriculum(steps=(), when="Metrics/reech", above=(0, 1)), "reach": None})
    weighed = Reward(weighed_of_warp, -0.1, joints=".*", factors=1.0)
    with pytest.raises(ShoalError, match=r"changes rewards\.weighed\.factors, which is off, part of the kernels, or"):
        build(curricula={"x": one}, rewards={"weighed": weighed})
