"""Our reading of `CUDA_VISIBLE_DEVICES` held against torch's own, which decides what `cuda:<index>` means."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest
import torch.cuda
from hypothesis import given
from hypothesis import strategies as st
from support.fake_devices import gpu_uuid, machine_of

from shoal.machine.gpus import resolve, visible_gpus

COUNT = 4
UUIDS = [gpu_uuid(number) for number in range(COUNT)]
WORDS = ("0", "1", "2", "3", "4", " 1", "2 ", "-1", "+3", "-0", "1x", "x", "", "07")
NAMES = ("GPU-0", "GPU-1", "GPU-10", "GPU-", "GPU-9", " GPU-2", *UUIDS)
ENTRIES = st.sampled_from(WORDS + NAMES)


def as_torch_reads(mask: str) -> list[int]:
    """Physical numbers of the visible GPUs, as torch finds them before it wakes CUDA."""
    with patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": mask}):
        entries = torch.cuda._parse_visible_devices()
    if entries and isinstance(entries[0], str):
        return torch.cuda._transform_uuid_to_ordinals([str(entry) for entry in entries], UUIDS)
    numbers = [int(entry) for entry in entries]
    cut = next((at for at, number in enumerate(numbers) if number >= COUNT), len(numbers))
    return numbers[:cut]


@given(mask=st.lists(ENTRIES, max_size=6).map(",".join))
def test_torch_reads_every_mask_as_we_do(mask: str) -> None:
    ours = [UUIDS.index(gpu.uuid) for gpu in resolve(machine_of(COUNT), mask)]
    assert ours == as_torch_reads(mask)


@pytest.mark.gpu(count=1, real="torch counts GPUs itself")
def test_torch_counts_and_names_the_gpus_of_this_machine_as_we_do() -> None:
    visible = visible_gpus()
    assert torch.cuda.device_count() == len(visible)
    if not visible.order_is_uncertain:
        properties = [torch.cuda.get_device_properties(gpu.index) for gpu in visible]
        assert [gpu.name for gpu in visible] == [each.name for each in properties]
        assert [gpu.uuid.partition("-")[2] for gpu in visible] == [str(each.uuid) for each in properties]
