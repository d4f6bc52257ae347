"""Curricula: numbers that change with the steps of the training, and nothing that is compiled anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warp as wp
from support.arm_task import Arm
from support.arm_task import weighed as weighed_of_warp

from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import ShoalError, UsageError
from shoal.mdp.terms import Command, Curriculum, CurriculumTerm, Reward


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
        if task.training_steps <= 20:
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


def curriculum(func: str = "reward_curriculum", **params: Any) -> CurriculumTerm:
    return Curriculum(func, **{"reward_name": "reach", "steps": (0, 5), "weight": (1.0, 2.0)} | params)


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (
            curriculum("reward_curriculums"),
            "termination_curriculum, commands_vel. Did you mean 'reward_curriculum'?",
        ),
        (
            curriculum(reward_name="reech"),
            "env.curricula.x.reward_name is 'reech', which is none of the rewards. Did you mean 'reach'?",
        ),
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


def test_a_number_for_each_name_cannot_change() -> None:
    one = curriculum(reward_name="weighed", factors=(1.0, 2.0))
    with pytest.raises(UsageError, match=r"weighed\.factors, which is no number of it: it has weight\."):
        Arm.config.change(curricula={"x": one})
    weighed = Reward(weighed_of_warp, -0.1, joints=".*", factors=1.0)
    with pytest.raises(ShoalError, match=r"changes rewards\.weighed\.factors, which is a number for each name"):
        build(curricula={"x": one}, rewards={"weighed": weighed})
