"""A world of one rank, and how a process group is opened and closed. More ranks are in `test_two_ranks`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from support.learners import ALONE

from shoal.learn.groups import ON_ONE_MACHINE, World, process_group

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


@pytest.mark.parametrize(("local_size", "here"), [(2, True), (1, False), (None, False)])
def test_ranks_are_on_one_machine_if_all_are_known_to_be(local_size: int | None, here: bool) -> None:
    assert World(size=2, local_size=local_size).is_on_one_machine is here


def test_a_group_on_one_machine_takes_loopback_whatever_the_shell_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ON_ONE_MACHINE:
        monkeypatch.setenv(name, "shoal-none0")
    world = World(local_size=1)
    with process_group(world, backend="gloo", store=lambda: dist.FileStore(str(tmp_path / "store"), 1)):
        assert {name: os.environ[name] for name in ON_ONE_MACHINE} == ON_ONE_MACHINE


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
