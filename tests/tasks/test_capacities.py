"""Room for contacts and constraints in MuJoCo Warp: what tasks declare, what is computed, and how it grows."""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import mujoco
import mujoco_warp as mjw
import numpy as np
import pytest
from support.bouncing_task import TERMS, BouncingConfig, BouncingTask, CrampedTask
from support.commands import TRAIN, start

from shoal.config.env import MujocoConfig
from shoal.mdp.config import task_config
from shoal.sim.engines.capacities import capacities_of
from shoal.tasks.registry import registered

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.mdp.task import TermsTask

TRAINED = 40_960
"""Steps of the longest training. On MuJoCo Warp, Swimmer makes a hundred a second on one core."""
TO_SPARE = 1.2
"""How many times as much room there is as was ever needed here."""
PACKAGES = {
    "G1-Velocity-Flat": "mjlab",
    "G1-Velocity-Rough": "mjlab",
    "G1-Tracking-Flat": "holosoma",
    "Hand-Reorient-Cube": "gymnasium_robotics",
}
"""Packages that models are in."""
EVERYDAY = {"G1-Velocity-Flat", "Quadruped-Velocity-Flat"}
HARDEST: dict[str, Any] = {name: {"only_level": 9} for name in registered() if "Rough" in name}


def task_parameter(name: str) -> Any:
    package = PACKAGES.get(name, "shoal")
    missing = importlib.util.find_spec(package) is None
    marks = [pytest.mark.skipif(missing, reason=f"{package} is not installed: make robots")]
    return pytest.param(name, marks=marks if name in EVERYDAY else [*marks, pytest.mark.soak])


NAMES = [task_parameter(name) for name, spec in registered().items() if isinstance(spec.env, MujocoConfig)]


def simulate(task: TermsTask[Any], steps: int) -> np.ndarray:
    """Act in ever wilder ways, and return the contacts and constraints that any environment needed."""
    data = cast("Any", task.engine)._data
    rng, most = np.random.default_rng(0), np.zeros(2)
    shape = (task.num_envs, task.num_actions)
    for kind in range(4):
        task.restart(kind)
        actions = np.zeros(shape)
        for step in range(steps):
            if kind in (1, 2):
                actions = rng.normal(0.0, 2 * kind - 1, shape)
            elif kind == 3 and step % 20 == 0:
                actions = rng.choice([-10.0, 10.0], shape)
            task.actions.assign(actions.astype(np.float32))
            task.step()
            contacts = int(data.nacon.numpy()[0])
            mine = np.bincount(data.contact.worldid.numpy()[:contacts], minlength=1).max()
            pairs = data.ncollision.numpy()[0] / task.num_envs
            most = np.maximum(most, [max(mine, pairs), data.nefc.numpy().max()])
    return most


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_task_declares_more_room_than_it_needs(name: str) -> None:
    spec = registered()[name]
    env: Any = replace(spec.env, engine="mjwarp", step_graph=False, **HARDEST.get(name, {}))
    task: TermsTask[Any] = spec.load_builder()(env, num_envs=6, device="cpu", seed=0)
    assert task.capacities is not None
    assert tuple(task.engine.capacities.values()) == task.capacities
    assert (simulate(task, steps=25) * TO_SPARE <= task.capacities).all()
    assert task.take_warnings() == {}


def output_of_training(task: str, directory: Path, *, num_envs: int, iterations: int) -> str:
    """Train on MuJoCo Warp on the CPU, and return all that the command printed."""
    sizes = ("--num-envs", str(num_envs), "--max-iterations", str(iterations))
    flags = ("--env.engine", "mjwarp", "--gpu-ids", "None", *sizes, "--logger", "none", "--learner", "rsl_rl")
    ended = start((*TRAIN, task, *flags), directory).end(timeout=900)
    assert ended.code == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_dropped_while_a_shipped_task_trains(name: str, tmp_path: Path) -> None:
    iterations = min(20, TRAINED // (16 * registered()[name].agent.num_steps_per_env))
    assert "than there is room for" not in output_of_training(name, tmp_path, num_envs=16, iterations=iterations)


def cramped(kind: type[BouncingTask] = CrampedTask, **settings: Any) -> BouncingTask:
    return kind(replace(kind.config, engine="mjwarp", **settings), num_envs=3, device="cpu", seed=0)


def advance(task: BouncingTask, steps: int = 40) -> None:
    for _ in range(steps):
        task.step()


def test_a_task_with_too_little_room_gets_more_and_then_equals_one_that_always_had_it() -> None:
    small, large = cramped(), cramped(BouncingTask)
    advance(small)
    before = {name: array.numpy().copy() for name, array in small.arrays.items()}
    (warning,) = small.take_warnings().values()
    assert warning == (
        "3 environments (0, 1, 2) had more constraints than there is room for, and some were dropped: --env.njmax was "
        "1, and is 6 from now on. Pass --env.njmax 6 to begin with it."
    )
    for name, array in small.arrays.items():
        np.testing.assert_array_equal(array.numpy(), before[name], err_msg=name)
        large.arrays[name].assign(array)
    advance(small)
    advance(large)
    for name, array in small.arrays.items():
        np.testing.assert_allclose(array.numpy(), large.arrays[name].numpy(), atol=1e-6, err_msg=name)
    assert small.take_warnings() == {}


@pytest.mark.soak
def test_a_training_with_too_little_room_says_once_that_there_is_more(tmp_path: Path) -> None:
    task = f"{inspect.getsourcefile(CrampedTask)}:CrampedTask"
    output = output_of_training(task, tmp_path, num_envs=3, iterations=3)
    (line,) = (line for line in output.splitlines() if "than there is room for" in line)
    assert "On rank 0, 3 environments (0, 1, 2) had more constraints" in line
    assert line.endswith("Pass --env.njmax 6 to begin with it.")


def test_numbers_that_the_user_has_chosen_hold() -> None:
    task = cramped(njmax=2)
    for _ in range(2):
        advance(task)
        (warning,) = task.take_warnings().values()
        assert warning.endswith("--env.njmax is 2, pass more.")


def test_room_is_made_a_few_times_and_then_the_lack_of_it_is_only_reported() -> None:
    task = cramped()
    data = cast("Any", task.engine)._data
    flags = list[str]()
    for _ in range(7):
        data.overflow.fill_(int(mjw.OverflowType.BROADPHASE))
        flags += [warning.partition("--env.")[2] for warning in task.take_warnings().values()]
    assert [flag.split()[2].strip(",.") for flag in flags] == ["1", "2", "3", "5", "8", "12", "12"]
    assert all("pass more" in flag for flag in flags[5:])
    assert data.naconmax == 3 * 12


@dataclass(frozen=True, kw_only=True)
class OfTwoModels(BouncingConfig):
    model_fields: ClassVar = ("memory",)


class Declared(BouncingTask):
    config = task_config(OfTwoModels, **TERMS)
    capacities = (7, 11)


class Heir(Declared):
    config = task_config(OfTwoModels, memory="1M", **TERMS)


@pytest.mark.parametrize(
    ("kind", "memory", "room"), [(Declared, "", (7, 11)), (Declared, "1M", (48, 64)), (Heir, "1M", (48, 64))]
)
def test_what_is_declared_holds_for_the_model_of_the_declaring_class(
    kind: type[Declared], memory: str, room: tuple[int, int]
) -> None:
    task = cramped(kind, memory=memory)
    assert tuple(task.engine.capacities.values()) == room


@pytest.mark.parametrize(
    ("bodies", "options", "needed"),
    [
        # 20 boxes on the ground, 4 contacts each.
        ('<freejoint/><geom type="box" size=".1 .1 .1"/>', "", {"nconmax": 80, "njmax": 320}),
        ('<freejoint/><geom type="box" size=".1 .1 .1"/>', 'cone="elliptic"', {"nconmax": 80, "njmax": 240}),
        ('<freejoint/><geom type="box" size=".1 .1 .1" condim="1"/>', "", {"nconmax": 80, "njmax": 320}),
        # 20 balls on hinges with a limit and friction.
        ('<joint range="-1 1" frictionloss="1"/><geom size=".1"/>', "", {"nconmax": 48, "njmax": 120}),
        # Nothing touches.
        ('<freejoint/><geom size=".1" contype="0" conaffinity="0"/>', "", {"nconmax": 48, "njmax": 64}),
    ],
)
def test_room_is_computed_from_the_model(bodies: str, options: str, needed: dict[str, int]) -> None:
    many = "".join(f'<body pos="{number} 0 1">{bodies}</body>' for number in range(20))
    text = f'<mujoco><option {options}/><worldbody><geom type="plane" size="9 9 1"/>{many}</worldbody></mujoco>'
    model = mujoco.MjModel.from_xml_string(text)
    assert capacities_of(model) == needed
    assert {type(number) for number in capacities_of(model).values()} == {int}  # numpy's would not compile.
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    assert data.ncon <= needed["nconmax"]


def test_a_height_field_has_the_room_of_mujoco_warp() -> None:
    text = '<mujoco><asset><hfield name="h" nrow="2" ncol="2" size="1 1 1 1"/></asset><worldbody>'
    text += '<geom type="hfield" hfield="h"/></worldbody></mujoco>'
    assert capacities_of(mujoco.MjModel.from_xml_string(text)) == {}
