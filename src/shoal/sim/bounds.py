"""Checks of indices: a task of a user's own first runs in a process of its own, its kernels in Warp's debug mode.

Warp checks no index otherwise: a kernel that writes one column too many writes into the next environment's row, or into
other memory. In debug mode it ends its process, and what ran last is in memory and in a file that the parent reads.
"""

import ctypes
import faulthandler
import logging
import mmap
import os
import re
import resource
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import torch
import warp as wp

from shoal.procfs import how_it_ended

logger = logging.getLogger(__name__)

TRUSTED = ("shoal.sim.", "mujoco_warp.", "warp.")
"""Modules whose kernels are not a task's own."""
_KERNEL, _TERM, _FAILED = "kernel ", "term ", "Assertion failed: "
"""Beginnings of lines of the file: a kernel that is launched, a term that is bound, and what Warp's kernels write."""
_TIMEOUT_S = 180.0
_AXES = "ijkl"
"""Warp's names of indices."""

_running: wp.array | None = None
"""In the child: the number of the term that runs, counted from 1, which kernels write. Shape (1,)."""
_terms = 0
"""Number of terms that were bound in the child."""


def find_bad_index(run: Callable[[], object]) -> tuple[str, str] | None:
    """Call a function in a child process; return which kernel or term had an index out of bounds, and on which axis.

    None without. What else ends the child is left to be found where the function is called without it.
    """
    running = mmap.mmap(-1, ctypes.sizeof(ctypes.c_int32))  # Shared with the child.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        child = get_context("fork").Process(target=_run_in_debug_mode, args=(run, running, file.fileno()), daemon=True)
        child.start()
        child.join(_TIMEOUT_S)
        child.kill()
        child.join()
        file.seek(0)
        lines = file.read().splitlines()
    failed = next((line for line in lines if line.startswith(_FAILED)), None)
    if failed is None:
        if child.exitcode:
            logger.info("Indices are not checked: their check ended early (%s).", how_it_ended(child.exitcode))
        return None
    kernel = [line.removeprefix(_KERNEL) for line in lines if line.startswith(_KERNEL)][-1]
    number = int.from_bytes(running[:], sys.byteorder)
    terms = [line.removeprefix(_TERM) for line in lines if line.startswith(_TERM)]
    index = re.match(rf"'(?:[{_AXES}] >= \S+ && )?([{_AXES}]) ", failed.removeprefix(_FAILED))
    where = f"on axis {_AXES.index(index[1])}" if index else f"({failed})"
    return f"term {terms[number - 1]}" if number else f"kernel '{kernel}'", where


def _run_in_debug_mode(run: Callable[[], object], running: mmap.mmap, file: int) -> None:
    """In the child: call a function, and write each kernel that it launches, before it runs, into a file."""
    global _running  # noqa: PLW0603  This process ends with the call.
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for stream in (1, 2):
        os.dup2(file, stream)
    torch.set_num_threads(1)  # The threads of the parent's pool are not here.
    address = ctypes.addressof(ctypes.c_int32.from_buffer(running))
    _running = wp.array(ptr=address, dtype=wp.int32, shape=1, device="cpu")
    launch = wp.launch

    def launch_checked(kernel: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        if not kernel.func.__module__.startswith(TRUSTED) and kernel.module.options["mode"] != "debug":
            kernel.module.options["mode"] = "debug"
            kernel.module.unload()
        os.write(file, f"{_KERNEL}{kernel.key}\n".encode())
        running[:] = bytes(len(running))
        return launch(kernel, *arguments, **named)

    wp.launch = launch_checked
    try:
        run()
    except BaseException:  # noqa: BLE001  It is raised where the function is called without this check.
        os._exit(1)


def announce(term: str) -> tuple[wp.array, int] | None:
    """Return where a kernel is to note that a term, such as ``rewards.feet_slip``, runs, and its number, for `note`.

    None unless indices are checked.
    """
    global _terms  # noqa: PLW0603
    if _running is None:
        return None
    _terms += 1
    os.write(2, f"{_TERM}{term}\n".encode())
    return _running, _terms


@wp.func
def note(running: wp.array[wp.int32], env: wp.int32, term: wp.int32) -> wp.int32:
    """Note the term that runs, and return the environment."""
    running[0] = term
    return env
