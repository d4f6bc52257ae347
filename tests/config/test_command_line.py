"""The learner as a command line makes it: flat flags derived by tyro, and no subcommands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import pytest
import tyro

from shoal.config import EnvConfig, RslRlConfig
from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Where a learner stands in the configuration of a training."""

    agent: RslRlConfig = field(default_factory=RslRlConfig)
    """The learner."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""


def parse(*args: str) -> Command:
    return tyro.cli(Command, default=Command(), args=args)


@pytest.fixture
def help_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "100")  # One column of boxes.
    with pytest.raises(SystemExit):
        parse("--help")
    return re.sub(r"[\s│]+", " ", capsys.readouterr().out)


def test_no_flags_mean_the_defaults() -> None:
    assert parse() == Command()


def test_a_network_takes_its_layers_one_after_another() -> None:
    assert parse("--agent.actor.hidden-dims", "64", "32").agent.actor.hidden_dims == (64, 32)


def test_a_number_may_be_written_with_an_exponent() -> None:
    assert parse("--agent.algorithm.learning-rate", "1e-4").agent.algorithm.learning_rate == 1e-4


def test_a_recurrent_network_is_chosen_by_its_class() -> None:
    actor = parse("--agent.actor.class-name", "RNNModel", "--agent.actor.rnn-type", "gru").agent.actor
    assert (actor.class_name, actor.rnn_type) == ("RNNModel", "gru")
    assert actor.distribution.class_name == "GaussianDistribution"


def test_a_distribution_is_chosen_by_its_class() -> None:
    flags = "--agent.actor.distribution.class-name BetaDistribution --agent.actor.distribution.action-range -2 2"
    distribution = parse(*flags.split()).agent.actor.distribution
    assert (distribution.class_name, distribution.action_range) == ("BetaDistribution", (-2.0, 2.0))


def test_extensions_are_switched_on_by_a_flag() -> None:
    flags = "--agent.algorithm.rnd.enabled --agent.algorithm.rnd.weight 0.1"
    flags += " --agent.algorithm.rnd.weight-schedule.mode constant"
    rnd = parse(*flags.split()).agent.algorithm.rnd
    assert (rnd.enabled, rnd.weight, rnd.weight_schedule.mode) == (True, 0.1, "constant")


def test_observation_groups_are_a_flag_for_each_set() -> None:
    groups = parse("--agent.obs-groups.critic", "policy", "privileged").agent.obs_groups
    assert groups == {"actor": ("policy",), "critic": ("policy", "privileged")}


def test_a_flag_out_of_range_is_refused_in_our_words() -> None:
    with pytest.raises(UsageError, match=r"agent\.algorithm\.gamma is 1\.5, but must lie in \[0, 1\]"):
        parse("--agent.algorithm.gamma", "1.5")


def test_help_shows_every_field_with_its_docstring(help_text: str) -> None:
    flags = [f"--{path.replace('_', '-')}" for path in leaves(Command())]
    assert len(flags) > 60
    assert [flag for flag in flags if f"{flag} " not in help_text and f"{flag}," not in help_text] == []
    assert (
        "--agent.algorithm.gamma FLOAT Discount of the future for each environment step. (default: 0.99)" in help_text
    )


def test_help_has_no_subcommands(help_text: str) -> None:
    assert "subcommand" not in help_text.lower()
    assert "fixed to" not in help_text  # What tyro says of a field that no flag can set.


def leaves(config: Any, path: str = "") -> Iterator[str]:
    """The dotted path of every single value."""
    for item in fields(config):
        value, where = getattr(config, item.name), f"{path}{item.name}"
        if is_dataclass(value):
            yield from leaves(value, f"{where}.")
        elif isinstance(value, dict):
            yield from (f"{where}.{key}" for key in value)
        else:
            yield where
