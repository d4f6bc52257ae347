"""Which defaults a task in a user's own file has, and whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shoal.cli.parse import parse_train
from shoal.config import RslRlConfig
from shoal.errors import UsageError
from shoal.machine.gpus import VisibleGpus
from shoal.plan.training import plan_training
from shoal.tasks import registry

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.tasks.registry import TaskSpec

BASES = """
from shoal.config import RslRlConfig, EnvConfig
from shoal.tasks.quadruped.task import FlatVelocity

class Trotter(FlatVelocity):
    max_iterations = 7

class Pacer(Trotter):
    agent = RslRlConfig(num_steps_per_env=5)

class Bounder(Pacer):
    pass

class Kite:
    config = EnvConfig()
"""
FLAT = registry.resolve("Quadruped-Velocity-Flat")


def spec_of(name: str, tmp_path: Path) -> TaskSpec:
    """Read a task of a user's own file."""
    file = tmp_path / "gaits.py"
    file.write_text(BASES, encoding="utf-8")
    return registry.resolve(f"{file}:{name}")


def test_a_subclass_of_a_shipped_task_has_its_tuned_learner(tmp_path: Path) -> None:
    spec = spec_of("Trotter", tmp_path)
    assert spec.agent == FLAT.agent != RslRlConfig()
    assert (spec.num_envs, spec.max_iterations, spec.check) == (FLAT.num_envs, 7, FLAT.check)


@pytest.mark.parametrize(
    ("name", "steps", "note"),
    [
        ("Trotter", FLAT.agent.num_steps_per_env, "Trotter learns with the defaults of Quadruped-Velocity-Flat."),
        ("Pacer", 5, None),
        ("Bounder", 5, "Bounder learns with the defaults of Pacer."),
        ("Kite", RslRlConfig().num_steps_per_env, "Kite learns with rsl_rl's defaults, since it declares no `agent`."),
    ],
)
def test_the_plan_says_whose_defaults_the_learner_has(name: str, steps: int, note: str | None, tmp_path: Path) -> None:
    task = f"{tmp_path}/gaits.py:{name}"
    assert spec_of(name, tmp_path).agent.num_steps_per_env == steps
    plan = plan_training(parse_train([task, "--gpu-ids", "None"]), {}, VisibleGpus())
    assert plan.notes == ((note,) if note else ())


FAULTS = """
from dataclasses import dataclass
from pathlib import Path

import mujoco

from shoal.config import EnvConfig
from shoal.mdp import Action, Obs, Reward, TermsConfig, TermsTask, task_config

HERE = Path(__file__).parent

@dataclass(frozen=True, kw_only=True)
class CartConfig(TermsConfig):
    force_limit: float = 10.0

class Unfinished(TermsTask):
    config = task_config(CartConfig)

class Whole(TermsTask):
    config = task_config(
        CartConfig,
        actions={"push": Action("control", actuators="push", scale=1.0)},
        observations={"policy": {"rail": Obs("joint_pos", joints="rail")}},
        rewards={"still": Reward("joint_vel_l2", weight=-1.0, joints="rail")},
    )

    @classmethod
    def build_model(cls, config):
        return mujoco.MjModel.from_xml_path(str(HERE / "cart.xml"))

class Attribute(Whole):
    def own_state(self):
        return {"force": self.config.forse_limit}  # Here.

class Joint(Whole):
    def own_state(self):
        return {"rail": self.model.joint("rial").id}  # Here.

class Field(Whole):
    def own_state(self):
        return {"place": self.data("qpoz")}  # Here.

class File(Whole):
    @classmethod
    def build_model(cls, config):
        return mujoco.MjModel.from_xml_path(str(HERE / "cartt.xml"))  # Here.

@dataclass(frozen=True, kw_only=True)
class PlainConfig(EnvConfig):
    fast_weight: float = 1.0

class Bare(Whole):
    config = PlainConfig()
"""
CART = '<mujoco><worldbody><body><joint name="rail" type="slide"/><geom size="1"/></body></worldbody>'
CART += '<actuator><motor name="push" joint="rail"/></actuator></mujoco>'


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        (
            "Attribute",
            "forse_limit",
            "AttributeError: 'CartConfig' object has no attribute 'forse_limit'. Did you mean 'force_limit'?",
        ),
        ("Joint", '"rial"', "KeyError: Invalid name 'rial'. Valid names: ['rail']. Did you mean 'rail'?"),
        (
            "Field",
            '"qpoz"',
            "data('qpoz') was asked for, but MuJoCo's MjData has no field of that name. Did you mean 'qpos'?",
        ),
        (
            "File",
            '"cartt.xml"',
            "ValueError: ParseXML: Error opening file '{here}/cartt.xml'. Did you mean 'cart.xml'?",
        ),
        (
            "Unfinished",
            "class Unfinished",
            "Unfinished has no model: return its robot and ground as an MjSpec in build_spec().",
        ),
        ("Bare", "class Bare", "The config of Bare is a PlainConfig, but a TermsTask needs a TermsConfig"),
    ],
)
def test_a_task_that_cannot_be_built_is_refused_with_file_line_and_the_nearest_name(
    name: str, line: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "carts.py"
    file.write_text(FAULTS, encoding="utf-8")
    (tmp_path / "cart.xml").write_text(CART, encoding="utf-8")
    number = next(number for number, text in enumerate(FAULTS.splitlines(), 1) if line in text)
    spec = registry.resolve(f"{file}:{name}")
    with pytest.raises(UsageError) as refused:
        spec.build(spec.env, num_envs=1, device="cpu", seed=0)
    assert said.format(here=tmp_path) in str(refused.value)
    assert f"line {number} of {file}" in str(refused.value)
