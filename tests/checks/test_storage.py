"""Checks of disks, memory, shared memory and directories, on machines that are not there."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from support.fake_devices import GIB
from support.mounts import tiny_disk

from shoal.checks import resources
from shoal.machine import host
from shoal.machine.host import Memory
from shoal.plan.rundir import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.checks.findings import Finding

MIB = 2**20
HERE = Path("/data")
SHM = resources.SHARED_MEMORY


def answering(disk: SimpleNamespace | None) -> Callable[[Path], SimpleNamespace]:
    """Stand in for `shutil.disk_usage`: a disk, or none that can be read."""

    def disk_usage(_path: Path) -> SimpleNamespace:
        if disk is None:
            raise FileNotFoundError
        return disk

    return disk_usage


def fields(finding: Finding) -> tuple[str, str, bool]:
    return finding.level, finding.sentence, finding.transient


# Disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disk", "exactly", "expected"),
    [
        (
            SimpleNamespace(total=GIB, free=GIB),
            True,
            ("ok", "/data has 1.0 GiB free; a checkpoint takes 10.0 MiB.", False),
        ),
        (
            SimpleNamespace(total=GIB, free=GIB),
            False,
            ("ok", "/data has 1.0 GiB free; a checkpoint takes at least 10.0 MiB.", False),
        ),
        *(
            (
                SimpleNamespace(total=total, free=10 * MIB),
                True,
                (
                    "problem",
                    (
                        "The disk of /data has 10.0 MiB free, but a checkpoint and the rest of a run take 10.1 MiB: "
                        "make room, or pass --log-root with a directory on another disk."
                    ),
                    transient,
                ),
            )
            for total, transient in ((10 * MIB, False), (GIB, True))
        ),
        (
            SimpleNamespace(total=GIB, free=11 * MIB),
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
        (None, True, ("note", "The free space on the disk of /data cannot be read.", False)),
    ],
)
def test_a_disk_is_compared_with_checkpoints(
    disk: SimpleNamespace | None, exactly: bool, expected: tuple[str, str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "nearest_existing", lambda path: path)
    monkeypatch.setattr(shutil, "disk_usage", answering(disk))
    assert fields(resources.check_disk(HERE, 10 * MIB, 4, exactly=exactly)) == expected


def test_the_disk_of_a_run_that_is_not_there_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=128k") as where:
        (where / "file").write_bytes(bytes(8192))
        finding = resources.check_disk(where / "logs" / "run", 1024, 1, exactly=True)
    assert finding.truth == f"{where} has 120 KiB free; a checkpoint takes 1.0 KiB"


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
def test_memory_is_compared_with_workers(
    memory: Memory, expected: tuple[str, str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "memory", lambda: memory)
    assert fields(resources.check_memory(2, 100 * MIB)) == expected


def test_swap_lets_workers_start_that_memory_alone_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory", lambda: Memory(total=8 * GIB, available=GIB // 2, swap_free=GIB))
    assert resources.check_memory(2, 100 * MIB).level == "note"


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
def test_shared_memory_of_docker_is_too_small_for_nccl(
    free: int, expected: tuple[str, str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", answering(SimpleNamespace(free=free)))
    assert fields(resources.check_shared_memory(2)) == expected


def test_nccl_may_need_shared_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", answering(None))
    assert resources.check_shared_memory(2).level == "note"


def test_a_tmpdir_that_cannot_be_written_is_noted(tmp_path: Path) -> None:
    finding = resources.check_temporary({"TMPDIR": str(tmp_path / "nowhere")})
    assert finding.level == "note"
    assert finding.sentence.startswith(f"TMPDIR is {tmp_path}/nowhere, which cannot be written: temporary files go to ")


def test_a_run_that_became_read_only_cannot_go_on(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.checkpoints_dir.mkdir(parents=True)
    assert list(resources.check_run_files(run)) == []
    with tiny_disk(run.checkpoints_dir, "size=64k", "ro"):
        (finding,) = resources.check_run_files(run)
    assert finding.level == "problem"
    assert finding.truth == f"The run {run.path} cannot go on, because checkpoints in it cannot be written"
