"""Kernel probe of `shoal doctor`: compile, run and capture one small kernel on one device."""

import time
from typing import Any

import warp as wp

from shoal.errors import ShoalError
from shoal.sim.graphs import CapturedGraph
from shoal.sim.isolation import isolated

_SIZE = 1024
_LAUNCHES = 3


@wp.kernel(enable_backward=False)
def _add_one(values: wp.array[wp.float32]) -> None:
    i = wp.tid()
    values[i] = values[i] + 1.0


def probe(device: str) -> dict[str, Any]:
    """Return the time of loading the kernel [s], whether its results are right, and why it was not captured."""
    with isolated(device, threads=1):
        values = wp.zeros(_SIZE, dtype=wp.float32)

        def launch() -> None:
            wp.launch(_add_one, dim=_SIZE, inputs=[values])

        started = time.perf_counter()
        launch()
        wp.synchronize_device()
        loaded_s = time.perf_counter() - started
        why_not = None
        try:
            graph = CapturedGraph(launch, wp.get_device())
            graph.launch()
        except (ShoalError, RuntimeError) as error:
            why_not = str(error.__cause__ or error).strip()
            graph = CapturedGraph(launch, wp.get_device(), captures=False)
            graph.launch()
        for _ in range(_LAUNCHES - 1):
            graph.launch()
        wp.synchronize_device()
        right = bool((values.numpy() == 1 + _LAUNCHES).all())
    return {"loaded_s": loaded_s, "right": right, "why_not_captured": why_not}
