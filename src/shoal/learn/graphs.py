"""CUDA graphs of torch functions: kernels that a GPU runs one after the other without waiting for Python.

A step of PPO on small networks is some 270 kernels of a few microseconds, and Python launches one in about 20.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest

import torch

from shoal.sim.graphs import run_all

logger = logging.getLogger(__name__)

_PLAIN_CALLS = 2
"""Calls before the capture: in the first ones libraries load kernels and allocate what they keep."""


class TensorGraph:
    """A function on tensors that stay where they are. On a GPU it is captured once and replayed; elsewhere called.

    The function takes nothing, returns nothing, never waits for the device, and launches the same kernels with the same
    numbers of Python in every call. What it cannot capture is called as before, after one warning.
    """

    def __init__(self, function: Callable[[], None], device: str, *, name: str, captures: bool = True) -> None:
        """Wrap `function`. `name` is what it does, for the warning; without `captures` it is only called."""
        self._function, self._name = function, name
        self._device = torch.device(device)
        self._plain_calls_left = _PLAIN_CALLS if captures and self._device.type == "cuda" else -1
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run the function, in order with other work of torch's current stream."""
        if self._plain_calls_left == 0:
            self._capture()
        self._plain_calls_left -= 1
        if self._graph is None:
            self._function()
        else:
            self._graph.replay()

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[self._device.index or 0]
        try:
            # The outer context restores the stream also where the inner one fails at its end. Of other threads NCCL's
            # watchdog may call CUDA meanwhile, which the mode allows.
            with (
                torch.cuda.stream(torch.cuda.current_stream(self._device)),
                torch.cuda.graph(graph, capture_error_mode="thread_local"),
            ):
                self._function()
        except RuntimeError as error:
            # torch leaves its generator in the state of the capture that failed.
            generator.graphsafe_set_state(generator.clone_state())
            # After an error in a capture, its end is an error too, which says less.
            cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            logger.warning(
                "%s cannot be captured as a CUDA graph (%s): its kernels are launched one by one, which is slower.",
                self._name,
                str(cause).strip().partition("\n")[0].rstrip("."),
            )
        else:
            self._graph = graph


class GraphChain:
    """Functions that run one after the other, in one graph; or with `collectives` after them in one graph each."""

    def __init__(
        self,
        functions: Sequence[Callable[[], None]],
        collectives: Sequence[Callable[[], None] | None],
        device: str,
        *,
        name: str,
        captures: bool = True,
    ) -> None:
        """Wrap functions as `TensorGraph` does. For a collective the host may wait: it is not captured."""
        parts = functions if collectives else [partial(run_all, functions)]
        self._graphs = [TensorGraph(each, device, name=name, captures=captures) for each in parts]
        self._collectives = collectives

    def __call__(self) -> None:
        """Run the functions and collectives in turn."""
        for graph, collective in zip_longest(self._graphs, self._collectives):
            graph()
            if collective is not None:
                collective()
