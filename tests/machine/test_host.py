"""What the machine has to give: memory under every kind of limit, disks, directories, names."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support.mounts import tiny_disk

from shoal.machine import host
from shoal.machine.host import Memory

GIB = 2**30
Groups = Callable[[str, dict[str, str]], None]
"""Writes the file that lists the groups of this process, and files of the groups."""


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    """Control groups in a directory."""
    monkeypatch.setattr(host, "CONTROL_GROUPS", tmp_path / "mount")
    monkeypatch.setattr(host, "OWN_GROUPS", tmp_path / "own")

    def write(own_groups: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own_groups + "\n", encoding="utf-8")
        for name, text in files.items():
            path = tmp_path / "mount" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")

    return write


@pytest.fixture
def eight_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 8 GiB, half of it available."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=8 * GIB, available=4 * GIB))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=GIB))


@pytest.mark.usefixtures("eight_gib")
def test_a_machine_without_limits_offers_what_the_kernel_tells(groups: Groups) -> None:
    groups("0::/", {})
    assert host.memory() == Memory(total=8 * GIB, available=4 * GIB, swap_free=GIB)


@pytest.mark.usefixtures("eight_gib")
def test_a_container_offers_what_its_limit_leaves(groups: Groups) -> None:
    files = {"job/memory.max": str(3 * GIB), "job/memory.current": str(2 * GIB)}
    files["job/memory.stat"] = f"anon 1\ninactive_file {GIB // 2}"  # Which can be dropped.
    groups("0::/job/task", files)
    assert host.memory() == Memory(total=3 * GIB, available=3 * GIB // 2, swap_free=GIB, limited=True)


@pytest.mark.usefixtures("eight_gib")
def test_the_first_version_of_control_groups_is_read_too(groups: Groups) -> None:
    files = {"memory/job/memory.limit_in_bytes": str(GIB), "memory/job/memory.usage_in_bytes": str(GIB // 4)}
    files["memory/memory.limit_in_bytes"] = "9223372036854771712"  # No limit.
    groups("4:memory:/job\n1:cpu:/other", files)
    assert host.memory() == Memory(total=GIB, available=3 * GIB // 4, swap_free=GIB, limited=True)


@pytest.mark.usefixtures("eight_gib")
def test_a_wider_group_that_others_fill_leaves_less_than_the_own_limit(groups: Groups) -> None:
    files = {"job/task/memory.max": str(2 * GIB), "job/task/memory.current": str(GIB // 2)}
    files |= {"job/memory.max": str(3 * GIB), "job/memory.current": str(11 * GIB // 4)}
    groups("0::/job/task", files)
    assert host.memory() == Memory(total=2 * GIB, available=GIB // 4, swap_free=GIB, limited=True)


@pytest.mark.usefixtures("eight_gib")
@pytest.mark.parametrize(("limit", "used", "left"), [(0, 0, 0), (GIB // 2, GIB // 8, 3 * GIB // 8), ("max", 0, GIB)])
def test_a_container_has_the_swap_that_its_group_leaves(groups: Groups, limit: object, used: int, left: int) -> None:
    files = {"memory.max": str(3 * GIB), "memory.current": str(GIB)}
    groups("0::/", files | {"memory.swap.max": str(limit), "memory.swap.current": str(used)})
    assert host.memory() == Memory(total=3 * GIB, available=2 * GIB, swap_free=left, limited=True)


@pytest.mark.usefixtures("eight_gib")
def test_lines_that_no_kernel_writes_are_no_groups(groups: Groups) -> None:
    groups("nonsense\n\n0::/", {"memory.max": str(GIB), "memory.current": "0"})
    assert host.memory().total == GIB


@pytest.mark.usefixtures("eight_gib")
@pytest.mark.parametrize("limit", [64 * GIB, "max"])
def test_a_limit_above_the_machine_is_none(groups: Groups, limit: object) -> None:
    groups("0::/", {"memory.max": str(limit), "memory.current": "0"})
    assert not host.memory().limited


def test_this_machine_tells_its_memory() -> None:
    told = host.memory()
    assert 0 < told.available <= told.total


def test_a_disk_without_room_for_another_file_cannot_be_written(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "nr_inodes=2") as where:  # The root has the first one.
        assert host.why_unwritable(where) is None
        (where / "file").touch()
        assert host.why_unwritable(where) == (where, "cannot be written (No space left on device)")


def test_a_directory_of_the_kernel_takes_no_files_of_root_either() -> None:
    found = host.why_unwritable(Path("/proc/logs"))
    assert found is not None
    assert found[0] == Path("/proc")
    assert re.fullmatch(r"cannot be written \(.+\)", found[1])


def test_a_directory_that_can_be_made_is_writable(tmp_path: Path) -> None:
    assert host.why_unwritable(tmp_path / "a" / "b") is None


def test_a_file_in_the_way_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert host.why_unwritable(tmp_path / "file" / "b") == (tmp_path / "file", "is no directory")
    assert host.why_unwritable(tmp_path / "file") == (tmp_path / "file", "is no directory")


def test_a_read_only_mount_cannot_be_written_by_root_either(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=64k", "ro") as where:
        assert host.why_unwritable(where / "logs") == (where, "cannot be written (Read-only file system)")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_of_somebody_else_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o500)
    assert host.why_unwritable(tmp_path / "theirs" / "logs") == (
        tmp_path / "theirs",
        "cannot be written (Permission denied)",
    )


def test_a_name_that_no_file_system_takes_cannot_be_written(tmp_path: Path) -> None:
    where = tmp_path / ("x" * 300) / "logs"
    assert host.why_unwritable(where) == (where, "cannot be written (File name too long)")


def test_the_kernel_cache_is_where_warp_keeps_it(tmp_path: Path) -> None:
    usual = {**os.environ, "HOME": str(tmp_path / "home")}
    for name in ("WARP_CACHE_PATH", "XDG_CACHE_HOME"):
        usual.pop(name, None)
    places = [{}, {"XDG_CACHE_HOME": str(tmp_path / "cache")}, {"WARP_CACHE_PATH": str(tmp_path / "kernels")}]
    ask = "import warp as wp; wp.init(); print(wp.config.kernel_cache_dir)"
    asked = [
        subprocess.Popen([sys.executable, "-c", ask], env=usual | place, stdout=subprocess.PIPE, text=True)
        for place in places
    ]
    answers = [process.communicate(timeout=120)[0].splitlines()[-1] for process in asked]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", usual["HOME"])
        assert [str(host.kernel_cache(usual | place)) for place in places] == answers


def test_names_and_addresses_of_this_machine_resolve() -> None:
    assert host.why_unresolved("localhost") is None
    assert host.why_unresolved("127.0.0.1") is None


def test_a_name_that_does_not_resolve_says_why() -> None:
    assert host.why_unresolved("nowhere.invalid")  # RFC 6761: never a host.
    assert host.why_unresolved("a..b") == "it is no host name"


def test_a_name_server_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answered.wait(10))
    started = time.monotonic()
    monkeypatch.setattr(host, "RESOLVE_S", 0.05)
    assert host.why_unresolved("slow.example") == "no answer within 0.05 s"
    assert time.monotonic() - started < 5
    answered.set()


@pytest.mark.parametrize(
    ("schedulable", "quota", "cores"),
    [(8, None, 8), (8, 2.0, 2), (8, 2.9, 2), (8, 0.5, 1), (2, 16.0, 2)],
)
def test_a_container_s_quota_limits_the_cores(
    schedulable: int, quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _: range(schedulable))
    monkeypatch.setattr(host, "cpu_quota", lambda: quota)
    assert host.usable_cores() == cores


@pytest.mark.parametrize(
    ("own_groups", "files", "quota"),
    [
        pytest.param("0::/", {"cpu.max": "250000 100000"}, 2.5, id="a container sees itself as the root"),
        pytest.param("0::/", {"cpu.max": "max 100000"}, None, id="no limit"),
        pytest.param("0::/", {}, None, id="the root of a machine has no such file"),
        pytest.param("0::/", {"cpu.max": "0 0"}, None, id="an emulated file of zeros"),
        pytest.param("0::/a/b", {"a/b/cpu.max": "100000 50000"}, 2.0, id="our own group"),
        pytest.param(
            "0::/a/b",
            {"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"},
            1.0,
            id="a group above ours",
        ),
        pytest.param("0::/a/b", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "300000 100000"}, 3.0, id="the tightest"),
        pytest.param(
            "4:memory:/\n1:cpu:/job\n0::/",
            {"cpu/job/cpu.cfs_quota_us": "150000", "cpu/job/cpu.cfs_period_us": "100000"},
            1.5,
            id="version 1",
        ),
        pytest.param(
            "3:cpu,cpuacct:/docker/abc",
            {"cpu,cpuacct/cpu.cfs_quota_us": "200000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            2.0,
            id="version 1, where the path is the host's",
        ),
        pytest.param(
            "1:cpu:/",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            None,
            id="version 1 without a limit",
        ),
        pytest.param(
            "2:cpuset:/\n1:name=systemd:/",
            {"cpuset/cpu.max": "100000 100000"},
            None,
            id="groups of other controllers",
        ),
        pytest.param("", {"cpu.max": "100000 100000"}, None, id="no groups"),
    ],
)
def test_the_quota_is_read_from_the_control_groups(
    groups: Groups, own_groups: str, files: dict[str, str], quota: float | None
) -> None:
    groups(own_groups, files)
    assert host.cpu_quota() == quota


@pytest.mark.usefixtures("groups")
def test_a_system_without_control_groups_sets_no_quota() -> None:
    assert host.cpu_quota() is None
