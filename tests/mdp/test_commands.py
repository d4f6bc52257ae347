"""Commands that follow from the state in every step, on both engines."""

# ruff: noqa: ARG003

from __future__ import annotations

import math
from typing import Annotated, Any

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.envs.vec_env import WarpVecEnv
from shoal.mdp.annotations import CommandColumn, Memory
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.marks import shows
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Command, Event, Obs, Reward
from shoal.sim.render.marks import Mark, Sphere

BALL = """
<mujoco>
  <option gravity="0 0 0"/>
  <worldbody>
    <body name="base" pos="0 0 1">
      <freejoint/>
      <geom type="box" size="0.1 0.1 0.1" mass="1"/>
      <body>
        <joint name="hinge" axis="0 0 1" damping="1"/>
        <geom type="sphere" size="0.01" mass="0.001"/>
      </body>
    </body>
  </worldbody>
  <actuator><position name="hinge" joint="hinge"/></actuator>
</mujoco>
"""
COLUMNS = {"lin_vel_x": "m/s", "lin_vel_y": "m/s", "ang_vel_z": "rad/s"}


def build(
    *, engine: Any = "mujoco", num_envs: int = 64, speed: float = 2.0, command: Any = None, **changes: Any
) -> Any:
    """Build bodies in free flight, which turn at up to `speed` about z [rad/s]."""
    values: dict[str, Any] = {"lin_vel_x": (-1.0, 1.0), "lin_vel_y": (-0.5, 0.5), "ang_vel_z": (-1.0, 0.5)} | changes
    twist = Command("uniform_velocity_command", columns=COLUMNS, **{"resampling_time": (9.0, 9.0)} | values)
    tilt = (-0.3, 0.3)
    start = Event(
        "reset_root_state_uniform",
        "reset",
        roll=tilt,
        pitch=tilt,
        yaw=(-math.pi, math.pi),
        velocity_yaw=(-speed, speed),
    )

    class Body(TermsTask[TermsConfig]):
        config = task_config(
            TermsConfig,
            engine=engine,
            decimation=2,
            actions={"hinge": Action("joint_position", actuators="hinge", scale=1.0)},
            commands={"twist": command or twist},
            observations={"policy": {"twist": Obs("generated_commands", command="twist")}},
            rewards={"none": Reward("lin_vel_z_l2", weight=0.0)},
            events={"start": start},
        )

        @classmethod
        def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
            return mujoco.MjModel.from_xml_string(BALL)

    return Body(Body.config, num_envs=num_envs, device="cpu", seed=1)


def observed(task: Any) -> np.ndarray:
    """Return the commands as they are observed, which are those of the task."""
    wp.synchronize()
    np.testing.assert_array_equal(task.obs["policy"].numpy(), task.command_array.numpy())
    return task.command_array.numpy().copy()


def rotations(task: Any) -> np.ndarray:
    """Return the rotation of each body by MuJoCo. Shape (num_envs, 3, 3)."""
    found = np.zeros((task.num_envs, 9))
    for row, quat in zip(found, task.qpos.numpy()[:, 3:7].astype(float), strict=True):
        mujoco.mju_quat2Mat(row, quat)
    return found.reshape(-1, 3, 3)


def yaws(task: Any) -> np.ndarray:
    """Return the heading of each body: that of its x axis. Shape (num_envs,)."""
    ahead = rotations(task)[:, :, 0]
    return np.arctan2(ahead[:, 1], ahead[:, 0])


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_the_yaw_rate_follows_from_the_heading_error_in_every_step(engine: str) -> None:
    task = build(engine=engine, heading_command=True, heading=(3.0, 3.0), heading_control_stiffness=0.5)
    first = now = observed(task)
    for _ in range(30):
        error = (3.0 - yaws(task) + math.pi) % (2 * math.pi) - math.pi
        now = observed(task)
        np.testing.assert_allclose(now[:, 2], np.clip(0.5 * error, -1.0, 0.5), atol=1e-5)
        np.testing.assert_array_equal(now[:, :2], first[:, :2])
        task.step()
    assert np.abs(now[:, 2] - first[:, 2]).max() > 0.2
    assert np.ptp(now[:, 0]) > 1.5  # The velocities are drawn.


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_a_velocity_in_the_world_keeps_its_direction_there_while_the_base_turns(engine: str) -> None:
    task = build(engine=engine, rel_world_envs=1.0, speed=20.0)
    x, drawn = np.zeros(64), list[np.ndarray]()
    for _ in range(10):
        x, y, z = observed(task).T
        cos, sin = np.cos(yaws(task)), np.sin(yaws(task))
        drawn.append(np.stack([cos * x - sin * y, sin * x + cos * y, z]))
        task.step()
    np.testing.assert_allclose(drawn, [drawn[0]] * 10, atol=1e-5)
    assert (np.abs(drawn[0][:2]).max(axis=1) <= [1.0, 0.5]).all()
    assert np.ptp(x - drawn[0][0]) > 0.5  # In the base's frame it is another.


def test_shares_of_the_environments_stand_walk_ahead_and_turn_to_a_heading() -> None:
    shares = {"rel_standing_envs": 0.2, "rel_forward_envs": 0.5, "rel_heading_envs": 0.5}
    task = build(num_envs=2000, heading_command=True, heading=(0.5, 0.5), heading_control_stiffness=0.1, **shares)
    x, y, z = observed(task).T
    stands = (x == 0.0) & (y == 0.0) & (z == 0.0)
    ahead = (y == 0.0) & (x >= 0.3)
    error = (0.5 - yaws(task) + math.pi) % (2 * math.pi) - math.pi
    turns = ~stands & (np.abs(z - 0.1 * error) < 1e-5)
    assert abs(stands.mean() - 0.2) < 0.04
    assert abs(ahead.mean() - 0.4) < 0.04
    assert abs(turns.mean() - 0.4) < 0.04
    assert abs((ahead & turns).mean() - 0.2) < 0.04
    assert (z[ahead & ~turns] == 0.0).all()
    assert abs((x[ahead] == np.float32(0.3)).mean() - 0.3) < 0.05  # Slower ones are raised to 0.3 m/s.
    task.step()
    assert (observed(task)[stands] == 0.0).all()


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_an_episode_begins_with_its_commanded_velocity_where_that_is_drawn(engine: str) -> None:
    task = build(engine=engine, num_envs=400, init_velocity_prob=0.5, resampling_time=(0.0, 0.0))
    command, qvel = observed(task), task.qvel.numpy().copy()
    wanted = np.einsum("nij,nj->ni", rotations(task), command * [1.0, 1.0, 0.0])
    moving = np.abs(qvel[:, :3]).max(axis=1) > 0.0
    assert abs(moving.mean() - 0.5) < 0.1
    np.testing.assert_allclose(qvel[moving, :3], wanted[moving], atol=1e-6)
    np.testing.assert_allclose(qvel[moving, 3:6], command[moving] * [0.0, 0.0, 1.0], atol=1e-6)
    task.step()  # The physics begins there, and a later command moves nothing.
    np.testing.assert_allclose(task.qvel.numpy()[moving, :3], wanted[moving], atol=1e-3)
    assert (observed(task) != command).any(axis=1).all()


@wp.func
def counted(state: Any, env: int, first: int, is_new: bool, memory: Annotated[wp.array2d[wp.vec3], Memory]) -> None:
    """Count commands and steps."""
    counts = memory[env, 0]
    counts[0] += wp.where(is_new, 1.0, 0.0)
    counts[2] += 1.0
    memory[env, 0] = counts
    state.commands[env, first] = counts[0]
    state.commands[env, first + 1] = counts[2]


def test_a_command_with_memory_is_called_in_every_step_and_begins_again_with_the_episode() -> None:
    command = Command(counted, columns={"commands": "", "steps": ""}, resampling_time=(0.02, 0.02))
    task = build(num_envs=2, command=command)
    assert task.step_dt == pytest.approx(0.004)
    assert task.observations == {"policy": 2}
    for _ in range(2):
        seen = [observed(task)[0].tolist()]
        for _ in range(6):
            task.step()
            seen.append(observed(task)[0].tolist())
        assert seen == [[1, 1], [1, 2], [1, 3], [1, 4], [1, 5], [2, 6], [2, 7]]
        task.restart()


HELD = np.array([0.3, -0.2, 0.1], dtype=np.float32)


def test_what_a_viewer_writes_holds_until_it_lets_go_whatever_the_task_would_draw() -> None:
    task = build(num_envs=4, heading_command=True, heading=(3.0, 3.0), rel_world_envs=1.0, resampling_time=(0.01, 0.01))
    env, seen = WarpVecEnv(task), list[np.ndarray]()
    env.hold_commands(held=True)
    task.command_array.assign(np.tile(HELD, (4, 1)))
    for step in range(8):
        if step == 4:
            task.restart()  # A new episode, too.
        task.step()
        seen.append(observed(task))
    np.testing.assert_array_equal(seen, np.tile(HELD, (8, 4, 1)))
    env.hold_commands(held=False)
    for _ in range(4):
        task.step()
    assert (observed(task)[:, 2] != np.float32(0.1)).all()


def test_a_command_brings_its_metrics_and_marks_along() -> None:
    task = build(num_envs=8)
    assert task.metrics == ("twist/error_vel_xy", "twist/error_vel_yaw")
    for _ in range(3):
        task.step()
    command, qvel = observed(task).astype(float), task.qvel.numpy().astype(float)
    lin_vel = np.einsum("nij,ni->nj", rotations(task), qvel[:, :3])
    wanted = [np.hypot(*(command - lin_vel).T[:2]), np.abs(command[:, 2] - qvel[:, 5])]
    np.testing.assert_allclose(task.metric_values.numpy().T, wanted, atol=1e-5)
    row = {"commands": np.zeros(3), "qpos": task.qpos.numpy()[0], "qvel": qvel[0]}
    arrows = task.marks(row | {"commands": np.array([1.0, 0.0, 0.0])})
    np.testing.assert_allclose(arrows[0].vector, 0.5 * rotations(task)[0][:, 0], atol=1e-6)
    assert len(arrows) == 4
    drawn = build(num_envs=1, command=Command(ahead, columns={"x": "m"}, resampling_time=(1.0, 1.0)))
    (sphere,) = drawn.marks({"commands": np.array([0.7])})
    assert (tuple(np.round(sphere.position, 6)), drawn.metrics) == ((0.7, 0.0, 0.0), ("twist/doubled",))
    drawn.step()
    assert drawn.metric_values.numpy().tolist() == [[2.0]]


@wp.func
def doubled(state: Any, env: wp.int32, command: CommandColumn) -> wp.float32:
    """Return twice the command."""
    return 2.0 * state.commands[env, command]


def sphere(task: Any, first: int, row: Any) -> list[Mark]:
    """Draw the place."""
    assert task.commands
    return [Sphere((float(row["commands"][first]), 0.0, 0.0), radius=0.1)]


@shows(sphere, doubled=doubled)
@wp.func
def ahead(state: Any, env: wp.int32, first: wp.int32) -> None:
    """Command one place."""
    state.commands[env, first] = 1.0
