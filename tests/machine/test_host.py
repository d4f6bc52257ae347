"""What the machine has to give: memory under every kind of limit, disks, directories, names."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support.mounts import tiny_disk

from shoal.machine import host
from shoal.machine.host import Memory

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
MEMINFO = "MemTotal: 8388608 kB\nMemFree: 1000 kB\nMemAvailable: 4194304 kB\nSwapFree: 1048576 kB\n"


def memory_with(where: Path, groups: str, **files: str) -> Memory | None:
    """The memory of a machine of 8 GiB, half of it available, whose control groups have these files."""
    (where / "meminfo").write_text(MEMINFO)
    (where / "own").write_text(groups)
    for name, text in files.items():
        file = where / "cgroup" / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return host.memory(where / "meminfo", where / "cgroup", where / "own")


def test_a_machine_without_limits_offers_what_the_kernel_tells(tmp_path: Path) -> None:
    assert memory_with(tmp_path, "0::/\n") == Memory(total=8 * GIB, available=4 * GIB, swap_free=GIB)


def test_a_container_offers_what_its_limit_leaves(tmp_path: Path) -> None:
    files = {"job__memory_dot_max": str(3 * GIB), "job__memory_dot_current": str(2 * GIB)}
    files["job__memory_dot_stat"] = f"anon 1\ninactive_file {GIB // 2}\n"  # Which can be dropped.
    told = memory_with(tmp_path, "0::/job/task\n", **files)
    assert told == Memory(total=3 * GIB, available=3 * GIB // 2, swap_free=GIB, limited=True)


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    files = {
        "memory__job__memory_dot_limit_in_bytes": str(GIB),
        "memory__job__memory_dot_usage_in_bytes": str(GIB // 4),
    }
    files["memory__memory_dot_limit_in_bytes"] = "9223372036854771712"  # No limit.
    told = memory_with(tmp_path, "4:memory:/job\n1:cpu:/other\n", **files)
    assert told == Memory(total=GIB, available=3 * GIB // 4, swap_free=GIB, limited=True)


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    files = {"memory_dot_max": str(64 * GIB), "memory_dot_current": "0"}
    told = memory_with(tmp_path, "0::/\n", **files)
    assert told is not None
    assert not told.limited


def test_a_system_that_does_not_tell_has_no_memory_to_judge(tmp_path: Path) -> None:
    assert host.memory(tmp_path / "nothing") is None


def test_this_machine_tells_its_memory() -> None:
    told = host.memory()
    assert told is not None
    assert 0 < told.available <= told.total


def test_the_disk_of_a_directory_that_is_not_there_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    there, later = host.disk(tmp_path), host.disk(tmp_path / "logs" / "run")
    assert there is not None
    assert later is not None
    assert later.total == there.total


def test_a_tiny_disk_is_seen_as_such(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=64k", "nr_inodes=5") as where:
        told = host.disk(where / "logs")
        assert told is not None
        assert (told.total, told.free) == (65536, 65536)
        assert told.free_files == 4  # The root has the fifth.
        (where / "file").write_bytes(bytes(8192))
        left = host.disk(where)
        assert left is not None
        assert (left.free, left.free_files) == (65536 - 8192, 3)


def test_a_directory_that_can_be_made_is_writable(tmp_path: Path) -> None:
    assert host.why_unwritable(tmp_path / "a" / "b") is None


def test_a_file_in_the_way_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert host.why_unwritable(tmp_path / "file" / "b") == (tmp_path / "file", "is no directory")
    assert host.why_unwritable(tmp_path / "file") == (tmp_path / "file", "is no directory")


def test_a_read_only_mount_cannot_be_written_by_root_either(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=64k", "ro") as where:
        assert host.why_unwritable(where / "logs") == (where, "cannot be written")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_of_somebody_else_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o500)
    assert host.why_unwritable(tmp_path / "theirs" / "logs") == (tmp_path / "theirs", "cannot be written")


def test_a_name_that_no_file_system_takes_cannot_be_reached(tmp_path: Path) -> None:
    where = tmp_path / ("x" * 300) / "logs"
    assert host.why_unwritable(where) == (where, "cannot be reached (File name too long)")


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
    assert host.resolves("localhost") is None
    assert host.resolves("127.0.0.1") is None


def test_a_name_that_does_not_resolve_says_why() -> None:
    assert host.resolves("nowhere.invalid", seconds=30.0)  # RFC 6761: never a host.
    assert host.resolves("a..b") == "it is no host name"


def test_a_name_server_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answered.wait(10))
    started = time.monotonic()
    assert host.resolves("slow.example", seconds=0.05) == "no answer within 0.05 s"
    assert time.monotonic() - started < 5
    answered.set()
