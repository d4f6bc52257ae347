"""What the plan of a training refuses, that its start would only find after many seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.parse import parse_train
from shoal.commands.check_env import check
from shoal.commands.train import make_plan
from shoal.config import CheckEnvConfig
from shoal.errors import UsageError
from shoal.machine.gpus import VisibleGpus
from shoal.plan.training import plan_training
from shoal.tasks.registry import resolve

CPU = ("--gpu-ids", "None")
ARM = Path(__file__).parents[2] / "docs" / "examples" / "arm.py"


def test_a_misspelt_observation_group_is_refused_with_the_nearest() -> None:
    config = parse_train(["Quadruped-Velocity-Flat", *CPU, "--agent.obs-groups.critic", "policy", "critc"])
    with pytest.raises(
        UsageError, match=r"obs-groups\.critic names 'critc', .* policy, critic\. Did you mean 'critic'"
    ):
        plan_training(config, {}, VisibleGpus())


def test_a_learner_without_what_every_learner_defines_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from shoal.config import AgentConfig\nfrom shoal.learn.learner import Learner\n\n"
        "class Mine(Learner):\n    config = AgentConfig()\n    def iterate(self, env):\n        return {}\n",
        encoding="utf-8",
    )
    with pytest.raises(UsageError, match=r"mine\.py:Mine has no broadcast and no policy and no replicated and no "):
        parse_train(["Cartpole-Swingup", *CPU, "--learner", f"{file}:Mine"])


@pytest.mark.parametrize("flags", [("--nproc-per-node", "2"), ("--dry-run",)])
def test_a_joint_that_a_task_of_ones_own_misspells_is_refused_before_anything_is_started(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    file = tmp_path / "arm.py"
    text = ARM.read_text(encoding="utf-8")
    assert '"shoulder"' in text
    file.write_text(text.replace('joint="elbow"', 'joint="elbo"'), encoding="utf-8")
    config = parse_train([f"{file}:Arm", *CPU, *flags])
    said = r"^The model of Arm \(see line \d+ of .*arm\.py\) does not compile: .*'elbo' for actuator.*line 24"
    with pytest.raises(UsageError, match=said):
        make_plan(config)
    assert capfd.readouterr() == ("", "")  # No greeting of Warp's.


def test_a_task_of_ones_own_that_can_be_built_is_planned() -> None:
    plan = make_plan(parse_train([f"{ARM}:Arm", *CPU, "--dry-run"]))
    assert plan.launch_mode == "in process"


def test_an_index_out_of_bounds_in_a_task_of_ones_own_is_refused_by_train_and_check_env(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "arm_with_one_command_too_many.py"
    text = ARM.read_text(encoding="utf-8")
    assert "state.commands[env, first + 1] =" in text
    file.write_text(
        text.replace("state.commands[env, first + 1] =", "state.commands[env, first + 2] ="), encoding="utf-8"
    )
    said = (
        r"The term commands\.goal of Arm reads or writes outside of an array, on axis 1: .* Look at line \d+ of .*\.py"
    )
    with pytest.raises(UsageError, match=said):
        make_plan(parse_train([f"{file}:Arm", *CPU]))
    with pytest.raises(UsageError, match=said):
        next(check(CheckEnvConfig(task=f"{file}:Arm", gpu_ids=("None",), env=resolve(f"{file}:Arm").env)))
    assert capfd.readouterr() == ("", "")
