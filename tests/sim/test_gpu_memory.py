"""Errors that are not about the memory of a GPU are left as they are. `tests/gpu/test_memory.py` has the others."""

from __future__ import annotations

import pytest

from shoal.sim.gpu_memory import translate_memory_errors


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("cpu", "out of memory"),
        ("cuda:0", "Failed to allocate 4096 bytes on device 'cpu'"),
        ("cuda:0", "Failed to allocate 4096 bytes on device 'cuda:0' because memory pools are not supported"),
        ("cuda:0", "CUDA error: an illegal memory access was encountered"),
    ],
)
def test_other_errors_are_left_as_they_are(device: str, text: str) -> None:
    error = RuntimeError(text)
    with pytest.raises(RuntimeError) as caught, translate_memory_errors(device, 4096, "--num-envs"):
        raise error
    assert caught.value is error
