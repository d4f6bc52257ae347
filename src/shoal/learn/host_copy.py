"""Copies of tensors on the host, made while the device goes on with the next iteration."""

from __future__ import annotations

from typing import Any

import torch


class HostCopy:
    """What nested tensors held at one moment, on the host as soon as somebody asks."""

    def __init__(self, state: Any, device: str) -> None:  # noqa: ANN401  Dicts, lists and tuples of tensors.
        """Copy. On a GPU this queues work and waits for nothing.

        Args:
            state: Tensors and plain values, nested in dicts, lists and tuples.
            device: Where most of them live.
        """
        self._device = device
        self._done: torch.cuda.Event | None = None
        if not device.startswith("cuda"):
            self._copy = _mapped(state, torch.clone)
            return
        # First on the device itself, in the order of the training's own work; from there beside it.
        self._held = _mapped(state, torch.clone)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._copy = _mapped(self._held, _to_host)
            self._done = torch.cuda.Event()
            self._done.record(stream)

    def get(self) -> Any:  # noqa: ANN401
        """Return the copy. Waits until it is whole."""
        if self._done is not None:
            # CUDA may make a context on the current device, which is GPU 0 in a thread that has set none.
            with torch.cuda.device(self._device):
                self._done.synchronize()
        return self._copy


def _mapped(state: Any, copy: Any) -> Any:  # noqa: ANN401
    """Return the same nesting with `copy` of each tensor."""
    if isinstance(state, torch.Tensor):
        return copy(state.detach())
    if isinstance(state, dict):
        return {name: _mapped(value, copy) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_mapped(value, copy) for value in state)
    return state


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
