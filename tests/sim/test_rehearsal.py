"""Mistakes that a task's author can make are named while the task is built."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pytest
import warp as wp
from support.counting_task import (
    CountingConfig,
    CountingTask,
    add,
    begin_everywhere,
    half_the_terms,
    show_half,
)

from shoal.errors import ShoalError


def refusal(task: type[CountingTask], device: str, config: CountingConfig | None = None) -> str:
    """Build `task` and return what it is refused with."""
    with pytest.raises(ShoalError) as refused:
        task(config or CountingConfig(), num_envs=3, device=device, seed=0)
    return str(refused.value)


class ForgetsTerm(CountingTask):
    def simulate(self) -> None:
        self.launch(half_the_terms, inputs=[], outputs=[self.terms])


def test_a_reward_term_that_is_never_written_is_named(device: str) -> None:
    message = refusal(ForgetsTerm, device)
    assert message.startswith("ForgetsTerm.simulate() left the reward terms index unwritten or not finite")


class ForgetsColumn(CountingTask):
    def observe(self) -> None:
        self.launch(show_half, inputs=[self.steps], outputs=[self.obs["policy"]])


def test_an_observation_that_is_never_written_is_named(device: str) -> None:
    message = refusal(ForgetsColumn, device)
    assert message.startswith("ForgetsColumn.observe() left columns [1] of the group 'policy' unwritten")


class ForgetsMask(CountingTask):
    def simulate(self) -> None:
        super().simulate()
        self.launch(add, inputs=[5.0], outputs=[self.steps])

    def reset(self) -> None:
        super().reset()
        self.launch(begin_everywhere, inputs=[], outputs=[self.steps])


def test_a_reset_of_environments_that_are_not_done_is_named(device: str) -> None:
    message = refusal(ForgetsMask, device)
    assert message.startswith(
        "ForgetsMask.reset() changed the array 'steps' of environments whose done flag is not set"
    )


class RemembersInPython(CountingTask):
    def allocate(self) -> None:
        super().allocate()
        self.calls = 0.0

    def simulate(self) -> None:
        super().simulate()
        self.calls += 1.0
        self.launch(add, inputs=[self.calls], outputs=[self.steps])


def test_a_number_that_python_changes_from_step_to_step_is_noticed(device: str) -> None:
    message = refusal(RemembersInPython, device)
    assert "A recorded step of RemembersInPython gives other values in observations/" in message
    assert "steps" in message
    assert "must live in arrays made with self.array()" in message


class KeepsAnArrayToItself(CountingTask):
    def allocate(self) -> None:
        super().allocate()
        self.constant = wp.ones(3, device=self.device)
        self.secrets = [wp.zeros(self.num_envs, device=self.device)]

    def simulate(self) -> None:
        super().simulate()
        self.launch(add, inputs=[1.0], outputs=[self.secrets[0]])


def test_an_array_that_no_checkpoint_would_hold_is_named(device: str) -> None:
    message = refusal(KeepsAnArrayToItself, device)
    assert message.startswith("The kernels of KeepsAnArrayToItself write to self.secrets, which no checkpoint would")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneWeight(CountingConfig):
    ones_weight: float = 1.0


class MisspellsWeight(CountingTask):
    reward_terms = ("ones", "indexes")


def test_a_term_without_a_weight_is_named_with_the_nearest_field(device: str) -> None:
    message = refusal(MisspellsWeight, device, OneWeight())
    assert "MisspellsWeight has the reward term 'indexes', but its OneWeight has no field 'indexes_weight'" in message
    assert "Did you mean 'index_weight'?" in message


class DeclaresNoObservations(CountingTask):
    observations: ClassVar = {}


def test_a_missing_declaration_is_named_with_an_example(device: str) -> None:
    message = refusal(DeclaresNoObservations, device)
    assert message == (
        "The task DeclaresNoObservations does not declare 'observations': "
        'add observations = {"policy": 5}, say, to the class.'
    )
