"""What terms write: both engines simulate with it, from the same step on; and what no term may write is refused."""

# ruff: noqa: ARG001, ARG003, PLR0917

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.errors import ShoalError
from shoal.mdp.accesses import writes
from shoal.mdp.annotations import ActuatorIds
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Command, Done, Event, Obs, Reward

CART = """
<mujoco>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body name="cart"><joint name="rail" type="slide" axis="1 0 0"/><geom size="0.1" mass="2"/></body>
  </worldbody>
  <actuator><motor name="push" joint="rail"/></actuator>
</mujoco>
"""


@wp.func
def set_speed(state: Any, env: int, speed: float) -> None:
    """Set the cart's speed [m/s]."""
    state.qvel[env, 0] = speed


@wp.func
def brake(damping: wp.array2d[wp.float32], env: int, value: float) -> None:
    """Set the damping of the rail [N s/m]."""
    damping[env, 0] = value


@wp.func
def damp(state: Any, env: int, value: float) -> None:
    """Set the damping of the rail by another function [N s/m]."""
    brake(state.dof_damping, env, value)


@wp.func
def load(state: Any, env: int, value: float) -> None:
    """Set the mass of the cart [kg]."""
    state.body_mass[env, 1] = value


@wp.func
def speed_command(state: Any, env: int, first: int, speed: float) -> None:
    """Draw a command that begins with a speed."""
    state.commands[env, first] = speed
    if state.age[env] > 0:
        state.qvel[env, 0] = speed


@wp.func
def stiff_push(state: Any, env: int, i: int, action: float, actuators: ActuatorIds, value: float) -> None:
    """Push, with another damping."""
    state.ctrl[env, actuators[i]] = action
    state.dof_damping[env, 0] = value


@wp.func
def cart_speed(state: Any, env: int) -> float:
    """Return the cart's speed [m/s]."""
    return state.qvel[env, 0]


@wp.func
def place(state: Any, env: int) -> wp.vec3:
    """Return the cart's position [m]."""
    return state.xpos[env, 1]


@wp.func
def meddle(state: Any, env: int) -> float:
    """Reward nothing, and move the cart."""
    wp.atomic_add(state.qpos, env, 0, 1.0)
    return 0.0


@wp.func
def lift(state: Any, env: int) -> None:
    """Write a derived field."""
    state.xpos[env, 1] = wp.vec3(0.0, 0.0, 1.0)


@wp.func
def teleport(state: Any, env: int, i: int, action: float, actuators: ActuatorIds) -> None:
    """Write a position instead of a control."""
    state.qpos[env, 0] = action


@wp.func
def is_far(state: Any, env: int) -> bool:
    """Whether the cart is far away; never."""
    return state.qpos[env, 0] > 1e6


CONFIG = task_config(
    TermsConfig,
    decimation=1,
    actions={"push": Action("joint_effort", actuators="push", scale=1.0)},
    observations={"policy": {"speed": Obs(cart_speed), "place": Obs(place)}},
    rewards={"none": Reward("is_alive", weight=0.0)},
)


class Cart(TermsTask[TermsConfig]):
    """A cart of 2 kg on a rail, pushed with 1 N."""

    config = CONFIG

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(CART)


def build(engine: str, changes: dict[str, Any]) -> Cart:
    task = Cart(CONFIG.change(engine=engine, **changes), num_envs=2, device="cpu", seed=0)
    task.actions.fill_(1.0)
    return task


STEP = {"interval": (1.0, 1.0)}
KINDS: dict[str, tuple[dict[str, Any], list[float]]] = {
    "nothing": ({}, [0.005, 0.010, 0.015]),
    # Written after each physics step, so the speed that is observed.
    "a step event writes the state": (
        {"events": {"x": Event(set_speed, "step", speed=3.0, **STEP)}},
        [3.0, 3.0, 3.0],
    ),
    "a command writes the state": (
        {"commands": {"x": Command(speed_command, columns={"v": "m/s"}, resampling_time=(0.0, 0.0), speed=3.0)}},
        [3.0, 3.0, 3.0],
    ),
    # From the second step on: implicit damping by 100 N s/m of 2 kg divides by 1.5.
    "a reset event writes a mass": (
        {"events": {"x": Event(load, "reset", value=4.0)}},
        [0.0025, 0.005, 0.0075],
    ),
    "a step event writes a field of the model": (
        {"events": {"x": Event(damp, "step", value=100.0, **STEP)}},
        [0.005, 0.010 / 1.5, (0.010 / 1.5 + 0.005) / 1.5],
    ),
    "a step event writes a mass": (
        {"events": {"x": Event(load, "step", value=4.0, **STEP)}},
        [0.005, 0.0075, 0.010],
    ),
    "an action writes a field of the model": (
        {"actions": {"push": Action(stiff_push, actuators="push", value=100.0)}},
        [0.005 / 1.5, (0.005 / 1.5 + 0.005) / 1.5, ((0.005 / 1.5 + 0.005) / 1.5 + 0.005) / 1.5],
    ),
}


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_engines_simulate_with_what_terms_write(engine: str, kind: str) -> None:
    changes, speeds = KINDS[kind]
    task, seen = build(engine, changes), list[float]()
    for _ in range(3):
        task.step()
        speed, x, *_ = task.obs["policy"].numpy()[1].tolist()
        seen.append(speed)
        if "state" in kind or kind == "a step event writes a mass":  # Derived fields are of the state that was written.
            assert x == pytest.approx(task.qpos.numpy()[1, 0], abs=1e-7)
        else:  # As after MuJoCo's step, of the position before.
            assert x == pytest.approx(sum(seen[:-1]) * 0.01, abs=1e-7)
    np.testing.assert_allclose(seen, speeds, rtol=1e-5)
    if "state" in kind:  # It moves on from there: 3 m/s and 1 N on 2 kg.
        assert task.qpos.numpy()[1, 0] == pytest.approx(0.01 * (0.005 + 3.005 + 3.005), rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rewards": {"bad": Reward(meddle, weight=1.0)}},
            r"^rewards\.bad writes state\.qpos, which only events and commands may: write it in an event of",
        ),
        (
            {"actions": {"push": Action(teleport, actuators="push")}},
            r"^actions\.push writes state\.qpos, which only events and commands may: write it in an event",
        ),
        (
            {"events": {"bad": Event(lift, "reset")}},
            r"^events\.bad writes state\.xpos, which follows from the state: write positions, velocities or",
        ),
    ],
)
def test_a_term_that_writes_what_an_engine_would_not_read_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ShoalError, match=said):
        build("mujoco", changes)


def test_what_a_function_writes_is_found_through_those_that_it_calls() -> None:
    assert writes(damp) == {"dof_damping"}
    assert writes(speed_command) == {"commands", "qvel"}
    assert writes(meddle) == {"qpos"}
    assert writes(place) == frozenset()


def test_terms_that_write_nothing_leave_the_state_as_mujoco_has_it() -> None:
    task = build("mujoco", {"terminations": {"far": Done(is_far)}})
    data = mujoco.MjData(task.model)
    data.ctrl[:] = 1.0
    for _ in range(5):
        task.step()
        mujoco.mj_step(task.model, data)
    np.testing.assert_array_equal(task.host_state["state"][0][1], data.qpos[0])
