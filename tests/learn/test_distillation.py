"""A student learns from a teacher that another training has left: two iterations each, in process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
import yaml
from support.learner_agents import new_loop
from support.learners import train
from support.stories import carry_out, plan_of

import shoal
from shoal.config import to_plain
from shoal.errors import UsageError
from shoal.learn.checkpoints import read_checkpoint
from shoal.plan.checkpoints import newest_good
from shoal.tasks import registry

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.rundir import RunDir

FLAT = "Quadruped-Velocity-Flat"
ENDS = ("-Depth", "-Blind", "")
TEACHER = ("--agent.actor.hidden-dims", "16", "--agent.critic.hidden-dims", "8")
STUDENT = ("--learner", "distillation", "--agent.student.hidden-dims", "8", "--agent.student.rnn-hidden-dim", "8")
STUDENT += ("--agent.obs-groups.teacher", "critic")
SMALL = ("--gpu-ids", "None", "--num-envs", "4", "--max-iterations", "2", "--logger", "none", "--no-export")
SMALL += ("--agent.num-steps-per-env", "12")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run of PPO whose policy observes the group `policy`."""
    return carry_out(tmp_path_factory.mktemp("teacher"), FLAT, *TEACHER, small=SMALL).run


def state_of(run: RunDir) -> dict[str, dict[str, torch.Tensor]]:
    newest, _ = newest_good(run)
    assert newest is not None
    return read_checkpoint(newest.model)


def test_a_student_keeps_its_teacher_and_learns_from_it_alone(teacher: RunDir, tmp_path: Path) -> None:
    student = carry_out(tmp_path, FLAT, *STUDENT, "--teacher", str(teacher.path), small=SMALL).run
    taught, actor = state_of(student)["teacher_state_dict"], state_of(teacher)["actor_state_dict"]
    assert taught.keys() == actor.keys()
    assert all(torch.equal(taught[name], actor[name]) for name in actor)
    agent = yaml.safe_load(student.agent_yaml.read_text(encoding="utf-8"))["agent"]
    assert agent["teacher"]["hidden_dims"] == [16], "the network of the teacher's run"
    resumed = plan_of(tmp_path, FLAT, "--resume", "--max-iterations", "3", small=())
    assert resumed.start is not None
    assert resumed.start.mode == "continue", "no teacher has to be named again"


def test_the_loss_falls_to_a_teacher_that_never_changes() -> None:
    loop = new_loop("distillation", max_iterations=30)
    losses = [row["Loss/behavior"] for row in train(loop).rows]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--learner", "distillation", "--agent.teacher-task", "Cartpole-Balance"),
            "The learner distillation needs a teacher: pass --teacher with a run or a checkpoint of Cartpole-Balance",
        ),
        (
            (*STUDENT, "--env.decimation", "2"),
            "Quadruped-Velocity-Flat.pt was trained with --env.decimation 4, and here that is --env.decimation 2",
        ),
        (("--teacher", "TEACHER"), "has no teacher: pass --learner distillation, or leave it out."),
        ((*STUDENT, "--teacher", "TEACHER", "--checkpoint", "latest"), "excludes --resume and --checkpoint"),
        ((*STUDENT, "--teacher", "TEACHER", "--agent.teacher-task", "Cartpole-Swingup"), "is of the task Quadruped-"),
        (
            (*STUDENT, "--teacher", "TEACHER", "--env.actions.joint-pos.scale", "0.5"),
            "was trained with --env.actions.joint-pos.scale 0.3, and here that is --env.actions.joint-pos.scale 0.5",
        ),
        (
            (*STUDENT, "--teacher", "TEACHER", "--env.observations.critic.joint-vel.history-length", "2"),
            "was trained with --env.observations.critic.joint-vel.history-length 0, and here that is",
        ),
    ],
)
def test_what_does_not_fit_the_teacher_is_refused(
    words: tuple[str, ...], said: str, teacher: RunDir, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(tmp_path, FLAT, *(str(teacher.path) if word == "TEACHER" else word for word in words), small=SMALL)
    assert said in str(caught.value)


def test_a_teacher_that_observes_the_ground_teaches_no_group_without_it(teacher: RunDir, tmp_path: Path) -> None:
    blind = ("Quadruped-Velocity-Rough-Blind", "--agent.teacher-task", FLAT, "--teacher", str(teacher.path))
    with pytest.raises(UsageError, match=r"joint_vel, actions, but the groups critic of this task have .*height_scan"):
        plan_of(tmp_path, *blind, small=SMALL)


def test_the_students_ground_is_that_of_the_teacher() -> None:
    blind, rough = (registry.resolve(f"Quadruped-Velocity-Rough{end}").env for end in ("-Blind", ""))
    plain, whole = to_plain(blind), to_plain(rough)
    del whole["observations"]["policy"]["height_scan"]
    assert plain == whole, "nothing else differs"


@pytest.mark.slow
@pytest.mark.soak
def test_a_student_that_sees_learns_from_the_policy_that_ships(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = [word for word in SMALL if word != "--no-export"]
    run = carry_out(tmp_path, "Arm-Lift-Cube-Depth", "--agent.student.hidden-dims", "8", small=small).run
    assert "The teacher is the policy of Arm-Lift-Cube that ships with Shoal." in caplog.text
    shipped = torch.load(registry.shipped_policy("Arm-Lift-Cube"), weights_only=True)["actor_state_dict"]
    trained = state_of(run)
    assert all(torch.equal(trained["teacher_state_dict"][name], each.float()) for name, each in shipped.items())
    moments = read_checkpoint(newest_good(run)[0].model)["optimizer_state_dict"]["state"]  # type: ignore[union-attr]
    learned = [name for name in trained["student_state_dict"] if re.search(r"\.(weight|bias)\w*$", name)]
    assert len(moments) == len(learned)
    onnx = next(run.path.rglob("*.onnx"))
    for checkpoint in (run.path, onnx):
        rows = shoal.evaluate(
            "Arm-Lift-Cube-Depth",
            checkpoint=str(checkpoint),
            num_episodes=2,
            num_envs=2,
            gpu_ids=None,
            env={"episode_length_s": 0.2},
            out=str(tmp_path / checkpoint.name),
        )
        assert rows[0]["summary"]
