"""Torch and Warp see the same memory, in both directions, for every kind of array that tasks use."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from shoal.sim.bridge import to_torch


@pytest.mark.parametrize(
    ("shape", "dtype", "torch_dtype", "torch_shape"),
    [
        ((3, 2), wp.float32, torch.float32, (3, 2)),
        (3, wp.int32, torch.int32, (3,)),
        (3, wp.bool, torch.bool, (3,)),
        (3, wp.uint8, torch.uint8, (3,)),
        (3, wp.vec4, torch.float32, (3, 4)),
    ],
)
def test_a_view_has_the_arrays_memory_shape_and_type(
    shape: tuple[int, ...] | int,
    dtype: type,
    torch_dtype: torch.dtype,
    torch_shape: tuple[int, ...],
    device: str,
) -> None:
    array = wp.zeros(shape, dtype=dtype, device=device)
    view = to_torch(array)
    assert view.data_ptr() == array.ptr
    assert view.dtype == torch_dtype
    assert tuple(view.shape) == torch_shape
    assert view.device == torch.device(device)
    assert not view.requires_grad


def test_what_torch_writes_warp_reads(device: str) -> None:
    array = wp.zeros((2, 2), dtype=wp.float32, device=device)
    to_torch(array)[1, 0] = 5.0
    assert array.numpy().tolist() == [[0.0, 0.0], [5.0, 0.0]]


def test_what_warp_writes_torch_reads(device: str) -> None:
    array = wp.zeros(2, dtype=wp.bool, device=device)
    view = to_torch(array)
    array.fill_(value=True)
    assert view.tolist() == [True, True]
    assert torch.ones(2, device=device)[view].sum() == 2.0
