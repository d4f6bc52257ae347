"""Terms that ask for what is not there, or are given what they cannot take, are refused when they are bound."""

# ruff: noqa: ARG001, ARG003

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
import warp as wp

from shoal import mdp
from shoal.errors import ShoalError, UsageError
from shoal.mdp.accesses import python_of
from shoal.mdp.annotations import GeomId, Geoms, Joints
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.needs import needs_of
from shoal.mdp.noise import Gaussian
from shoal.mdp.rewards import angular_momentum_penalty
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Command, Contact, Done, Event, Obs, Reward

ARM = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1"/>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" damping="0.1"/>
      <geom name="upper" type="capsule" size="0.03" fromto="0 0 0 0 0 -0.3"/>
      <body name="lower" pos="0 0 -0.3">
        <joint name="elbow" axis="0 1 0" damping="0.1"/>
        <geom name="lower" type="capsule" size="0.03" fromto="0 0 0 0 0 -0.3"/>
      </body>
    </body>
  </worldbody>
  <contact><pair name="ground" geom1="lower" geom2="floor" friction="0.9 0.8 0.7 0.6 0.5"/></contact>
  <equality><joint name="gear" joint1="shoulder" joint2="elbow" polycoef="1 2 3 4 5" active="false"/></equality>
  <actuator>
    <position name="shoulder" joint="shoulder" kp="20" kv="1"/>
    <position name="elbow" joint="elbow" kp="20" kv="1"/>
  </actuator>
  <sensor><jointpos name="angle" joint="elbow"/></sensor>
</mujoco>
"""
ALL = ".*"


@wp.func
def first_joint(state: Any, env: int) -> float:
    """Return the position of the first joint [rad]."""
    return state.qpos[env, 0]


@wp.func
def between(state: Any, env: int, limits: wp.vec2) -> float:
    """Return the middle of two numbers."""
    return 0.5 * (limits[0] + limits[1])


@wp.func
def one_column(state: Any, env: int, first: int, speed: wp.vec2) -> None:
    """Command a speed."""
    state.commands[env, first] = speed[0]


@wp.func
def high(state: Any, env: int, geom: GeomId) -> bool:
    """Whether a geom is high."""
    return state.geom_xpos[env, geom][2] > 1.0


@wp.func
def returns_nothing(state: Any, env: int) -> None:
    """Forget to return a value."""
    state.rng[env] = state.rng[env]


class Arm(TermsTask[TermsConfig]):
    """Two joints on a fixed base."""

    @classmethod
    def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(ARM)


def configured(**groups: Any) -> TermsConfig:
    usual: dict[str, Any] = {
        "actions": {"targets": Action("joint_position", actuators=ALL, scale=0.5)},
        "observations": {"policy": {"joint_pos": Obs("joint_pos_rel", joints=ALL)}},
        "rewards": {"first": Reward(first_joint, 1.0)},
    }
    return task_config(TermsConfig, **{**usual, **groups})


def bound(**groups: Any) -> Arm:
    """Return a task whose terms are bound, and nothing more."""
    task = Arm.__new__(Arm)
    task.configure(configured(**groups), 1, "cpu", 0)
    task.build()
    return task


def observed(*terms: Any) -> dict[str, Any]:
    return {"observations": {"policy": {f"x{number}": term for number, term in enumerate(terms)}}}


def rewarded(*terms: Any) -> dict[str, Any]:
    return {"rewards": {f"x{number}": term for number, term in enumerate(terms)}}


NARROW = {
    "commands": {"narrow": Command(one_column, columns={"a": "m/s"}, resampling_time=(1.0, 1.0), speed=(0.0, 1.0))}
}
ONE = {"columns": {"speed": "m/s"}, "resampling_time": (1.0, 1.0)}
FREE = "which needs a model that begins with a free joint"

REFUSED: dict[str, tuple[Any, str]] = {
    # A free joint, a sensor, a command or a contact that is not there.
    "base_velocity": (lambda: observed(Obs("base_lin_vel")), f"observations.policy.x0 calls base_lin_vel(), {FREE}"),
    "gravity": (lambda: rewarded(Reward("flat_orientation_l2", 1.0)), FREE),
    "height": (lambda: {"terminations": {"low": Done("root_height_below_minimum", minimum_height=0.1)}}, FREE),
    "push": (
        lambda: {
            "events": {
                "x": Event("push_by_setting_velocity", "interval", interval=(1.0, 1.0), x=(0.0, 1.0), y=(0.0, 1.0))
            }
        },
        f"events.x calls push_by_setting_velocity(), {FREE}",
    ),
    "momentum": (
        lambda: rewarded(Reward("angular_momentum_penalty", 1.0, sensor="angle")),
        "needs a sensor of 3 columns",
    ),
    "narrow_command": (
        lambda: NARROW | observed(Obs("velocity_command", command="narrow")),
        "calls velocity_command(), which needs a command of 3 columns",
    ),
    "wide_command": (
        lambda: {
            "commands": {
                "x": Command(
                    "uniform_velocity",
                    columns={"lin_vel_x": "m/s"},
                    resampling_time=(1.0, 1.0),
                    lin_vel_x=(0.0, 1.0),
                    lin_vel_y=(0.0, 1.0),
                    ang_vel_z=(0.0, 1.0),
                    rel_standing_envs=0.0,
                )
            }
        },
        "commands.x calls uniform_velocity(), which needs a command of 3 columns",
    ),
    "contact": (
        lambda: rewarded(Reward("self_collision_cost", 1.0, contact="feet")),
        "rewards.x0.contact is 'feet', but the task does not declare a contact of that name. It has: none.",
    ),
    "contact_of_nothing": (
        lambda: {"contacts": {"c": Contact(high, geom="upper")}},
        "contacts.c tracks nothing: its function",
    ),
    "action": (
        lambda: (
            observed(Obs("last_action", actuators=ALL))
            | {"actions": {"a": Action("joint_position", actuators="elbow", scale=1.0)}}
        ),
        "x0.action_columns is 'shoulder', but the task does not declare an action of it. It has: elbow.",
    ),
    # Values of another type or number.
    "noise": (
        lambda: observed(Obs("joint_pos_rel", joints=ALL, noise=(-0.1, 0.1))),
        "env.observations.policy.x0.noise is (-0.1, 0.1), but must be at least 0.",
    ),
    "noise_below_zero": (
        lambda: observed(Obs("joint_pos_rel", joints=ALL, bias=Gaussian(-0.1))),
        "env.observations.policy.x0.bias.std is -0.1, but must be at least 0.",
    ),
    "noise_in_words": (
        lambda: observed(Obs("joint_pos_rel", joints=ALL, noise="large")),
        "env.observations.policy.x0.noise is 'large', but must be a number.",
    ),
    "clip": (
        lambda: observed(Obs("joint_pos_rel", joints=ALL, clip=(1.0, -1.0))),
        "env.observations.policy.x0.clip is (1.0, -1.0), but must be finite, the smaller number first",
    ),
    "lags": (
        lambda: observed(Obs("joint_pos_rel", joints=ALL, delay_min_lag=2)),
        "env.observations.policy.x0.delay_min_lag is 2, but must be at most delay_max_lag, which is 0.",
    ),
    "action_clip": (
        lambda: {"actions": {"a": Action("joint_position", actuators=ALL, scale=1.0, clip=(-1.0, 1.0))}},
        "env.actions.a.clip is [-1.0, 1.0], but must be a number.",
    ),
    "weight": (
        lambda: rewarded(Reward(first_joint, "heavy")),  # pyright: ignore[reportArgumentType]
        "env.rewards.x0.weight is 'heavy', but must be a number.",
    ),
    "history_length": (
        lambda: observed(Obs("joint_pos_rel", joints=ALL, history_length=2.0)),
        "history_length is 2.0, but must be a whole number.",
    ),
    "interval": (
        lambda: {"events": {"x": Event("hold_default_pose", "interval", actuators=ALL, interval=1.0)}},
        "interval is 1.0, but",
    ),
    "three_for_two": (
        lambda: rewarded(Reward(between, 1.0, limits=(1.0, 2.0, 3.0))),
        "rewards.x0.limits is (1.0, 2.0, 3.0), but must be 2 numbers.",
    ),
    "one_for_two": (
        lambda: rewarded(Reward(between, 1.0, limits=1.0)),
        "rewards.x0.limits is 1.0, but must be 2 numbers.",
    ),
    "two_for_one": (
        lambda: rewarded(Reward("joint_pos_limits", 1.0, joints=ALL, soft_factor=(0.9, 0.8))),
        "rewards.x0.soft_factor is (0.9, 0.8), but must be a number.",
    ),
    "word_for_number": (
        lambda: rewarded(Reward("joint_pos_limits", 1.0, joints=ALL, soft_factor="x")),
        "rewards.x0.soft_factor is 'x', but is annotated as float, which takes numbers: annotate",
    ),
    "words_for_numbers": (
        lambda: rewarded(Reward("posture", 1.0, joints=ALL, std=("a", "b"))),
        "std is ('a', 'b'), but must be 2",
    ),
    "number_for_names": (
        lambda: rewarded(Reward("joint_vel_l2", 1.0, joints=3)),
        "rewards.x0.joints is 3.0, but must be a pattern of names, or several.",
    ),
    "column": (
        lambda: {"commands": {"x": Command(one_column, **ONE, speed=1.0)}},
        "The command one_column has speed=1.0, but 'speed' is one of its columns too",
    ),
    "mode": (
        lambda: {"events": {"x": Event("hold_default_pose", "resets", actuators=ALL)}},
        "The event 'hold_default_pose' has the mode 'resets', but must be one of startup, reset, interval, step.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_term_cannot_take_or_does_not_find_is_refused_in_a_sentence(name: str) -> None:
    groups, said = REFUSED[name]
    with pytest.raises((ShoalError, UsageError), match=re.escape(said)):
        bound(**groups())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward": {"x": Reward(first_joint, 1.0)}}, "TermsConfig has no field 'reward'. Did you mean 'rewards'?"),
        ({"decimaton": 3}, "TermsConfig has no field 'decimaton'. Did you mean 'decimation'?"),
        ({"rewards": [Reward(first_joint, 1.0)]}, "but must be given by name"),
    ],
)
def test_a_change_of_what_does_not_exist_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ShoalError, match=re.escape(said)):
        configured().change(**changes)


def test_a_function_that_warp_does_not_compile_is_refused_in_a_sentence() -> None:
    with pytest.raises(ShoalError, match=r"^Warp does not compile the terms of Arm: .*returns_nothing"):
        Arm(configured(**observed(Obs(returns_nothing))), num_envs=1, device="cpu", seed=0)


# What a parameter is follows from its annotation, not from its name.


@wp.func
def swing(state: Any, env: int, which: mdp.Joints, where: mdp.GeomId, joints: float) -> float:
    """Return the speed of some joints and the height of a geom, times a number."""
    total = float(state.geom_xpos[env, where][2])
    for i in range(which.shape[0]):
        total += state.qvel[env, which[i].dof]
    return joints * total


def swing_torch(state: Any, which: mdp.Joints, where: mdp.GeomId, joints: torch.Tensor) -> torch.Tensor:
    """Return the same for all environments."""
    return joints * (state.geom_xpos[:, where, 2] + state.qvel[:, which.dof].sum(dim=1))


@pytest.mark.parametrize("function", [swing, swing_torch])
def test_the_annotation_of_a_parameter_decides_what_it_selects_whatever_its_name(function: Any) -> None:
    terms = rewarded(Reward(function, 1.0, which="elbow", where="lower", joints=2.0))
    task = Arm(configured(**terms), num_envs=1, device="cpu", seed=0)
    task.actions.fill_(1.0)
    for _ in range(3):
        task.step()
    speed, height = task.engine.data("qvel").numpy()[0, 1], task.engine.data("geom_xpos").numpy()[0, 2, 2]
    assert abs(speed) > 0.01
    np.testing.assert_allclose(task.terms.numpy()[0, 0], 2.0 * (height + speed), rtol=1e-5)


@wp.func
def old_fashioned(state: Any, env: int, joints: wp.array[mdp.Joint]) -> float:
    """Take an array that does not say what it is."""
    return state.qpos[env, joints[0].qpos]


@wp.func
def body_by_number(state: Any, env: int, body: int) -> float:
    """Take a number."""
    return state.xpos[env, body][2]


def unannotated(state: Any, site) -> Any:  # noqa: ANN001
    """Take anything."""
    return state.site_xpos[:, site, 2]


def unknown(state: Any, site: str) -> Any:
    """Take a name."""
    return state.site_xpos[:, site, 2]


def misspelled(state: Any, site: mdp.Sight) -> Any:
    """Take what does not exist."""
    return state.site_xpos[:, site, 2]


@wp.func
def late_index(state: Any, env: int, joints: mdp.Joints, i: int) -> float:
    """Take the place of a joint after the joints."""
    return state.qpos[env, joints[i].qpos]


@wp.func
def weights_of_nothing(state: Any, env: int, weights: mdp.Numbers, joints: mdp.Joints) -> float:
    """Take numbers of what is selected afterwards."""
    return weights[0] * state.qpos[env, joints[0].qpos]


@wp.func
def reads_a_sensor(state: Any, env: int, sensor: mdp.SensorColumn) -> float:
    """Read three numbers by another function."""
    return angular_momentum_penalty(state, env, sensor)


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        (
            late_index,
            {"joints": ALL},
            "rewards.x0: the first parameters of late_index() must be state, env, i, in this",
        ),
        (
            weights_of_nothing,
            {"weights": 1.0, "joints": ALL},
            "weights is of what is selected, but no parameter before",
        ),
        (reads_a_sensor, {}, "rewards.x0.sensor is missing: reads_a_sensor() needs it."),
        (reads_a_sensor, {"sensor": "angle"}, "calls reads_a_sensor(), which needs a sensor of 3 columns"),
        (
            old_fashioned,
            {"joints": ALL},
            "x0.joints is '.*', but is annotated as wp.array[Joint], which no ",
        ),
        (
            old_fashioned,
            {"joints": 1.0},
            "x0.joints is 1.0, but is annotated as wp.array[Joint], which no ",
        ),
        (body_by_number, {"body": "upper"}, "body is 'upper', but is annotated as int, which takes numbers: annotate"),
        (unannotated, {"site": "tip"}, "site is 'tip', but is annotated as nothing, which no parameter can be"),
        (unknown, {"site": "tip"}, "is annotated as str, which no parameter can be: annotate numbers as float, "),
        (unknown, {"site": "tip"}, "what selects by name as one of shoal.mdp: Joints, Actuators, ActuatorIds, "),
        (misspelled, {"site": "tip"}, "An annotation of misspelled() cannot be found ("),
        (
            "action_acc_l2",
            {"actuators": ALL, "memory": 1.0},
            "memory is given, but made for the term: leave it out.",
        ),
    ],
)
def test_an_annotation_that_says_nothing_is_refused_with_those_that_exist(
    function: Any, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ShoalError, match=re.escape(said)):
        bound(**rewarded(Reward(function, 1.0, **given)))


@wp.func
def command_of_my_own(state: Any, env: int, goal: mdp.CommandColumn) -> float:
    """Read three columns of a command by another function."""
    return mdp.command_at(state, env, goal)[2]


def test_what_a_parameter_needs_holds_for_a_function_that_passes_its_own_on() -> None:
    said = "rewards.x0 calls command_of_my_own(), which needs a command of 3 columns: use another function."
    with pytest.raises(ShoalError, match=re.escape(said)):
        bound(**NARROW, **rewarded(Reward(command_of_my_own, 1.0, goal="narrow")))


def test_every_function_that_indexes_the_base_says_that_it_needs_a_free_joint() -> None:
    reads_base = re.compile(r"state\.q(pos|vel)\[env, (\d|column|3 \+|4 \+)")
    for library in ("base", "events", "levels", "observations", "rewards", "terminations"):
        module = import_module(f"shoal.mdp.{library}")
        found = [each for each in vars(module).values() if isinstance(each, wp.Function) and hasattr(each, "func")]
        for function in found:
            if reads_base.search(inspect.getsource(python_of(function))):
                assert needs_of(function)["state"], function.key


def test_rows_of_five_and_twelve_numbers_of_the_model_reach_its_terms() -> None:
    @wp.func
    def odd_rows(state: Any, env: int) -> float:
        return state.pair_friction[env, 0][4] + state.eq_data[env, 0][1] + state.geom_solimp[env, 1][0]

    task = Arm(configured(**rewarded(Reward(odd_rows, 1.0))), num_envs=2, device="cpu", seed=0)
    task.step()
    expected = task.model.pair_friction[0, 4] + task.model.eq_data[0, 1] + task.model.geom_solimp[1, 0]
    np.testing.assert_allclose(task.terms.numpy(), np.full((2, 1), expected), rtol=1e-6)


# Actions, by actuator.


def test_last_actions_are_those_of_the_selected_actuators_whatever_order_the_actions_have() -> None:
    task = Arm(
        configured(
            actions={
                "second": Action("joint_position", actuators="elbow", scale=0.5),
                "first": Action("joint_position", actuators="shoulder", scale=0.5),
            },
            observations={
                "policy": {"all": Obs("last_action", actuators=ALL), "elbow": Obs("last_action", actuators="elbow")}
            },
            rewards={"acc": Reward("action_acc_l2", 1.0, actuators="elbow")},
        ),
        num_envs=2,
        device="cpu",
        seed=0,
    )
    elbow, shoulder = [0.1, 0.2], [0.3, 0.4]  # Of both environments.
    task.actions.assign(np.array([elbow, shoulder], dtype=np.float32).T)
    task.step()
    np.testing.assert_allclose(task.obs["policy"].numpy(), np.array([shoulder, elbow, elbow]).T)
    np.testing.assert_allclose(task.terms.numpy()[:, 0], np.square(elbow), rtol=1e-5)


def test_an_actuator_that_has_an_action_alone_is_observed() -> None:
    task = Arm(
        configured(
            actions={"elbow": Action("joint_position", actuators="elbow", scale=0.5)},
            observations={"policy": {"elbow": Obs("last_action", actuators="elbow")}},
        ),
        num_envs=3,
        device="cpu",
        seed=0,
    )
    task.actions.assign(np.array([[0.1], [0.2], [0.3]], dtype=np.float32))
    task.step()
    np.testing.assert_allclose(task.obs["policy"].numpy(), [[0.1], [0.2], [0.3]])


# Functions and structs of one name.


def constant(value: float) -> Any:
    """Return a term that is always `value`."""

    @wp.func
    def always(state: Any, env: int) -> float:
        return wp.float32(value)

    return always


def test_two_closures_of_one_definition_are_two_terms() -> None:
    terms = rewarded(Reward(constant(1.0), 1.0), Reward(constant(2.0), 1.0))
    task = Arm(configured(**terms), num_envs=1, device="cpu", seed=0)
    task.step()
    assert task.terms.numpy().tolist() == [[1.0, 2.0]]


def struct_named_target(module: str, kind: Any) -> Any:
    """Return a struct `Target` of a module, whose number is of some type."""
    return wp.struct(type("Target", (), {"__annotations__": {"number": kind}, "__module__": module}))


@wp.func
def target(state: Any, env: int) -> float:
    """Return a number of a struct."""
    return wp.float32(state.target.number)


@pytest.mark.parametrize(("module", "kind", "number"), [(__name__, wp.int32, 3), ("warp", wp.float32, 2.5)])
def test_structs_of_one_name_are_two_types(module: str, kind: Any, number: float) -> None:
    struct = struct_named_target(module, kind)

    class Aiming(Arm):
        def own_state(self) -> dict[str, Any]:
            made = struct()
            made.number = number
            return {"target": made}

    task = Aiming(configured(**rewarded(Reward(target, 1.0))), num_envs=1, device="cpu", seed=0)
    task.step()
    assert task.terms.numpy().tolist() == [[number]]


# Indices that are out of bounds.


@wp.func
def writes_a_column_too_many(state: Any, env: int, first: int) -> None:
    """Write two columns."""
    state.commands[env, first] = 1.0
    state.commands[env, first + 1] = 1.0


@wp.func
def shoves_a_sixth_joint(state: Any, env: int) -> None:
    """Set a speed that the arm does not have."""
    state.qvel[env, 5] = 1.0


@wp.func
def reads_the_next_environment(state: Any, env: int) -> float:
    """Read behind the last environment."""
    return state.qpos[env + 1, 0]


@wp.func
def reads_a_geom_too_many(state: Any, env: int, geoms: Geoms, joints: Joints) -> float:
    """Read one struct too many."""
    return wp.float32(geoms[geoms.shape[0]].body) + joints[0].upper


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (
            {"commands": {"wide": Command(writes_a_column_too_many, **ONE)}},
            "The term commands.wide of Arm reads or writes outside of an array, on axis 1: keep its indices inside",
        ),
        (
            {"events": {"push": Event(shoves_a_sixth_joint, "interval", interval=(100.0, 100.0))}},
            "The term events.push of Arm reads or writes outside of an array, on axis 1",
        ),
        (
            rewarded(Reward(first_joint, 1.0), Reward(reads_the_next_environment, 1.0)),
            "The term rewards.x1 of Arm reads or writes outside of an array, on axis 0",
        ),
        (
            observed(Obs("joint_pos_rel", joints=ALL))
            | rewarded(Reward(reads_a_geom_too_many, 1.0, geoms="upper", joints=ALL)),
            "The term rewards.x0 of Arm reads or writes outside of an array, on axis 0",
        ),
    ],
)
def test_a_term_that_leaves_an_array_of_its_state_is_named(groups: dict[str, Any], said: str) -> None:
    with pytest.raises(ShoalError, match=re.escape(said)):
        Arm.build_once(configured(**groups))


def test_terms_that_stay_inside_their_arrays_are_not_refused() -> None:
    Arm.build_once(configured())
