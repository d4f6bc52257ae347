"""Which defaults a task in a user's own file has, and whose they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shoal.cli.parse import parse_train
from shoal.config import AgentConfig
from shoal.plan.training import plan_training
from shoal.plan.visibility import VisibleGpus
from shoal.tasks import registry

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.tasks.registry import TaskSpec

BASES = """
from shoal.config import AgentConfig, EnvConfig
from shoal.tasks.quadruped.task import FlatVelocity

class Trotter(FlatVelocity):
    max_iterations = 7

class Pacer(Trotter):
    agent = AgentConfig(num_steps_per_env=5)

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
    assert spec.agent == FLAT.agent != AgentConfig()
    assert (spec.num_envs, spec.max_iterations, spec.check) == (FLAT.num_envs, 7, FLAT.check)


@pytest.mark.parametrize(
    ("name", "steps", "note"),
    [
        ("Trotter", FLAT.agent.num_steps_per_env, "Trotter learns with the defaults of Quadruped-Velocity-Flat."),
        ("Pacer", 5, None),
        ("Bounder", 5, "Bounder learns with the defaults of Pacer."),
        ("Kite", AgentConfig().num_steps_per_env, "Kite learns with rsl_rl's defaults, since it declares no `agent`."),
    ],
)
def test_the_plan_says_whose_defaults_the_learner_has(name: str, steps: int, note: str | None, tmp_path: Path) -> None:
    task = f"{tmp_path}/gaits.py:{name}"
    assert spec_of(name, tmp_path).agent.num_steps_per_env == steps
    plan = plan_training(parse_train([task, "--gpu-ids", "None"]), {}, VisibleGpus())
    assert plan.notes == ((note,) if note else ())
