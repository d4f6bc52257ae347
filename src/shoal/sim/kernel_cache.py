"""Warp's kernel cache, which the ranks of a machine fill together: one compiles a module, and the others wait for it.

What is compiled already is loaded without a lock. The operating system releases the lock of a rank that is killed.
"""

import logging
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import warp as wp

from shoal.files import Folder, folder_of, try_lock
from shoal.heartbeat import Heartbeat
from shoal.timing import wait_for

logger = logging.getLogger(__name__)

SILENT_WAIT_S = 5.0
"""Wait in seconds that is not reported."""
_POLL_S = 0.02


@contextmanager
def shared_kernel_cache(beat: Heartbeat) -> Iterator[None]:
    """Lock each module that is compiled in the body. `beat` is in the phase `queue` while another process has the lock.

    Warp's own protection is a build directory that is named after the process and the thread. Containers and machines
    that share a cache may have the same numbers, and processes without a lock compile the same modules.
    """
    compile_module = wp.Module._compile  # noqa: SLF001  Each `load` calls it, and it skips what is compiled.
    if getattr(compile_module, "__module__", None) == __name__:  # Within another body: nothing is locked twice.
        yield
        return

    def compile_locked(
        module: wp.Module,
        device: Any = None,  # noqa: ANN401  As Warp declares it.
        output_dir: str | None = None,
        output_name: str | None = None,
        *others: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> bool:
        compile_now = partial(compile_module, module, device, output_dir, output_name, *others, **options)
        if output_dir is None or output_name is None or Path(output_dir, output_name).exists():
            return compile_now()
        folder, binary = folder_of(Path(output_dir)), Path(output_dir, output_name)
        with _module_lock(folder, binary, beat), _temporary_files_in(folder, folder.path / "temporary"):
            return compile_now()

    wp.Module._compile = compile_locked  # noqa: SLF001
    try:
        yield
    finally:
        wp.Module._compile = compile_module  # noqa: SLF001


@contextmanager
def _module_lock(folder: Folder, binary: Path, beat: Heartbeat) -> Iterator[None]:
    """Lock the module of a binary, or wait until another process has compiled it."""
    lock = folder.path / "locks" / binary.parent.name
    folder.make(lock.parent)
    with folder.open(lock, "a") as file:
        if not try_lock(file):
            before = beat.enter("queue")
            if not wait_for(lambda: binary.exists() or try_lock(file), SILENT_WAIT_S, _POLL_S):
                _announce_wait(folder.path)
                wait_for(lambda: binary.exists() or try_lock(file), poll=_POLL_S)
            beat.enter(before)
        yield
        beat.mark()


@cache
def _announce_wait(directory: Path) -> None:
    """Log, once in a process, that this one waits."""
    logger.info("Another worker is compiling Warp kernels into %s: waiting for it.", directory)


@contextmanager
def _temporary_files_in(folder: Folder, root: Path) -> Iterator[None]:
    """Set the directory of the compiler's temporary files, and remove those of dead processes of this machine."""
    host = platform.node()
    for left in root.glob(f"{host}.*"):
        if not Path("/proc", left.name.removeprefix(f"{host}.")).exists():
            with suppress(OSError):
                folder.remove_tree(left)
    mine = root / f"{host}.{os.getpid()}"
    folder.make(mine)
    usual, tempfile.tempdir = tempfile.tempdir, str(mine)
    try:
        yield
    finally:
        tempfile.tempdir = usual
