"""Compilation by several processes: one compiles a module, the others wait for it and for nothing else."""

from __future__ import annotations

import logging
import platform
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import warp as wp

from shoal.files import folder_of, try_lock
from shoal.heartbeat import Heartbeat
from shoal.sim import kernel_cache
from shoal.sim.kernel_cache import shared_kernel_cache
from shoal.timing import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


@wp.kernel(module="unique", enable_backward=False)
def write_one(values: wp.array[wp.float32]) -> None:
    """Write ones."""
    values[wp.tid()] = 1.0


@wp.kernel(module="unique", enable_backward=False)
def write_two(values: wp.array[wp.float32]) -> None:
    """Write twos."""
    values[wp.tid()] = 2.0


ONE: Any = write_one
TWO: Any = write_two


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give Warp an empty cache, in which nothing is loaded."""
    wp.init()
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path))
    for kernel in (ONE, TWO):
        kernel.module.unload()
    return tmp_path


def run(kernel: wp.Kernel, beat: Heartbeat | None = None) -> float:
    """Launch a kernel as a rank does, and return what it writes."""
    values = wp.zeros(1, dtype=wp.float32, device="cpu")
    with shared_kernel_cache(beat or Heartbeat()):
        wp.launch(kernel, dim=1, inputs=[values], device="cpu")
    return float(values.numpy()[0])


def name_of(kernel: wp.Kernel) -> str:
    """Return the name of a kernel's module in the cache."""
    return kernel.module.get_module_identifier(1)


@contextmanager
def locked(cache: Path, kernel: wp.Kernel) -> Iterator[None]:
    """Hold the lock of a module, as another process that compiles it does."""
    folder, lock = folder_of(cache / "locks"), cache / "locks" / name_of(kernel)
    folder.make(lock.parent)
    with folder.open(lock, "a") as file:
        assert try_lock(file)
        yield


def test_a_killed_compiler_leaves_nothing_for_long(cache: Path) -> None:
    usual = tempfile.gettempdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = cache / "temporary" / f"{platform.node()}.{gone.pid}"
    other = cache / "temporary" / "another-host.1"
    for directory in (left, other):
        (directory / "wp_pch_1").mkdir(parents=True)
    used: list[str] = []
    compile_module = wp.Module._compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            wp.Module,
            "_compile",
            lambda *args, **options: used.append(tempfile.gettempdir()) or compile_module(*args, **options),
        )
        assert run(ONE) == 1
    assert [Path(directory).parent for directory in used] == [cache / "temporary"]
    assert not left.exists()
    assert other.exists()
    assert tempfile.gettempdir() == usual


def test_what_is_compiled_is_loaded_without_a_lock(cache: Path) -> None:
    assert run(ONE) == 1
    ONE.module.unload()
    with locked(cache, ONE):
        assert run(ONE) == 1


def test_another_module_is_compiled_meanwhile(cache: Path) -> None:
    with locked(cache, ONE):
        assert run(TWO) == 2


def test_a_rank_waits_for_the_one_that_compiles(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernel_cache, "SILENT_WAIT_S", 0.1)
    caplog.set_level(logging.INFO)
    beat, values = Heartbeat(), list[float]()
    beat.enter("compile")
    rank = threading.Thread(target=lambda: values.append(run(ONE, beat)))
    with locked(cache, ONE):
        rank.start()
        assert wait_for(lambda: "waiting for it" in caplog.text, timeout=60)
        assert beat.phase == "queue"
        assert not (cache / name_of(ONE)).exists()
    rank.join()  # The operating system releases the lock of a killed process in the same way.
    assert (values, beat.phase) == ([1.0], "compile")


def test_a_rank_goes_on_as_soon_as_the_binary_is_there(
    cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(ONE) == 1
    ONE.module.unload()
    elsewhere = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(elsewhere))
    beat, values = Heartbeat(), list[float]()
    rank = threading.Thread(target=lambda: values.append(run(ONE, beat)))
    with locked(elsewhere, ONE):
        rank.start()
        assert wait_for(lambda: beat.phase == "queue", timeout=60)
        (cache / name_of(ONE)).rename(elsewhere / name_of(ONE))
        rank.join()
    assert values == [1.0]


def test_within_one_body_another_locks_nothing_twice(cache: Path) -> None:
    assert cache.exists()
    with shared_kernel_cache(Heartbeat()):
        assert run(ONE) == 1
    assert wp.Module._compile.__module__ != kernel_cache.__name__
