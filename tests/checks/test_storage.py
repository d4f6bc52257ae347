"""Checks of disks, memory, shared memory and directories, on machines that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.fake_devices import GIB
from support.mounts import tiny_disk

from shoal.checks import storage
from shoal.machine.host import Disk, Memory
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from shoal.checks.findings import Finding

MIB = 2**20
HERE = Path("/data")
SHM = storage.SHARED_MEMORY


def fields(finding: Finding) -> tuple[str, str, bool]:
    return finding.level, finding.sentence, finding.transient


# Disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disk", "exactly", "expected"),
    [
        (Disk(free=GIB), True, ("ok", "/data has 1.0 GiB free; a checkpoint takes 10.0 MiB.", False)),
        (
            Disk(free=GIB),
            False,
            ("ok", "/data has 1.0 GiB free; a checkpoint takes at least 10.0 MiB.", False),
        ),
        (
            Disk(free=10 * MIB),
            True,
            (
                "problem",
                (
                    "The disk of /data has 10.0 MiB free, but a checkpoint and the rest of a run take 10.1 MiB: "
                    "make room, or pass --log-root with a directory on another disk."
                ),
                False,
            ),
        ),
        (
            Disk(free=11 * MIB),
            False,
            (
                "note",
                (
                    "The disk of /data has 11.0 MiB free, but the 4 checkpoints of this run take at least 40.0 MiB: "
                    "make room in time, or raise --agent.save-interval."
                ),
                False,
            ),
        ),
        (
            Disk(free=GIB, free_files=0),
            True,
            ("problem", "The disk of /data has no room for another file: remove some, or pass --log-root.", False),
        ),
        (None, True, ("note", "The free space on the disk of /data cannot be read.", False)),
    ],
)
def test_a_disk_is_compared_with_checkpoints(disk: Disk | None, exactly: bool, expected: tuple[str, str, bool]) -> None:
    assert fields(storage.check_disk(HERE, disk, 10 * MIB, 4, exactly=exactly)) == expected


# Memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (
            Memory(total=8 * GIB, available=4 * GIB, swap_free=GIB),
            ("ok", "4.0 GiB of 8.0 GiB available to this machine, and 1.0 GiB of swap.", False),
        ),
        (
            Memory(total=8 * GIB, available=GIB),
            (
                "note",
                (
                    "Only 1.0 GiB of memory are available to this machine, and 2 workers take more than 712 MiB: "
                    "watch it, since the kernel kills a worker when memory runs out."
                ),
                False,
            ),
        ),
        (
            Memory(total=8 * GIB, available=GIB // 2),
            (
                "problem",
                (
                    "512 MiB of memory are available to this machine, but 2 workers take at least 712 MiB: "
                    "end other processes, or pass fewer --nproc-per-node or --num-envs."
                ),
                True,
            ),
        ),
        (
            Memory(total=GIB // 2, available=GIB // 2, limited=True),
            (
                "problem",
                (
                    "512 MiB of memory are available to this container, but 2 workers take at least 712 MiB: "
                    "end other processes, or pass fewer --nproc-per-node or --num-envs."
                ),
                False,
            ),
        ),
    ],
)
def test_memory_is_compared_with_workers(memory: Memory, expected: tuple[str, str, bool]) -> None:
    assert fields(storage.check_memory(memory, 2, 100 * MIB)) == expected


def test_swap_lets_workers_start_that_memory_alone_would_not() -> None:
    memory = Memory(total=8 * GIB, available=GIB // 2, swap_free=GIB)
    assert storage.check_memory(memory, 2, 100 * MIB).level == "note"


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (GIB, ("ok", f"{SHM} has 1.0 GiB free.", False)),
        (
            64_000_000,
            (
                "note",
                (
                    f"{SHM} has 61.0 MiB free, and 2 ranks may need 64.0 MiB of it for NCCL: "
                    "enlarge it (docker run --shm-size 1g), or set NCCL_SHM_DISABLE=1."
                ),
                False,
            ),
        ),
    ],
)
def test_shared_memory_of_docker_is_too_small_for_nccl(free: int, expected: tuple[str, str, bool]) -> None:
    assert fields(storage.check_shared_memory(Disk(free=free), 2)) == expected


def test_nccl_may_need_shared_memory_that_is_not_there() -> None:
    assert storage.check_shared_memory(None, 2).level == "note"


def test_a_tmpdir_that_cannot_be_written_is_noted(tmp_path: Path) -> None:
    finding = storage.check_temporary({"TMPDIR": str(tmp_path / "nowhere")})
    assert finding.level == "note"
    assert finding.sentence.startswith(f"TMPDIR is {tmp_path}/nowhere, which cannot be written: temporary files go to ")


def test_a_run_that_became_read_only_cannot_go_on(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.checkpoints_dir.mkdir(parents=True)
    assert list(storage.check_run_files(run)) == []
    with tiny_disk(run.checkpoints_dir, "size=64k", "ro"):
        (finding,) = storage.check_run_files(run)
    assert finding.level == "problem"
    assert finding.truth == f"The run {run.path} cannot go on, because checkpoints in it cannot be written"
