"""What the kernel tells of real processes, held against psutil and against what was done to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from support.commands import wait_until

from shoal import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose name would mislead a reader that splits the line at blanks."""
    name = "x) Z 1 (y"
    code = f"import time; open('/proc/self/comm', 'w').write({name!r}); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_sleeps_is_told_as_psutil_tells_it(child: subprocess.Popen[bytes]) -> None:
    seconds_since_boot = procfs.started_at(child.pid) / os.sysconf("SC_CLK_TCK")
    assert wait_until(lambda: procfs.state(child.pid) == "S", timeout=10)
    assert psutil.Process(child.pid).name() == "x) Z 1 (y"
    assert psutil.boot_time() + seconds_since_boot == pytest.approx(psutil.Process(child.pid).create_time(), abs=2)


def test_a_process_is_stopped_until_it_continues(child: subprocess.Popen[bytes]) -> None:
    assert not procfs.is_stopped(child.pid)
    child.send_signal(signal.SIGSTOP)
    assert wait_until(lambda: procfs.is_stopped(child.pid), timeout=10)
    child.send_signal(signal.SIGCONT)
    assert wait_until(lambda: not procfs.is_stopped(child.pid), timeout=10)


def test_a_process_that_ended_is_a_zombie_until_it_is_collected(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    assert wait_until(lambda: procfs.state(child.pid) == "Z", timeout=10)
    code = child.wait()
    assert procfs.how_it_ended(code) == "killed by SIGKILL"
    assert (procfs.stat(child.pid), procfs.state(child.pid), procfs.started_at(child.pid)) == ([], "", 0)
    assert not procfs.is_stopped(child.pid)


@pytest.mark.parametrize(
    ("code", "described"),
    [
        (3, "it left with exit code 3"),
        (0, "it left with exit code 0"),
        (-signal.SIGSEGV, "killed by SIGSEGV"),
        (-(signal.SIGRTMIN + 3), f"killed by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_how_a_process_ended(code: int, described: str) -> None:
    assert procfs.how_it_ended(code) == described
