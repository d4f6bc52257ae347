"""File lock of Warp's kernel cache: Warp forbids filling it from two processes at once.

The first rank compiles; the others wait and find everything compiled. The operating system releases the lock of a rank
that is killed.
"""

import logging
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import warp as wp
from filelock import FileLock, Timeout

from shoal.files import Folder, folder_of

logger = logging.getLogger(__name__)

SILENT_WAIT_S = 5.0
"""Wait in seconds that is not reported: to load compiled kernels takes less."""


@contextmanager
def exclusive_kernel_cache() -> Iterator[None]:
    """Lock this machine's kernel cache."""
    wp.init()
    directory = Path(str(wp.config.kernel_cache_dir))  # Set by wp.init.
    folder = folder_of(directory / "shoal.lock")
    lock = FileLock(directory / "shoal.lock")
    try:
        held = lock.acquire(timeout=SILENT_WAIT_S)
    except Timeout:
        logger.info("Another worker is compiling Warp kernels into %s: waiting for it.", directory)
        held = lock.acquire()
    with held, _temporary_files_in(folder, directory / "temporary"):
        yield


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
