"""A recorded graph does what its launches did when they were recorded, as often as it is asked to."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import warp as wp
from support.counting_task import add

from shoal.errors import ShoalError
from shoal.sim.graphs import CapturedGraph

if TYPE_CHECKING:
    from collections.abc import Callable


def adder(steps: wp.array, amount: float = 1.0) -> Callable[[], None]:
    """Return what launches two kernels that each add `amount`; they are compiled before it returns."""

    def launches() -> None:
        for _ in range(2):
            wp.launch(add, dim=steps.shape[0], inputs=[amount], outputs=[steps], device=steps.device)

    launches()
    steps.zero_()
    return launches


def test_recording_runs_no_kernel(device: str) -> None:
    steps = wp.zeros(3, dtype=wp.float32, device=device)
    graph = CapturedGraph(adder(steps), wp.get_device(device))
    assert graph.is_captured
    assert steps.numpy().tolist() == [0.0, 0.0, 0.0]


def test_each_replay_runs_all_kernels_once(device: str) -> None:
    steps = wp.zeros(3, dtype=wp.float32, device=device)
    graph = CapturedGraph(adder(steps), wp.get_device(device))
    for _ in range(5):
        graph.launch()
    assert steps.numpy().tolist() == [10.0, 10.0, 10.0]


def test_a_replay_calls_no_python(device: str) -> None:
    steps = wp.zeros(3, dtype=wp.float32, device=device)
    launches = adder(steps)
    calls = []

    def counted() -> None:
        calls.append(1)
        launches()

    graph = CapturedGraph(counted, wp.get_device(device))
    graph.launch()
    graph.launch()
    assert len(calls) == 1


def test_programs_of_the_same_arrays_take_turns(device: str) -> None:
    steps = wp.zeros(1, dtype=wp.float32, device=device)
    ones = CapturedGraph(adder(steps), wp.get_device(device))
    tens = CapturedGraph(adder(steps, 10.0), wp.get_device(device))
    ones.launch()
    tens.launch()
    ones.launch()
    assert steps.numpy().tolist() == [24.0]


def test_garbage_is_collected_again_after_recording(device: str) -> None:
    steps = wp.zeros(1, dtype=wp.float32, device=device)
    seen = []
    launches = adder(steps)

    def watched() -> None:
        seen.append(gc.isenabled())
        launches()

    CapturedGraph(watched, wp.get_device(device))
    assert seen == [False]
    assert gc.isenabled()


def test_launches_that_cannot_be_captured_are_refused_with_the_cause(device: str) -> None:
    steps = wp.zeros(2, dtype=wp.float32, device=device)
    launches = adder(steps)
    # A capture within a capture is refused, on any device.
    with (
        wp.ScopedCapture(device=device),
        pytest.raises(ShoalError, match=r"cannot be captured as a graph on .*already in progress.*--env.no-step-graph"),
    ):
        CapturedGraph(launches, wp.get_device(device))


def test_without_capturing_each_replay_launches_the_kernels(device: str) -> None:
    steps = wp.zeros(2, dtype=wp.float32, device=device)
    graph = CapturedGraph(adder(steps), wp.get_device(device), captures=False)
    assert not graph.is_captured
    graph.launch()
    graph.launch()
    assert steps.numpy().tolist() == [4.0, 4.0]
