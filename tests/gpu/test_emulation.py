"""The emulated GPU refuses and counts what CUDA refuses: a rung that could not fail would prove nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import warp as wp
from support import emulated_gpu
from support.emulated_gpu.driver import WARP_RELEASE, EmulationError, patch_warp

from shoal.sim.graphs import CapturedGraph

if TYPE_CHECKING:
    from support.emulated_gpu.driver import Driver

pytestmark = pytest.mark.emulated_gpu

GPU = "cuda:0"


@wp.kernel(enable_backward=False)
def add(amount: wp.float32, values: wp.array[wp.float32]) -> None:
    """Add to every number."""
    index = wp.tid()
    values[index] = values[index] + amount


@pytest.fixture
def driver() -> Driver:
    """The emulated driver."""
    wp.init()
    machine = emulated_gpu.machine()
    assert machine.driver is not None
    return machine.driver


def refusals() -> list[str]:
    """What was refused."""
    return [each.what for each in emulated_gpu.machine().violations]


def test_a_read_inside_a_capture_is_refused(driver: Driver) -> None:
    values = wp.zeros(3, device=GPU)
    with pytest.raises(RuntimeError), wp.ScopedCapture(device=GPU):
        values.numpy()
    assert any("inside a capture" in what for what in refusals())
    assert driver.violations[0].stack


@pytest.mark.usefixtures("driver")
def test_torch_s_work_inside_a_capture_is_refused() -> None:
    values, ours = wp.zeros(3, device=GPU), torch.zeros(3, device=GPU)
    with wp.ScopedCapture(device=GPU):
        wp.launch(add, dim=3, inputs=[1.0], outputs=[values], device=GPU)
        ours.add_(1.0)
    assert refusals()[0].startswith("torch: aten.add_")


@pytest.mark.usefixtures("driver")
def test_an_allocation_in_the_body_of_a_while_node_is_refused() -> None:
    condition = wp.ones(1, dtype=wp.int32, device=GPU)

    def body() -> None:
        wp.zeros(3, device=GPU)

    with pytest.raises(RuntimeError, match="unsupported operation"), wp.ScopedCapture(device=GPU):
        wp.capture_while(condition, while_body=body)


@pytest.mark.usefixtures("driver")
def test_arguments_are_those_of_the_capture() -> None:
    values, amount = wp.zeros(2, device=GPU), [1.0]

    def launch() -> None:
        wp.launch(add, dim=2, inputs=[amount[0]], outputs=[values], device=GPU)

    launch()
    graph = CapturedGraph(launch, wp.get_device(GPU))
    amount[0] = 100.0
    graph.launch()
    assert values.numpy().tolist() == [2.0, 2.0]


@pytest.mark.usefixtures("driver")
def test_new_memory_holds_nan() -> None:
    assert np.isnan(wp.empty(5, dtype=float, device=GPU).numpy()).all()


@pytest.mark.usefixtures("driver")
def test_tensors_of_two_devices_are_refused() -> None:
    here = torch.ones(3, device=GPU)
    for other in (torch.ones(3), torch.ones(3, device="cuda:1")):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            here.add(other)
    assert (here + torch.tensor(1.0)).tolist() == [2.0, 2.0, 2.0]  # A number may come from the host.
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        here.numpy()
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(3, device="cuda:2")


def test_a_list_as_an_index_is_refused() -> None:
    values = torch.zeros(3, device=GPU)
    with pytest.raises(EmulationError, match="index with a tensor on that device"):
        values[[0, 2]] = 1.0
    values[torch.tensor([0, 2], device=GPU)] = 1.0
    assert values.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.usefixtures("driver")
def test_an_event_that_a_thread_without_a_device_waits_for_is_noted() -> None:
    event = torch.cuda.Event()
    event.record()
    thread = threading.Thread(target=event.synchronize, name="careless")
    thread.start()
    thread.join()
    assert refusals() == ["event synchronize in the thread 'careless', whose device was not set"]


@pytest.mark.usefixtures("driver")
def test_waits_of_torch_can_be_refused() -> None:
    values = torch.ones(3, device=GPU)
    torch.cuda.set_sync_debug_mode("error")
    try:
        values.add_(1.0)
        with pytest.raises(RuntimeError, match="synchronizing"):
            values.sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("driver")
def test_each_gpu_draws_from_a_generator_of_its_own() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = torch.rand(3, device=GPU)
    assert torch.equal(torch.get_rng_state(), before)
    torch.cuda.manual_seed_all(1)
    torch.testing.assert_close(torch.rand(3, device=GPU), first)


def test_a_function_that_is_not_emulated_is_named(driver: Driver) -> None:
    del driver
    core = wp._src.context.runtime.core
    with pytest.raises(EmulationError, match="lacks wp_cuda_ipc_get_mem_handle"):
        core.wp_cuda_ipc_get_mem_handle(None)


def test_another_release_of_warp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp.config, "version", "9.1.0")
    with pytest.raises(EmulationError, match=f"knows Warp {WARP_RELEASE}, and this is 9.1.0"):
        patch_warp(wp._src.context, emulated_gpu.machine().open_driver)
