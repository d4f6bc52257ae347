"""Mistakes that a task's author can make are named while the task is built."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, ClassVar

import numpy as np
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
from shoal.sim.graphs import HostStage

if TYPE_CHECKING:
    from shoal.sim.task import Stage


@wp.kernel(enable_backward=False)
def keep_action(actions: wp.array2d[wp.float32], last: wp.array[wp.float32]) -> None:
    env = wp.tid()
    last[env] = actions[env, 0]


@wp.kernel(enable_backward=False)
def add_array(amounts: wp.array[wp.float32], steps: wp.array[wp.float32]) -> None:
    env = wp.tid()
    steps[env] = steps[env] + amounts[env]


@wp.kernel(enable_backward=False)
def show_third(steps: wp.array[wp.float32], observation: wp.array2d[wp.float32]) -> None:
    env = wp.tid()
    observation[env, 2] = steps[env] + 5.0


@wp.kernel(enable_backward=False)
def show_pushed(actions: wp.array2d[wp.float32], terms: wp.array2d[wp.float32]) -> None:
    env = wp.tid()
    if env == 1 and actions[env, 0] != 0.0:
        terms[env, 2] = 5.0


@wp.struct
class Kept:
    """What a kernel may take in one argument."""

    amounts: wp.array[wp.float32]


@wp.kernel(enable_backward=False)
def show_kept(kept: Kept, observation: wp.array2d[wp.float32]) -> None:
    env = wp.tid()
    observation[env, 1] = kept.amounts[env + 1]


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
    assert message.startswith("A step of RemembersInPython launches other kernels than when it was captured (")
    assert re.search(r"the kernel 'add' got amount=\d+\.0 then, and \d+\.0 now", message)
    assert "must live in arrays made with self.array()" in message


class SwapsArrays(CountingTask):
    def allocate(self) -> None:
        super().allocate()
        self.others = self.array("others")

    def simulate(self) -> None:
        super().simulate()
        self.steps, self.others = self.others, self.steps
        self.launch(add, inputs=[1.0], outputs=[self.steps])


def test_arrays_that_python_swaps_from_step_to_step_are_noticed(device: str) -> None:
    message = refusal(SwapsArrays, device)
    assert "the kernel 'count' got another array as 'steps'" in message


class ComputesWithTorch(CountingTask):
    def simulate(self) -> None:
        super().simulate()
        wp.to_torch(self.steps).add_(1.0)


def test_work_that_is_no_kernel_launch_is_noticed(device: str) -> None:
    message = refusal(ComputesWithTorch, device)
    assert re.match(r"A step of ComputesWithTorch does more than launch kernels, and so differs in .*steps", message)


class ReadsOnTheHost(CountingTask):
    def observe(self) -> None:
        super().observe()
        twice = 2.0 * self.steps.numpy()
        wp.copy(self.obs["policy"], wp.array(np.stack([twice, twice], axis=1), dtype=wp.float32, device=self.device))


def test_a_copy_of_what_python_has_read_is_noticed_on_the_cpu() -> None:
    message = refusal(ReadsOnTheHost, "cpu")
    assert message.startswith(
        "A step of ReadsOnTheHost does more than launch kernels, and so differs in observations/policy when"
    )


class DrawsOnTheHost(CountingTask):
    def stages(self) -> list[Stage]:
        return [*super().stages(), ("observe", HostStage(self.draw))]

    def draw(self) -> None:
        self.start.assign(np.random.default_rng().random(self.num_envs))


def test_numbers_that_are_drawn_between_captured_parts_are_allowed() -> None:
    DrawsOnTheHost(CountingConfig(), num_envs=3, device="cpu", seed=0)


class MakesTemporaries(CountingTask):
    def simulate(self) -> None:
        super().simulate()
        scratch = wp.empty_like(self.steps)
        wp.copy(scratch, self.steps)
        self.launch(add, inputs=[1.0], outputs=[scratch])


def test_temporary_arrays_of_a_step_may_be_elsewhere_in_each_capture(device: str) -> None:
    MakesTemporaries(CountingConfig(), num_envs=3, device=device, seed=0)


def test_without_a_step_graph_each_kernel_is_launched_by_itself(device: str) -> None:
    task = CountingTask(CountingConfig(step_graph=False), num_envs=3, device=device, seed=0)
    assert not task.graph.is_captured
    before = task.steps.numpy().copy()
    task.step()
    task.step()
    np.testing.assert_array_equal(task.steps.numpy(), before + 2.0)


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


class KeepsActions:
    """What a user's own object may hold."""

    def __init__(self, task: CountingTask) -> None:
        self.last = wp.zeros(task.num_envs, device=task.device)
        self.other = wp.zeros(task.num_envs, device=task.device)


class KeepsActionsInAnObject(CountingTask):
    def allocate(self) -> None:
        super().allocate()
        self.kept = KeepsActions(self)

    def simulate(self) -> None:
        super().simulate()
        self.launch(keep_action, inputs=[self.actions], outputs=[self.kept.last])


class KeepsActionsFirstInAList(CountingTask):
    def allocate(self) -> None:
        super().allocate()
        self.kept = [KeepsActions(self).last, KeepsActions(self).other]

    def simulate(self) -> None:
        super().simulate()
        wp.copy(self.kept[0], self.actions.reshape(self.num_envs))


class CountsInAnArrayOfItsOwn(CountingTask):
    def allocate(self) -> None:
        super().allocate()
        self.mine = wp.zeros(self.num_envs, device=self.device)

    def simulate(self) -> None:
        super().simulate()
        self.launch(add, inputs=[1.0], outputs=[self.mine])
        self.launch(add_array, inputs=[self.mine], outputs=[self.steps])


@pytest.mark.parametrize(
    ("task", "named"),
    [
        (KeepsActionsInAnObject, "'last' of the kernel 'keep_action'"),
        (KeepsActionsFirstInAList, "self.kept"),
        (CountsInAnArrayOfItsOwn, "self.mine"),
    ],
)
def test_an_array_is_named_wherever_it_is_and_before_the_captured_step_is_blamed(
    task: type[CountingTask], named: str, device: str
) -> None:
    message = refusal(task, device)
    assert message.startswith(f"The kernels of {task.__name__} write to {named}, which no checkpoint would hold")


class WritesBehindItsRows(CountingTask):
    def observe(self) -> None:
        super().observe()
        self.launch(show_third, inputs=[self.steps], outputs=[self.obs["policy"]])


class WritesBehindItsArray(CountingTask):
    def simulate(self) -> None:
        super().simulate()
        self.launch(add, inputs=[1.0], outputs=[self.steps], dim=self.num_envs + 1)


class WritesBehindItsRowsWhereItIsPushed(CountingTask):
    def simulate(self) -> None:
        super().simulate()
        self.launch(show_pushed, inputs=[self.actions], outputs=[self.terms])


class ReadsBehindAnArrayOfAStruct(CountingTask):
    def allocate(self) -> None:
        super().allocate()
        self.kept = Kept()
        self.kept.amounts = self.steps

    def observe(self) -> None:
        super().observe()
        self.launch(show_kept, inputs=[self.kept], outputs=[self.obs["policy"]])


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            WritesBehindItsRows,
            "The kernel 'show_third' of WritesBehindItsRows reads or writes outside of an array, on axis 1: keep its",
        ),
        (
            WritesBehindItsArray,
            "The kernel 'add' of WritesBehindItsArray reads or writes outside of an array, on axis 0",
        ),
        (
            WritesBehindItsRowsWhereItIsPushed,
            "The kernel 'show_pushed' of WritesBehindItsRowsWhereItIsPushed reads or writes outside of an array, on",
        ),
        (
            ReadsBehindAnArrayOfAStruct,
            "The kernel 'show_kept' of ReadsBehindAnArrayOfAStruct reads or writes outside of an array, on axis 0",
        ),
    ],
)
def test_a_kernel_that_leaves_its_columns_or_rows_is_named_before_a_training(
    task: type[CountingTask], said: str
) -> None:
    with pytest.raises(ShoalError, match=f"^{re.escape(said)}"):
        task.build_once(CountingConfig())


def test_a_task_whose_build_fails_otherwise_is_left_to_its_build() -> None:
    ForgetsTerm.build_once(CountingConfig())


class TakesAnArrayOfTheHost(CountingTask):
    def allocate(self) -> None:
        super().allocate()
        self.elsewhere = wp.zeros(self.num_envs, device="cpu")

    def observe(self) -> None:
        super().observe()
        self.launch(add, inputs=[1.0], outputs=[self.elsewhere])


class TakesAStructWithAnArrayOfTheHost(CountingTask):
    def allocate(self) -> None:
        super().allocate()
        self.kept = Kept()
        self.kept.amounts = wp.zeros(self.num_envs + 1, device="cpu")

    def observe(self) -> None:
        super().observe()
        self.launch(show_kept, inputs=[self.kept], outputs=[self.obs["policy"]])


@pytest.mark.gpu
@pytest.mark.parametrize("task", [TakesAnArrayOfTheHost, TakesAStructWithAnArrayOfTheHost])
def test_an_array_of_another_device_is_named(task: type[CountingTask]) -> None:
    assert re.match(rf"The kernel '\w+' of {task.__name__} runs on cuda:0, but its argument '", refusal(task, "cuda:0"))


def test_warp_refuses_arrays_of_other_devices_while_a_task_is_validated_alone(device: str) -> None:
    modes: list[object] = []
    usual = wp.config.launch_array_access_mode

    class NotesTheMode(CountingTask):
        def observe(self) -> None:
            super().observe()
            modes.append(wp.config.launch_array_access_mode)

    NotesTheMode(CountingConfig(), num_envs=3, device=device, seed=0)
    assert modes[0] is wp.config.LaunchArrayAccessMode.STRICT
    assert modes[-1] is wp.config.launch_array_access_mode is usual


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneWeight(CountingConfig):
    ones_weight: float = 1.0


class MisspellsWeight(CountingTask):
    reward_terms = ("ones", "indexes")


def test_a_term_without_a_weight_is_named_with_the_nearest_field(device: str) -> None:
    message = refusal(MisspellsWeight, device, OneWeight())
    assert "MisspellsWeight has the reward term 'indexes', but its OneWeight has no field 'indexes_weight'" in message
    assert "Did you mean 'index_weight'?" in message


class NamesNoMetric(CountingTask):
    best_metric = "height"


def test_a_best_metric_that_is_not_measured_is_refused(device: str) -> None:
    message = refusal(NamesNoMetric, device)
    assert message.startswith(
        "The task NamesNoMetric names 'height' as its best_metric, which is none of its metrics ("
    )


class DeclaresNoObservations(CountingTask):
    observations: ClassVar = {}


def test_a_missing_declaration_is_named_with_an_example(device: str) -> None:
    message = refusal(DeclaresNoObservations, device)
    assert message == (
        "The task DeclaresNoObservations does not declare 'observations': "
        'add observations = {"policy": 5}, say, to the class.'
    )
