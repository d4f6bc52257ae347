"""A world of one rank, and how a process group is opened and closed. More ranks are in `test_two_ranks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.learners import ALONE

from shoal.learn.groups import World, process_group

if TYPE_CHECKING:
    from pathlib import Path


def test_one_rank_alone_meets_nobody() -> None:
    mine = torch.tensor([1, 2])
    assert ALONE.is_first
    assert not ALONE.is_distributed
    assert ALONE.sum_(mine) is mine
    assert ALONE.max_(mine) is mine
    assert [tensor.tolist() for tensor in ALONE.gather(mine)] == [[1, 2]]
    assert ALONE.gather_strings(["a", "b"]) == [["a", "b"]]


def test_only_rank_0_is_first() -> None:
    assert not World(rank=1, local_rank=0, size=2).is_first


def test_one_rank_alone_needs_no_group() -> None:
    with process_group(ALONE, backend=None, store=None) as world:
        assert world is ALONE
        assert not dist.is_initialized()


def test_a_group_is_closed_after_success(tmp_path: Path) -> None:
    with process_group(ALONE, backend="gloo", store=lambda: dist.FileStore(str(tmp_path / "store"), 1)):
        assert dist.is_initialized()
    assert not dist.is_initialized()


def test_a_group_stays_open_after_a_failure(tmp_path: Path) -> None:
    # To close it could mean to wait for peers that are gone.
    def fail() -> None:
        with process_group(ALONE, backend="gloo", store=lambda: dist.FileStore(str(tmp_path / "store"), 1)):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert dist.is_initialized()
    dist.destroy_process_group()
