"""The last steps of every environment: nothing by default, and with `on_nan` stop all that physics start from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mujoco
import numpy as np
import pytest
from support.diverged_envs import RUNAWAY, act, bouncing, dump_of, part_of, step_until_lost

from shoal.sim.engines.engine import STATE_ROWS
from shoal.sim.graphs import HostStage
from shoal.sim.nan.history import MOST_ENVIRONMENTS

if TYPE_CHECKING:
    from support.bouncing_task import BouncingTask

ENGINES = ("mujoco", "mjwarp")
each_engine = pytest.mark.parametrize("engine", ENGINES)


def lose(task: BouncingTask, *envs: int) -> None:
    """Write a speed that is not finite into environments, as a faulty kernel of the task might."""
    speeds = task.qvel.numpy().copy()
    speeds[list(envs), 0] = np.inf
    task.qvel.assign(speeds)
    task.moved.assign(np.isin(np.arange(task.num_envs), envs))
    task.engine.forward(task.done, task.moved)


def test_by_default_nothing_is_kept_and_a_step_has_no_more_stages() -> None:
    kept, not_kept = bouncing(engine="mujoco"), bouncing(engine="mujoco", on_nan="reset")
    assert not_kept.history is None
    assert len(kept.stages()) == len(not_kept.stages()) + 2
    assert not_kept.arrays.keys() == kept.arrays.keys()
    lose(not_kept, 1)
    not_kept.step()
    assert not_kept.divergences.numpy().tolist() == [0, 1, 0]
    assert not_kept.dump("Bouncing", rank=0, iteration=1) is None


def test_its_memory_is_environments_times_steps_times_the_row() -> None:
    task = bouncing(engine="mujoco")
    assert task.history is not None
    row = 8 * mujoco.mj_stateSize(task.model, int(mujoco.mjtState.mjSTATE_INTEGRATION)) + 4 * task.model.nu
    assert task.history.num_bytes == task.num_envs * task.config.replay_steps * row


def test_nobody_is_lost_and_nothing_is_left() -> None:
    task = bouncing(engine="mujoco")
    act(task, np.random.default_rng(0))
    assert task.dump("Bouncing", rank=0, iteration=1) is None


def test_natively_state_and_controls_are_those_of_each_step_to_the_last_bit() -> None:
    task = bouncing(engine="mujoco", runaway=RUNAWAY)
    seen, rng = [], np.random.default_rng(0)
    while not task.divergences.numpy().any():
        before = task.host_state["state"][1].copy()
        act(task, rng)
        seen.append((before, task.actions.numpy()[1].astype(float)))  # The controls are the actions here.
    (lost,) = dump_of(task).envs
    assert (lost.env, lost.step, lost.first_step) == (1, len(seen), len(seen) - 19)
    assert lost.states.shape[0] == task.config.replay_steps == 20
    for spec in (mujoco.mjtState.mjSTATE_FULLPHYSICS, mujoco.mjtState.mjSTATE_WARMSTART):
        theirs = part_of(task, np.array([state for state, _ in seen[-20:]]), spec)
        assert part_of(task, lost.states, spec).tobytes() == theirs.tobytes()
    controls = part_of(task, lost.states, mujoco.mjtState.mjSTATE_CTRL)
    assert controls.tobytes() == np.array([ctrl for _, ctrl in seen[-20:]]).tobytes()
    assert not lost.begins.any()
    assert lost.parameters["dof_damping"][0] == -RUNAWAY
    assert lost.parameters["body_mass"].tobytes() == task.body_mass.numpy()[1].tobytes()


def test_mujoco_warp_s_state_is_kept_too() -> None:
    task = bouncing(engine="mjwarp", runaway=RUNAWAY)
    seen, rng = [], np.random.default_rng(0)
    while not task.divergences.numpy().any():
        before = np.concatenate([task.qpos.numpy()[1], task.qvel.numpy()[1]])
        act(task, rng)
        seen.append(np.concatenate([before, task.actions.numpy()[1]]))
    (lost,) = dump_of(task).envs
    specs = (mujoco.mjtState.mjSTATE_QPOS, mujoco.mjtState.mjSTATE_QVEL, mujoco.mjtState.mjSTATE_CTRL)
    kept = np.concatenate([part_of(task, lost.states, spec) for spec in specs], axis=1)
    assert kept.tobytes() == np.array(seen[-20:]).astype(float).tobytes()
    times = part_of(task, lost.states, mujoco.mjtState.mjSTATE_TIME)[:, 0]
    np.testing.assert_allclose(np.diff(times), task.step_dt, atol=1e-6)


@each_engine
def test_what_led_to_a_loss_stays_while_the_rollout_goes_on(engine: str) -> None:
    task = bouncing(engine=engine, runaway=RUNAWAY)
    step_until_lost(task)
    (before,) = dump_of(task).envs
    rng = np.random.default_rng(1)
    for _ in range(30):
        act(task, rng)
    (after,) = dump_of(task).envs
    assert (after.step, after.states.tobytes()) == (before.step, before.states.tobytes())


def test_where_the_task_writes_the_state_that_is_noted() -> None:
    task = bouncing(engine="mujoco", episode_length_s=0.1)  # Five steps.
    rng = np.random.default_rng(0)
    for step in range(1, 9):
        if step == 7:
            task.shove(0, 1, 2)  # The cart is shoved after this step.
        act(task, rng)
    lose(task, 0, 1, 2)
    task.step()
    noted = [list(np.flatnonzero(each.begins) + each.first_step) for each in dump_of(task).envs]
    # Episodes begin with step 6; nothing was noted of the loss itself, which came past the step's own stages.
    assert noted == [[6, 8]] * 3


def test_a_restart_forgets() -> None:
    task = bouncing(engine="mujoco")
    for _ in range(5):
        act(task, np.random.default_rng(0))
    task.restart()
    lose(task, 2)
    task.step()
    (lost,) = dump_of(task).envs
    assert (lost.step, len(lost.states)) == (1, 1)


def test_of_many_the_first_are_kept() -> None:
    num_envs = MOST_ENVIRONMENTS + 4
    task = bouncing(num_envs, engine="mujoco", replay_steps=2)
    task.step()
    lose(task, num_envs - 1)
    task.step()
    lose(task, *range(num_envs - 1))
    task.step()
    dump = dump_of(task, rank=2)
    assert [each.env for each in dump.envs] == [num_envs - 1, *range(MOST_ENVIRONMENTS - 1)]
    assert {each.step for each in dump.envs} == {2, 3}
    assert (dump.info.diverged, dump.info.rank, dump.info.num_envs) == (num_envs, 2, num_envs)


@each_engine
def test_all_that_a_step_starts_from_is_named(engine: str) -> None:
    task = bouncing(engine=engine)
    names = {STATE_ROWS, "ctrl"} if engine == "mujoco" else {"qpos", "qvel", "qacc_warmstart", "time", "ctrl"}
    assert task.engine.step_inputs().keys() == names


@pytest.mark.gpu
def test_on_a_gpu_it_is_part_of_the_graph() -> None:
    on_gpu, on_cpu = (bouncing(engine="mjwarp", device=device, runaway=RUNAWAY) for device in ("cuda:0", "cpu"))
    assert on_gpu.graph.is_captured
    assert all(not isinstance(call, HostStage) for _, call in on_gpu.stages())  # No host call among them.
    assert abs(step_until_lost(on_gpu) - step_until_lost(on_cpu)) <= 1
    (there,), (here,) = dump_of(on_gpu).envs, dump_of(on_cpu).envs
    assert (there.env, there.states.shape) == (here.env, here.states.shape)
