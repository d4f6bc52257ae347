"""MuJoCo tasks on both engines: MuJoCo itself is the oracle, step by step."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import mujoco
import mujoco_warp as mjw
import numpy as np
import pytest
import torch
from support.bouncing_task import MODEL, BouncingConfig, BouncingTask

from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import ShoalError, TrainingFailedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_ENVS = 3
ENGINES = ("mujoco", "mjwarp")


@pytest.fixture(scope="module")
def built() -> dict[str, BouncingTask]:
    """One task for each engine: MuJoCo Warp takes long to build."""
    return {}


@pytest.fixture(params=ENGINES)
def task(request: pytest.FixtureRequest, built: dict[str, BouncingTask]) -> BouncingTask:
    """A task at the beginning of its first episodes."""
    engine = request.param
    if engine not in built:
        built[engine] = bouncing(engine=engine)
    built[engine].restart(7)
    return built[engine]


def bouncing(num_envs: int = NUM_ENVS, **changes: object) -> BouncingTask:
    """Build a task on the CPU."""
    return BouncingTask(dataclasses.replace(BouncingTask.config, **changes), num_envs=num_envs, device="cpu", seed=7)


def twin_of(task: BouncingTask, env: int) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """MuJoCo's own simulation of one environment: its masses and its state."""
    model = task.build_model(task.config)
    model.body_mass[:] = task.body_mass.numpy()[env]
    data = mujoco.MjData(model)
    mujoco.mj_setConst(model, data)
    mujoco.mj_resetData(model, data)
    data.qpos[:] = task.qpos.numpy()[env]
    data.qvel[:] = task.qvel.numpy()[env]
    mujoco.mj_forward(model, data)
    return model, data


def fall(task: BouncingTask) -> None:
    """Step until all balls have touched the floor."""
    for _ in range(60):
        task.step()


def tolerance(task: BouncingTask) -> float:
    """How far an engine may be from MuJoCo: what 32 bits round, and for MuJoCo Warp what its solver leaves."""
    return 1e-6 if task.engine.name == "mujoco" else 2e-4


def act(task: BouncingTask, rng: np.random.Generator) -> np.ndarray:
    """Step with random actions; return them."""
    actions = rng.uniform(-1.0, 1.0, (task.num_envs, 1)).astype(np.float32)
    task.actions.assign(actions)
    task.step()
    return actions


def test_fields_are_those_of_mujoco_after_each_step(task: BouncingTask) -> None:
    twins = [twin_of(task, env) for env in range(NUM_ENVS)]
    rng = np.random.default_rng(0)
    touched = False
    for _ in range(40):
        for (model, data), action in zip(twins, act(task, rng), strict=True):
            data.ctrl[:] = action
            mujoco.mj_step(model, data, nstep=task.config.decimation)
            touched = touched or data.ncon > 0
        for name in ("qpos", "qvel", "xpos", "sensordata"):
            theirs = np.stack([getattr(data, name) for _, data in twins])
            np.testing.assert_allclose(task.data(name).numpy(), theirs, atol=tolerance(task), err_msg=name)
    assert touched


def test_after_a_reset_derived_fields_are_those_of_the_new_state(task: BouncingTask) -> None:
    rng = np.random.default_rng(0)
    for _ in range(49):
        act(task, rng)
    before = task.qpos.numpy().copy()
    act(task, rng)  # The fiftieth step ends all episodes.
    assert task.done.numpy().all()
    assert not np.allclose(before, task.qpos.numpy(), atol=1e-3)
    for env in range(NUM_ENVS):
        _, data = twin_of(task, env)
        assert 0.2 <= data.qpos[3] <= 0.5
        assert data.qvel.tolist() == [0.0] * 7
        np.testing.assert_allclose(task.xpos.numpy()[env], data.xpos, atol=1e-6)
        np.testing.assert_allclose(task.sensordata.numpy()[env], data.sensordata, atol=1e-6)
        np.testing.assert_allclose(task.obs["policy"].numpy()[env, 3], data.body("cart").xpos[0], atol=1e-6)


def test_what_is_disturbed_moves_on_from_there_and_the_others_do_not_notice(task: BouncingTask) -> None:
    wanted = np.array([False, True, False])
    task.shove(1)
    act(task, np.random.default_rng(0))
    assert task.qvel.numpy()[:, 0].tolist()[1] == 3.0
    assert not task.moved.numpy().any()
    at = task.qpos.numpy()[:, 0].copy()
    act(task, np.random.default_rng(0))
    gone = task.qpos.numpy()[:, 0] - at
    assert gone[1] == pytest.approx(3.0 * task.step_dt, rel=0.2)
    assert np.abs(gone[~wanted]).max() < 0.02


def test_derived_fields_are_fresh_where_the_state_was_written_and_as_after_mj_step_elsewhere(
    task: BouncingTask,
) -> None:
    # Both engines show the same, although MuJoCo Warp's pass over the present state is one over all environments.
    twins = [twin_of(task, env) for env in range(NUM_ENVS)]
    task.shove(1)
    rng = np.random.default_rng(0)
    for env, action in enumerate(act(task, rng)):
        model, data = twins[env]
        data.ctrl[:] = action
        mujoco.mj_step(model, data, nstep=task.config.decimation)
        stale = data.xpos[task.ball].copy()
        if env == 1:
            data.qvel[0] = 3.0
            mujoco.mj_forward(model, data)
            assert abs(stale[2] - data.xpos[task.ball][2]) > 2 * tolerance(task)
        for name in ("xpos", "sensordata"):
            theirs = getattr(data, name)
            np.testing.assert_allclose(task.data(name).numpy()[env], theirs, atol=tolerance(task), err_msg=name)


def test_each_environment_has_its_own_parameters(task: BouncingTask) -> None:
    masses = task.body_mass.numpy()[:, task.cart].copy()
    assert len(set(masses.tolist())) == NUM_ENVS
    task.actions.fill_(1.0)
    task.step()
    speeds = task.qvel.numpy()[:, 0]
    # F = m a, with a little damping.
    np.testing.assert_allclose(speeds * masses, 10.0 * task.step_dt, rtol=0.02)


def test_the_same_seed_gives_the_same_episodes(task: BouncingTask) -> None:
    seen = []
    for _ in range(2):
        task.restart(3)
        rng = np.random.default_rng(0)
        for _ in range(60):
            act(task, rng)
        seen.append(task.qpos.numpy().tobytes())
    assert seen[0] == seen[1]


def test_a_lost_environment_is_reset_and_counted(task: BouncingTask) -> None:
    def lose() -> None:
        speeds = task.qvel.numpy().copy()
        speeds[1, 0] = np.nan
        task.qvel.assign(speeds)
        task.moved.assign(np.array([False, True, False]))
        task.engine.forward(task.done, task.moved)

    act(task, np.random.default_rng(0))
    lose()
    act(task, np.random.default_rng(0))
    assert task.done.numpy().tolist() == [False, True, False]
    assert task.time_out.numpy().tolist() == [False, False, False]
    assert task.reward.numpy()[1] == 0.0
    for name in ("qpos", "qvel", "xpos", "sensordata"):
        assert np.isfinite(task.data(name).numpy()).all(), name
    assert np.isfinite(task.obs["policy"].numpy()).all()
    assert np.isfinite(task.finished_sums.numpy()).all()
    assert task.take_divergences().tolist() == [0, 1, 0]
    assert task.take_divergences().tolist() == [0, 0, 0]
    act(task, np.random.default_rng(0))
    assert not task.done.numpy().any()


def test_asked_to_stop_a_lost_environment_earns_nan() -> None:
    task = bouncing(engine="mujoco", on_nan="stop")
    speeds = task.qvel.numpy().copy()
    speeds[2, 0] = np.inf
    task.qvel.assign(speeds)
    task.moved.fill_(value=True)
    task.engine.forward(task.done, task.moved)
    task.step()
    assert np.isnan(task.reward.numpy()).tolist() == [False, False, True]


def test_the_steps_between_host_calls_are_recorded() -> None:
    assert bouncing(engine="mujoco").graph.is_captured


def test_native_is_exact_whatever_the_number_of_environments() -> None:
    alone, among = bouncing(1, engine="mujoco"), bouncing(4, engine="mujoco")
    for task in (alone, among):
        rng = np.random.default_rng(0)
        for _ in range(30):
            task.actions.fill_(float(rng.uniform(-1, 1)))
            task.step()
    assert alone.qpos.numpy()[0].tobytes() == among.qpos.numpy()[0].tobytes()


def test_too_little_memory_is_told_with_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = bouncing(engine="mujoco", memory="1200")
    assert task.take_warnings() == {}
    fall(task)
    (sentence,) = task.take_warnings().values()
    assert sentence.startswith("3 environments (0, 1, 2) had more constraints than MuJoCo's memory holds")
    assert task.take_warnings() == {}
    assert list(tmp_path.iterdir()) == []  # MuJoCo would leave a file.


def test_a_simulation_that_mujoco_refuses_is_told_with_the_environment() -> None:
    task = bouncing(engine="mujoco", memory="1100")
    with pytest.raises(TrainingFailedError, match="MuJoCo gave up on environment 2: mj_stackAlloc: out of memory"):
        fall(task)


def test_too_little_room_in_mujoco_warp_is_told_with_the_environments() -> None:
    task = bouncing(engine="mjwarp", njmax=1)
    fall(task)
    told = task.take_warnings()
    assert "--env.njmax is 1, pass more." in told["constraints"]
    assert "environments (0, 1, 2)" in told["constraints"]
    # Where the solver stops at the iterations that the model gives it, nothing is dropped.
    task.engine._data.overflow.fill_(int(mjw.OverflowType.ITERATIONS))  # pyright: ignore[reportAttributeAccessIssue]
    assert task.take_warnings() == {}


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda task: task.data("qpoz"), r"no field of that name\. Did you mean 'qpos'"),
        (lambda task: task.data("body_mass"), r"Ask for it by parameter\(\)"),
        (lambda task: task.parameter("qpos"), r"Ask for it by data\(\)"),
        (lambda task: task.data("ncon"), "holds no floating-point numbers"),
    ],
)
def test_a_field_that_cannot_be_had_is_refused(ask: Callable[[BouncingTask], object], sentence: str) -> None:
    with pytest.raises(ShoalError, match=sentence):
        ask(bouncing(engine="mujoco"))


def test_what_mujoco_warp_cannot_do_is_refused() -> None:
    class Pgs(BouncingTask):
        @classmethod
        def build_model(cls, config: object) -> mujoco.MjModel:
            model = BouncingTask.build_model(config)  # pyright: ignore[reportArgumentType]
            model.opt.solver = mujoco.mjtSolver.mjSOL_PGS
            return model

    config = dataclasses.replace(BouncingTask.config, engine="mjwarp")
    with pytest.raises(UsageError, match=r"MuJoCo Warp cannot simulate this model .*PGS"):
        Pgs(config, num_envs=1, device="cpu", seed=0)


# Delays


class DelayedTask(BouncingTask):
    """The same, whose motor and sensor are late, with user data and a constraint that can be switched off."""

    @classmethod
    def build_model(cls, config: BouncingConfig) -> mujoco.MjModel:
        """Return ball and cart."""
        del config
        text = MODEL.format(size='<size nuserdata="2"/>').replace('<motor joint="rail"', f'<motor joint="rail" {LATE}')
        text = text.replace('<velocimeter site="tip"', f'<velocimeter site="tip" {LATE}')
        weld = '<equality><connect body1="ball" anchor="0 0 0" active="false"/></equality>'
        return mujoco.MjModel.from_xml_string(text.replace("<actuator>", f"{weld}<actuator>"))


LATE = 'delay="0.03" nsample="8"'


@pytest.fixture(scope="module")
def late() -> dict[str, list[DelayedTask]]:
    """Two tasks of different seeds for each engine."""
    return {}


@pytest.fixture(params=ENGINES)
def delayed(request: pytest.FixtureRequest, late: dict[str, list[DelayedTask]]) -> list[DelayedTask]:
    """Both at the beginning of their first episodes."""
    engine = request.param
    config = dataclasses.replace(DelayedTask.config, engine=engine, episode_length_s=0.2)
    if engine not in late:
        late[engine] = [DelayedTask(config, num_envs=NUM_ENVS, device="cpu", seed=seed) for seed in (7, 8)]
    for task in late[engine]:
        task.restart(task.seed)
    return late[engine]


def test_an_episode_begins_without_what_the_last_one_has_delayed(delayed: list[DelayedTask]) -> None:
    task, rng = delayed[0], np.random.default_rng(0)
    for _ in range(10):
        act(task, rng)
    assert task.done.numpy().all()
    twins = [twin_of(task, env) for env in range(NUM_ENVS)]
    for _ in range(5):
        for (model, data), action in zip(twins, act(task, rng), strict=True):
            data.ctrl[:] = action
            mujoco.mj_step(model, data, nstep=task.config.decimation)
        for name in ("qpos", "qvel", "sensordata"):
            theirs = np.stack([getattr(data, name) for _, data in twins])
            np.testing.assert_allclose(task.data(name).numpy(), theirs, atol=tolerance(task), err_msg=name)


def test_what_is_delayed_is_in_a_checkpoint(delayed: list[DelayedTask]) -> None:
    rng = np.random.default_rng(0)
    one, other = delayed
    for _ in range(7):
        act(one, rng)
    mine, theirs = WarpVecEnv(one), WarpVecEnv(other)
    theirs.put_rows({name: rows.clone() for name, rows in mine.rows().items()})
    for _ in range(6):  # Over the end of an episode.
        actions = act(one, rng)
        other.actions.assign(actions)
        other.step()
        assert mine.rows().keys() == theirs.rows().keys()
        for name, rows in mine.rows().items():
            assert torch.equal(rows, theirs.rows()[name]), name


@pytest.mark.parametrize("delayed", ["mjwarp"], indirect=True)
def test_a_reset_in_mujoco_warp_leaves_nothing_behind(delayed: list[DelayedTask]) -> None:
    task = delayed[0]
    data = task.engine._data  # pyright: ignore[reportAttributeAccessIssue]
    data.eq_active.fill_(value=True)
    data.userdata.fill_(5.0)
    data.overflow.fill_(1)
    task.done.assign(np.array([False, True, False]))
    task.engine.reset(task.done)
    assert data.eq_active.numpy()[:, 0].tolist() == [True, False, True]
    assert data.userdata.numpy()[:, 0].tolist() == [5.0, 0.0, 5.0]
    assert data.overflow.numpy().tolist() == [1, 1, 1]  # For `take_warnings` to tell.
    task.engine.take_warnings()
