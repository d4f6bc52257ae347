"""A diverged environment diverges again: in the same step, from the same states, named by the joint that went first."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.calm import changed
from support.diverged_envs import RUNAWAY, act, bouncing, dump_of, step_until_lost

from shoal.sim.nan.replay import TOLERANCE, replay
from shoal.tasks.quadruped.task import FlatVelocity

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.sim.nan.dump import Dump

_dumps: dict[str, Dump] = {}


@pytest.fixture(params=("mujoco", "mjwarp"))
def dump(request: pytest.FixtureRequest) -> Dump:
    """What each engine leaves, made when the first test asks for it: MuJoCo Warp takes long to build."""
    engine = request.param
    if engine not in _dumps:
        task = bouncing(engine=engine, runaway=RUNAWAY)
        step_until_lost(task)
        _dumps[engine] = dump_of(task)
    return _dumps[engine]


def test_it_is_lost_in_the_recorded_step(dump: Dump) -> None:
    (lost,) = dump.envs
    again = replay(dump, lost)
    assert [step.number for step in again.steps] == list(range(lost.first_step, lost.step + 1))
    assert again.fault is not None
    assert again.fault.step == lost.step
    assert 1 <= again.fault.physics_step <= dump.info.decimation
    assert again.fault.what == "qacc of joint 'rail'"
    assert not abs(again.fault.value) < dump.info.largest


def test_the_recorded_states_come_out(dump: Dump) -> None:
    (lost,) = dump.envs
    again = replay(dump, lost)
    assert again.compared == len(lost.states) - 1
    assert again.differs_in is None
    assert again.bound == (0.0 if dump.info.engine == "mujoco" else TOLERANCE)
    assert again.difference <= again.bound
    assert (again.difference == 0.0) is (dump.info.engine == "mujoco")


@pytest.mark.parametrize(("engine", "num_envs"), [("mujoco", 4), ("mjwarp", 2)])
def test_a_robot_on_the_ground_that_is_pushed_and_begins_anew_is_replayed_too(engine: str, num_envs: int) -> None:
    config = changed(FlatVelocity.config, on_nan="stop", engine=engine, events={"push": {"interval": [0.1, 0.5]}})
    robots, rng = FlatVelocity(config, num_envs=num_envs, device="cpu", seed=1), np.random.default_rng(0)
    for step in range(60):
        robots.actions.assign(rng.normal(0.0, 1.5, (num_envs, 12)).astype(np.float32))
        robots.diverged.fill_(value=step == 59)  # They have not, but what would have led there is kept.
        robots.step()
    dump = robots.dump("Quadruped", rank=0, iteration=1)
    assert dump is not None
    assert len(dump.envs) == num_envs
    for each in dump.envs:
        again = replay(dump, each)
        assert (again.fault, again.differs_in) == (None, None)
        assert again.compared == 49 - int(each.begins[1:].sum()) > 40
        assert again.difference <= (0.0 if engine == "mujoco" else 1e-4)
        assert max(step.contacts for step in again.steps) >= 3
    assert sum(int(each.begins[1:].sum()) for each in dump.envs) > num_envs


def test_a_state_that_is_off_by_one_bit_is_found() -> None:
    task = bouncing(engine="mujoco", runaway=RUNAWAY)
    step_until_lost(task)
    dump = dump_of(task)
    (lost,) = dump.envs
    states = lost.states.copy()
    states[7, 1] = np.nextafter(states[7, 1], np.inf)
    again = replay(dump, replace(lost, states=states))
    assert again.differs_in == lost.first_step + 6
    assert 0.0 < again.difference < 1e-6


def test_other_masses_lead_elsewhere(dump: Dump) -> None:
    (lost,) = dump.envs
    heavier = {**lost.parameters, "body_mass": lost.parameters["body_mass"] * 1.2}
    assert replay(dump, replace(lost, parameters=heavier)).differs_in == lost.first_step


def test_the_table_tells_what_grows(dump: Dump) -> None:
    (lost,) = dump.envs
    steps = replay(dump, lost).steps
    whole = steps[:-1]  # The last one ends where it goes wrong.
    assert all(after.qvel > 1.5 * before.qvel for before, after in pairwise(whole))
    assert {step.fastest for step in steps[5:]} == {"joint 'rail'"}
    assert {step.contacts for step in steps} == {1}  # The ball lies on the floor, into which it sinks a little.
    assert all(0.0 < step.penetration < 0.01 for step in steps)
    assert steps[0].warnings == ()
    assert steps[-1].warnings == ("BADQACC",)


def test_positions_are_those_of_every_physics_step_while_they_are_finite(dump: Dump) -> None:
    (lost,) = dump.envs
    again = replay(dump, lost)
    assert again.fault is not None
    steps = (len(lost.states) - 1) * dump.info.decimation + again.fault.physics_step - 1
    assert again.positions.shape == (steps, 8)
    assert np.isfinite(again.positions).all()


def test_what_mujoco_does_not_lose_is_said(dump: Dump) -> None:
    info = replace(dump.info, largest=1e30)
    again = replay(replace(dump, info=info), dump.envs[0])
    assert again.fault is None
    assert len(again.steps) == len(dump.envs[0].states)


def test_a_state_that_the_task_had_spoiled_is_told_before_any_physics() -> None:
    task = bouncing(engine="mujoco")
    act(task, np.random.default_rng(0))
    speeds = task.qvel.numpy().copy()
    speeds[2, 3] = np.nan
    task.qvel.assign(speeds)
    task.moved.assign(np.array([False, False, True]))
    task.engine.forward(task.done, task.moved)
    act(task, np.random.default_rng(0))
    dump = dump_of(task)
    wrong = replay(dump, dump.envs[0]).fault
    assert wrong is not None
    assert (wrong.step, wrong.physics_step, wrong.what) == (2, 0, "qvel of the joint of body 'ball', number 2")
    assert np.isnan(wrong.value)


def test_a_joint_is_named_by_its_position_too() -> None:
    task = bouncing(engine="mujoco")
    places = task.qpos.numpy().copy()
    places[0, 1 + 2] = np.inf  # The height of the ball, behind the cart's place.
    task.qpos.assign(places)
    task.moved.assign(np.array([True, False, False]))
    task.engine.forward(task.done, task.moved)
    task.step()
    dump = dump_of(task)
    wrong = replay(dump, dump.envs[0]).fault
    assert wrong is not None
    assert wrong.what == "qpos of the joint of body 'ball', number 2"


def test_where_the_task_has_written_the_state_nothing_is_compared() -> None:
    task = bouncing(engine="mujoco", runaway=RUNAWAY, replay_steps=60)
    rng = np.random.default_rng(0)
    for _ in range(10):
        act(task, rng)
    task.shove(0, 1, 2)
    while not task.divergences.numpy().any():
        act(task, rng)
    dump = dump_of(task)
    (lost,) = dump.envs
    assert lost.begins.sum() == 1
    again = replay(dump, lost)
    assert (again.compared, again.differs_in) == (len(lost.states) - 2, None)


def test_mujoco_leaves_no_file(dump: Dump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    replay(dump, dump.envs[0])
    assert list(tmp_path.iterdir()) == []
