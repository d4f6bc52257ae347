"""What a training changes, and that the flags which are shown make the same training."""

from __future__ import annotations

import shlex

import pytest

from shoal.cli.parse import parse_train
from shoal.config import TrainConfig, to_plain
from shoal.plan.changes import changed_fields, changes_of, defaults_of, flag_words, flatten
from shoal.tasks.registry import resolve

CARTPOLE = ("Cartpole-Swingup",)


def test_the_defaults_change_nothing() -> None:
    config = parse_train(CARTPOLE)
    assert changes_of(config) == {}
    assert flag_words({}) == ""


@pytest.mark.parametrize(
    "flags",
    [
        "--seed 7",
        "--no-export --env.no-step-graph",
        "--gpu-ids 0 1 --nproc-per-node 2 --keep-rank-files None",
        "--agent.actor.hidden-dims 32 16 --agent.algorithm.learning-rate 0.0003",
        "--agent.obs-groups.critic policy policy",
        "--wandb-project 'two words'",
        "--learner grpo --agent.num-steps-per-env 33",
    ],
)
def test_the_flags_that_are_shown_make_the_same_training(flags: str) -> None:
    config = parse_train([*CARTPOLE, *shlex.split(flags)])
    shown = flag_words(changes_of(config))
    assert parse_train([*CARTPOLE, *shlex.split(shown)]) == config
    assert sorted(shown.split()) == sorted(flags.split())


def test_a_negative_number_is_shown_as_it_is_typed() -> None:
    words = ("Quadruped-Velocity-Flat", "--env.rewards.lin-vel-z.weight", "-0.5")
    assert shlex.split(flag_words(changes_of(parse_train(words)))) == list(words[1:])


def test_what_belongs_to_one_command_or_names_the_run_is_left_out() -> None:
    words = ("--run-name", "first", "--log-root", "elsewhere", "--hosts", "a", "b")
    assert changes_of(parse_train([*CARTPOLE, *words])) == {}


def test_a_field_of_another_version_of_the_task_is_no_change() -> None:
    spec = resolve("Cartpole-Swingup")
    defaults = defaults_of(spec, "rsl_rl")
    plain = to_plain(spec.defaults())
    plain["env"]["removed"] = 1.0
    del plain["env"]["step_graph"]
    assert changed_fields(flatten(plain), defaults) == {}


def test_a_task_that_no_command_can_name_has_no_known_changes() -> None:
    assert changes_of(TrainConfig(task="tiny", seed=7)) == {}


def test_a_text_of_several_lines_is_not_shown() -> None:
    assert flag_words({"agent.yaml": "params:\n  algo: a"}) == "--agent.yaml ..."
