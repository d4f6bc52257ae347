"""What the comparison with Gymnasium's environments cannot see: limits, beginnings, clipping, and what is missing."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import mujoco
import numpy as np
import pytest
from support.commands import SMALL

from shoal.cli.parse import parse_train
from shoal.commands.train import make_plan
from shoal.errors import UsageError
from shoal.tasks.gymnasium_v5.config import ANT, HALF_CHEETAH, HOPPER, HUMANOID_STANDUP
from shoal.tasks.gymnasium_v5.specs import SPECS
from shoal.tasks.gymnasium_v5.tasks import HalfCheetah, Hopper, HumanoidStandup
from shoal.tasks.registry import registered

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.mdp.config import TermsConfig
    from shoal.tasks.gymnasium_v5.tasks import GymnasiumTask
    from shoal.tasks.registry import TaskSpec

MANY = 1024


def build(spec: TaskSpec, num_envs: int = 2) -> GymnasiumTask:
    return spec.load_builder()(spec.env, num_envs=num_envs, device="cpu", seed=5)


def test_all_of_the_suite_is_registered() -> None:
    suite = {name for name, spec in gymnasium.registry.items() if "envs.mujoco" in str(spec.entry_point)}
    newest = {name for name in suite if name.endswith("-v5")}
    assert {spec.name for spec in SPECS} == newest
    assert newest <= set(registered())


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_episodes_are_as_long_as_gymnasiums(spec: TaskSpec) -> None:
    task = build(spec)
    assert task.max_episode_length == gymnasium.spec(spec.name).max_episode_steps


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_episodes_begin_all_over_gymnasiums_ranges(spec: TaskSpec) -> None:
    task = build(spec, 256)  # Their contacts are what takes the time.
    original: Any = gymnasium.make(spec.name).unwrapped
    theirs = []
    for seed in range(200):
        original.reset(seed=seed)
        theirs.append(np.concatenate([original.data.qpos, original.data.qvel]))
    ours = np.concatenate([task.qpos.numpy(), task.qvel.numpy()], axis=1)
    low, high = np.min(theirs, axis=0), np.max(theirs, axis=0)
    # 200 draws of an even distribution stop short of its ends by 0.5 % in the mean, and by 10 % with a chance of
    # exp(-20). Of a normal one, their largest is at 2.7 standard deviations, and that of 256 at 2.8.
    is_normal = np.arange(ours.shape[1]) >= task.model.nq
    events: Any = task.config.events
    is_normal &= getattr(events.noise, "normal_speeds", False)
    slack = np.where(is_normal, 1.0, 0.1) * (high - low) + 1e-7
    assert (ours >= low - slack).all()
    assert (ours <= high + slack).all()
    assert (ours.min(axis=0) <= low + slack).all()
    assert (ours.max(axis=0) >= high - slack).all()
    # The standard deviation of 200 draws is off by 5 % (even) or less, of normal ones 5 %: four times that.
    np.testing.assert_allclose(ours.std(axis=0), np.std(theirs, axis=0), rtol=0.25, atol=1e-7)


def test_targets_and_objects_begin_where_gymnasium_lets_them() -> None:
    target = build(registered()["Reacher-v5"], MANY).qpos.numpy()[:, 2:]
    distance = np.linalg.norm(target, axis=1)
    assert distance.max() < 0.2
    assert (distance > 0.19).any()  # A disc has a tenth of its area there.
    cylinder = build(registered()["Pusher-v5"], MANY).qpos.numpy()[:, 7:]
    distance = np.linalg.norm(cylinder[:, :2], axis=1)
    assert distance.min() > 0.17
    assert (distance < 0.18).any()
    assert not cylinder[:, 2:].any()  # The goal.


def test_environments_begin_differently_and_a_seed_repeats_them() -> None:
    tasks = [build(registered()["HalfCheetah-v5"], 8) for _ in range(2)]
    assert (tasks[0].qpos.numpy() == tasks[1].qpos.numpy()).all()
    assert len({row.tobytes() for row in tasks[0].qpos.numpy()}) == 8


def test_actions_are_clipped_before_they_act_and_cost() -> None:
    task = HalfCheetah(HALF_CHEETAH, num_envs=2, device="cpu", seed=5)
    task.qpos.assign(task.qpos.numpy()[[0, 0]])
    task.actions.assign(np.array([[1.0] * 6, [1.0, 2.0, 30.0, 400.0, 1.5, 1.1]], dtype=np.float32))
    task.step()
    assert (task.ctrl.numpy() == 1.0).all()
    assert task.terms.numpy()[:, 1].tolist() == [6.0, 6.0]


def test_a_reward_is_the_sum_of_the_weighted_terms_and_no_rate() -> None:
    config = HOPPER.change(rewards={"reward_survive": {"weight": 7.0}})
    task = Hopper(config, num_envs=2, device="cpu", seed=5)
    task.step()
    forward, effort, survive = task.terms.numpy().T
    np.testing.assert_allclose(task.reward.numpy(), forward - 1e-3 * effort + 7.0 * survive, rtol=1e-6)
    assert (survive == 1.0).all()


def test_the_humanoids_solver_is_changed_for_mujoco_warp_alone() -> None:
    solvers = {
        engine: HumanoidStandup.build_model(replace(HUMANOID_STANDUP, engine=engine)).opt.solver
        for engine in ("mujoco", "mjwarp")
    }
    assert solvers == {"mujoco": mujoco.mjtSolver.mjSOL_PGS, "mjwarp": mujoco.mjtSolver.mjSOL_NEWTON}


def test_a_model_is_built_for_the_engine_that_was_chosen() -> None:
    class Asks(HalfCheetah):
        asked: ClassVar[list[str]] = []

        @classmethod
        def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
            cls.asked.append(config.engine)
            return super().build_model(config)

    Asks(replace(HALF_CHEETAH, engine="auto"), num_envs=2, device="cpu", seed=5)
    assert Asks.asked == ["mujoco"]


def test_a_deprecated_attribute_of_a_model_leaves_no_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    HalfCheetah.build_model(HALF_CHEETAH)
    assert list(tmp_path.iterdir()) == []
    assert "deprecated" not in "".join(capfd.readouterr())


def test_without_gymnasium_the_extra_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_train(["Ant-v5", *SMALL, "--log-root", str(tmp_path)])
    monkeypatch.setitem(sys.modules, "gymnasium", None)  # As Python marks what cannot be imported.
    for refused in (lambda: make_plan(config), lambda: HalfCheetah.build_model(HALF_CHEETAH)):
        with pytest.raises(UsageError, match=r"uv add 'shoal\[gymnasium\]'") as caught:
            refused()
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("ends", [(1.0, 0.2), (1.0, 1.0)])
def test_a_range_the_wrong_way_round_is_refused(ends: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match=r"terminations\.healthy_z\.bounds is .* must have its lower end first"):
        ANT.change(terminations={"healthy_z": {"bounds": ends}})


def test_infinity_is_a_range_that_a_file_and_a_flag_can_say(tmp_path: Path) -> None:
    words = ["Hopper-v5", "--env.terminations.healthy-z.bounds", "0.5", "inf", "--log-root", str(tmp_path)]
    env: Any = parse_train(words).env
    assert env.terminations.healthy_z.bounds == (0.5, math.inf)
