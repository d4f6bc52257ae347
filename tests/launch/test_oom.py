"""Whether memory ran out, told from the kernel's counters: by hand-written files, and by a kill of the real kernel."""

from __future__ import annotations

import errno
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import FAULTY, SMALL, TRAIN, run

from shoal.launch import node
from shoal.launch.node import count_oom_kills, oom_verdict

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "vmstat"
    file.write_text("nr_free_pages 17\noom_kill 4\n", encoding="utf-8")
    monkeypatch.setattr(node, "_MACHINE", file)
    return file


@pytest.fixture(params=[1, 2])
def group(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group of either version, with a limit of 2 GiB."""
    directory = tmp_path / "group"
    directory.mkdir()
    if request.param == 1:
        (directory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", encoding="utf-8")
        (directory / "memory.limit_in_bytes").write_text(f"{2**31}\n", encoding="utf-8")
    else:
        (directory / "memory.events").write_text("low 0\noom 9\noom_kill 7\noom_group_kill 0\n", encoding="utf-8")
        (directory / "memory.max").write_text(f"{2**31}\n", encoding="utf-8")
    monkeypatch.setattr(node, "control_groups", lambda _controller: [directory])
    return directory


def count_one_more(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("oom_kill 7", "oom_kill 8").replace("oom_kill 4", "oom_kill 5"), encoding="utf-8")


@pytest.mark.usefixtures("group", "machine")
def test_a_kill_that_the_kernel_did_not_count_is_somebody_elses() -> None:
    assert oom_verdict(count_oom_kills()) == " (not by the kernel for want of memory: it counts those)"


def test_a_kill_in_the_own_group_is_told_with_its_limit(group: Path, machine: Path) -> None:
    before = count_oom_kills()
    for file in (*group.glob("memory.e*"), *group.glob("memory.o*"), machine):
        count_one_more(file)
    limit = "the memory limit of its control group of 2,048 MiB was reached"
    assert oom_verdict(before) == f" (the kernel did that: {limit})"


@pytest.mark.usefixtures("group")
def test_a_kill_elsewhere_on_the_machine_is_told_as_that(machine: Path) -> None:
    before = count_oom_kills()
    count_one_more(machine)
    assert oom_verdict(before) == " (the kernel did that to some process of this machine: memory ran out)"


def test_where_the_kernel_tells_nothing_it_is_a_guess(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.unlink()
    monkeypatch.setattr(node, "control_groups", lambda _controller: [machine.parent / "no group"])
    assert oom_verdict(count_oom_kills()) == " (the kernel does that when memory runs out)"


# The real kernel ------------------------------------------------------------------------------------------------

MOUNTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))


def remove_group(group: Path) -> None:
    """Remove it as soon as the kernel has taken the last ended process out of it."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


@contextmanager
def control_group() -> Iterator[Path]:
    """A new control group whose memory can be limited, where this machine lets us make one."""
    for mount in MOUNTS:
        group = mount / f"shoal_test_{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / "memory.max").exists() or (group / "memory.limit_in_bytes").exists():
                yield group
                return
        finally:
            remove_group(group)
    pytest.skip("this machine does not let us make a control group")


@pytest.mark.spawn
@pytest.mark.soak
def test_a_worker_that_outgrows_its_control_group_is_lost_with_a_memory_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with control_group() as group:
        monkeypatch.setenv("SHOAL_TEST_GROUP", str(group))
        inside = ("sh", "-c", 'echo $$ > "$SHOAL_TEST_GROUP/cgroup.procs" && exec "$@"', "sh")
        ended = run((*inside, *TRAIN, f"{FAULTY}:OutgrowsItsGroup", *SMALL, "--nproc-per-node", "2"), tmp_path)
        seconds = time.time() - (ended.run / "metrics.jsonl").stat().st_mtime
    assert ended.code == 75, ended.stdout + ended.stderr
    assert "Error: Lost rank 1 on " in ended.last_line
    assert " in rollout (iteration 2): killed by SIGKILL (the kernel did that: the memory limit of" in ended.last_line
    assert seconds < 10
